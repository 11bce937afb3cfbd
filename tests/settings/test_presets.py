"""Presets: the paper's configurations against its table, and what `auto` chooses."""

from functools import partial
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.cli.parser import from_command_line
from axml_ray.core.errors import SettingsError
from axml_ray.settings import adapt
from axml_ray.settings.configuration import load
from axml_ray.settings.presets import FLAT_LABELS, KNN_DOCUMENTS, KNN_WORDS, SMALL_DOCUMENTS, CorpusSize, choose

CONFIGS = Path(__file__).parents[2] / "configs"
# The paper's table of hyperparameters: E, B, N, N_fc, H, K, C (None where there is no tree).
PAPER = {
    "eurlex4k": (30, 40, 256, (256,), 0, None, None),
    "wiki10_31k": (30, 40, 256, (256,), 0, None, None),
    "amazoncat13k": (10, 200, 512, (512, 256), 0, None, None),
    "amazon670k": (10, 200, 512, (512, 256), 3, 8, 160),
    "wiki500k": (5, 200, 512, (512, 256), 1, 64, 15),
    "amazon3m": (5, 200, 512, (512, 256), 3, 8, 160),
}
OWN = {"source": "json_lines", "train": ["a.jsonl"]}


def leaves(values: dict) -> int:
    return sum(leaves(value) if isinstance(value, dict) else 1 for value in values.values())


@pytest.mark.parametrize("name", PAPER)
def test_a_config_of_the_paper_is_its_table(name):
    epochs, batch, hidden, layers, height, clusters, beam = PAPER[name]
    settings = load(CONFIGS / f"{name}.yaml")
    training, network, tree = settings.training, settings.network, settings.tree
    assert set(training.epochs) == {epochs} and training.batch_size == batch
    assert (network.hidden, network.fully_connected, tree.height) == (hidden, layers, height)
    if height:
        assert (tree.cluster_size, tree.beam) == (clusters, beam)
    # The product of probabilities along the path, nothing but networks, their mean, no departure in initialisation.
    assert settings.preset == "paper" and network.parent_score_exponent == 1
    assert (network.output_bias, network.label_vector_init, network.evidence) == ("default", "random", False)
    assert training.include_true_parents and training.averages_at(1)
    assert list(settings.members.chosen) == ["network_tree"] and settings.ensemble.combiner == "mean"
    assert (tree.kind, settings.ensemble.trees) == ("balanced", 3)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_config_names_its_preset_and_only_what_differs_from_it(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert load(path).name == content["name"] == path.stem
    bare = load(preset=content["preset"], corpus={key: value for key, value in content["corpus"].items()})
    for group, values in content.items():
        if isinstance(values, dict) and group not in ("corpus", "members") and path.stem not in FREE:
            same = [key for key, value in values.items() if getattr(getattr(bare, group), key) == _plain(value)]
            assert set(same) <= ALLOWED.get(path.stem, set()), (group, same)
    if path.stem == "mine":
        assert leaves(content) <= 12


FREE = {*PAPER, "eurlex4k_partial", "mine"}
"""The paper's table is written out, also where it is the default and for a part of its EUR-Lex; so is what users are to
change."""
ALLOWED = {"finna_titles": {"height", "cluster_size", "hidden", "fully_connected"}}


def _plain(value):
    return tuple(value) if isinstance(value, list) else value


class TestPrecedence:
    def test_file_over_preset_and_command_line_over_both(self, tmp_path):
        file = tmp_path / "config.yaml"
        file.write_text("preset: recommended\ncorpus: {train: [a.jsonl]}\nnetwork: {hidden: 64}\n")
        words = ["--config", str(file), "--training.learning_rate", "0.5", "--members.knn.weight", "0.4"]
        settings = from_command_line("", words)
        assert (settings.network.hidden, settings.network.evidence) == (64, True)
        assert settings.training.learning_rate == 0.5 and settings.members.knn.weight == 0.4
        assert settings.members.linear_tree.weight == 0.35
        paper = from_command_line("", [*words, "--preset", "paper"])
        assert (paper.network.hidden, paper.network.evidence, paper.members.linear_tree.weight) == (64, False, 0)

    @pytest.mark.parametrize(
        "given, combiner",
        [
            ({}, "weighted"),
            ({"network_tree": {"weight": 0}}, "weighted"),
            ({"knn": {"neighbours": 7}}, "weighted"),
            ({"knn": {"weight": 0.4}}, "calibrated"),
            ({"network_tree": {"weight": 0}, "label_names": {"weight": 0.1}}, "calibrated"),
        ],
    )
    @pytest.mark.parametrize("preset", ["recommended", "auto"])
    def test_weights_that_the_user_gave_are_not_fitted(self, preset, given, combiner):
        assert load(preset=preset, corpus=OWN, members=given).ensemble.combiner == combiner
        for chosen in ("mean", "weighted"):
            ensemble = {"combiner": chosen}
            assert load(preset=preset, corpus=OWN, members=given, ensemble=ensemble).ensemble.combiner == chosen
        paper = load(preset="paper", corpus=OWN, members={"knn": {"weight": 1}})
        assert paper.ensemble.combiner == "mean"

    @pytest.mark.parametrize("weight, combiner", [("0", "weighted"), ("0.0", "weighted"), ("0.05", "calibrated")])
    def test_weights_on_the_command_line(self, weight, combiner):
        words = ["--corpus.train", "a.jsonl", "--preset", "auto", "--members.network_tree.weight", weight]
        assert from_command_line("", words).ensemble.combiner == combiner

    def test_a_wrong_preset_is_refused_by_name(self):
        with pytest.raises(SettingsError, match="preset"):
            load(preset="best", corpus=OWN)

    @pytest.mark.parametrize("preset", ["paper", "recommended", "auto"])
    def test_stored_settings_are_read_back_as_they_are(self, tmp_path, preset):
        changes = {
            "training": {"include_true_parents": True},
            "members": {"network_tree": {"weight": 0}, "knn": {"weight": 1}},
        }
        settings, _ = adapt(load(preset=preset, corpus=OWN, **changes), 300, 40, 200)
        file = tmp_path / "settings.yaml"
        file.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
        again, choices = adapt(load(file), 5_000_000, 3_000_000, 200)
        assert again.model_dump() == settings.model_dump() and not choices


class TestAuto:
    def test_few_texts_and_labels_get_one_network(self):
        settings, choices = adapt(load(preset="auto", corpus=OWN), SMALL_DOCUMENTS - 1, FLAT_LABELS, 200)
        assert settings.tree.height == 0 and settings.ensemble.trees == 1
        assert {"tree.height", "ensemble.trees"} <= {each.key for each in choices} and all(e.reason for e in choices)

    def test_what_the_user_gave_is_kept(self):
        words = ["--corpus.train", "a.jsonl", "--preset", "auto", "--tree.height", "2", "--training.batch_size=7"]
        settings, choices = adapt(from_command_line("", words), 300, 40, 200)
        assert settings.tree.height == 2 and settings.training.batch_size == 7
        assert not {"tree.height", "training.batch_size"} & {each.key for each in choices}

    @pytest.mark.parametrize(
        ("cpus", "documents", "changes", "share"),
        [
            (16, 3_000, {}, 5.0),
            (2, 3_000, {}, 0.66),
            (16, 300, {}, 16.0),  # one tree
            (16, 3_000, {"resources": {"workers": (1, 2)}}, 2.0),
            (16, 3_000, {"resources": {"cpus_per_worker": 3}}, 3.0),
            (16, 3_000, {"resources": {"gpus_per_worker": 1}}, 0.66),
            (None, 3_000, {}, 0.66),
        ],
    )
    def test_trees_divide_the_cpus_of_this_machine(self, cpus, documents, changes, share):
        settings, choices = adapt(load(preset="auto", corpus=OWN, **changes), documents, 5_000, 200, cpus)
        assert settings.resources.cpus_per_worker == share
        assert ("resources.cpus_per_worker" in {each.key for each in choices}) == (share in (5, 16, 2))
        assert settings.resources.cpus_per_worker * settings.ensemble.trees <= (cpus or 2)

    def test_no_neighbours_among_too_many_texts(self):
        load_auto = partial(load, preset="auto", corpus=OWN)
        settings, choices = adapt(load_auto(), KNN_DOCUMENTS, 5_000, 200)
        assert "knn" in settings.members.chosen and "members.knn.weight" not in {each.key for each in choices}
        few = load_auto(training={"documents": KNN_DOCUMENTS})
        assert adapt(few, KNN_DOCUMENTS + 1, 5_000, 200)[1] == adapt(few, KNN_DOCUMENTS, 5_000, 200)[1]
        settings, choices = adapt(load_auto(), KNN_DOCUMENTS + 1, 5_000, 200)
        assert set(settings.members.chosen) == {"network_tree", "linear_tree"}
        assert f"{KNN_DOCUMENTS + 1:,}" in next(each.reason for each in choices if each.key == "members.knn.weight")
        own_weight = {"knn": {"weight": 0.2}}
        assert "knn" in adapt(load_auto(members=own_weight), KNN_DOCUMENTS + 1, 5_000, 200)[0].members.chosen
        without_others = {"network_tree": {"weight": 0}, "linear_tree": {"weight": 0}}
        with pytest.raises(SettingsError, match="knn"):
            adapt(load_auto(members=without_others), KNN_DOCUMENTS + 1, 5_000, 200)
        # Titles of eight words.
        for documents, is_chosen in {16 * KNN_DOCUMENTS: True, 16 * KNN_DOCUMENTS + 1: False}.items():
            assert ("knn" in adapt(load_auto(), documents, 5_000, KNN_WORDS / 16)[0].members.chosen) == is_chosen

    def test_other_presets_choose_nothing(self):
        settings = load(preset="recommended", corpus=OWN)
        assert adapt(settings, 10, 3, 200) == (settings, [])

    @given(st.integers(1, 10**8), st.integers(1, 10**8), st.booleans(), st.sampled_from([2, 4, 16, 64]))
    def test_every_corpus_gets_valid_settings(self, documents, labels, names, size):
        corpus = {**OWN, **({"label_names": "names.tsv"} if names else {})}
        settings, choices = adapt(
            load(preset="auto", corpus=corpus, tree={"cluster_size": size}), documents, labels, 200
        )
        assert load(**settings.model_dump(exclude={"name"})).model_dump(exclude={"name"}) == settings.model_dump(
            exclude={"name"}
        )
        assert len({each.key for each in choices}) == len(choices)
        height = settings.tree.height
        assert height == 0 or labels / size**height <= 8_192

    def test_larger_corpora_get_no_more_passes(self):
        epochs = []
        for documents in (10_000, 100_000, 1_000_000):
            values = {each.key: each.value for each in choose(CorpusSize(documents, 5_000, 200, False, 16), ())}
            epochs.append(sum(values.get("training.epochs", (4, 3))))
        assert epochs == sorted(epochs, reverse=True)

    @pytest.mark.parametrize("group", ["tree", "network", "training", "members", "ensemble"])
    @pytest.mark.parametrize("words", [["--name", "{}"], ["--name={}"], ["--corpus.name", "{}"], ["--runs", "{}"]])
    def test_a_value_that_is_called_like_a_group_is_no_given_setting(self, group, words):
        given = ["--corpus.train", "a.jsonl", "--preset", "auto"]
        expected = adapt(from_command_line("", given), 300, 40, 200)[1]
        settings = from_command_line("", [*given, *(word.format(group) for word in words)])
        assert adapt(settings, 300, 40, 200)[1] == expected
        assert {key.partition(".")[0] for key in settings.given}.isdisjoint({group})

    def test_the_last_preset_counts(self):
        settings = from_command_line("", ["--corpus.train", "a.jsonl", "--preset", "auto", "--preset=paper"])
        assert settings.preset == "paper" and settings.network.hidden == load(corpus=OWN).network.hidden
        settings = from_command_line("", ["--preset", "paper", "--corpus.train", "a.jsonl", "--preset", "auto"])
        assert settings.preset == "auto" and settings.network.evidence
