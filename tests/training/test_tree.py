"""Run: pytest tests/training/test_tree.py

The levels of a tree are trained, and opened where they are whole.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_corpus import experiment, train_tree
from tree_runs import AT, ROWS_0, copied, key_of, label_tree, level_file, networks_of, opened, path_of, scored_at

from axml_ray.core.files import read_json, write_json
from axml_ray.corpus.store import Corpus
from axml_ray.network.fast.attention_xml import FusedAttentionXML
from axml_ray.network.level_network import TABLE
from axml_ray.network.tree_level import Level
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level import validation_score
from axml_ray.training.level_files import LEVEL_MANIFEST, MODEL, is_saved, load_level, save_level
from axml_ray.training.tree import level_directory, levels_are_finished


@pytest.fixture
def run(trained, tmp_path) -> Experiment:
    """A copy of the trained run, to be damaged."""
    return copied(trained, tmp_path / "runs")


def times(settings: Experiment) -> dict[int, int]:
    return {level: level_file(settings, level).stat().st_mtime_ns for level in (1, 2)}


class TestTraining:
    def test_each_level_learns(self, home, corpus):
        settings = experiment(home).model_copy(update={"name": "learned"})
        records = train_tree(settings, corpus)
        directory, tree = networks_of(settings), label_tree(settings)
        assert tree.level_sizes == (4, 14)
        assert levels_are_finished(directory, tree, Run(settings, corpus).spec("network_tree-0").key)
        for level in (1, 2):
            assert is_saved(level_directory(directory, level), key_of(settings, corpus, level))
            about = json.loads(level_file(settings, level, LEVEL_MANIFEST).read_text())
            assert about["nodes"] == tree.level_sizes[level - 1] and about["level"] == level
            assert about["steps"] == 6 * 15 and about["snapshots"] == 2
            assert about["valid_nDCG@5"] > 90
        assert opened(records) == []
        assert [record["scored"] for record in records if "scored" in record] == [300]
        assert {record["levels"] for record in records} == {2}

    def test_deep_level_starts_from_the_level_above(self, home, corpus):
        """Trained at next to no rate, a level is what it began as."""
        settings = experiment(home, learning_rate=1e-12, epochs=(1,)).model_copy(update={"name": "frozen"})
        train_tree(settings, corpus)
        tree = label_tree(settings)
        levels = []
        for number in (1, 2):
            vectors = torch.zeros(corpus.word_vectors().shape)
            network = FusedAttentionXML(Level.from_tree(tree, number), vectors, settings.network)
            load_level(network, level_directory(networks_of(settings), number))
            levels.append(network.state_dict())
        assert np.allclose(levels[0]["encoder.embedding.weight"], corpus.word_vectors(), atol=1e-6)
        for name in levels[0].keys() - {TABLE}:
            torch.testing.assert_close(levels[0][name], levels[1][name], rtol=0, atol=1e-6)
        assert levels[1][TABLE].shape == (4, 4 * 20)

    def test_evaluations_take_a_sample_of_many_validation_documents(self, home, corpus, monkeypatch):
        """Of beams, too; the level's score is that of the sample's weights."""
        monkeypatch.setattr("axml_ray.training.tree.EVALUATED", 7)
        sizes = []

        def counted(network, validation, *rest):
            sizes.append(len(validation.tokens))
            return validation_score(network, validation, *rest)

        monkeypatch.setattr("axml_ray.training.level.validation_score", counted)
        settings = experiment(home, epochs=(1,)).model_copy(update={"name": "sampled"})
        train_tree(settings, corpus)
        assert len(corpus.split("valid")) > 7 and set(sizes) == {7} and len(sizes) >= 2

    def test_without_a_tree(self, home, corpus):
        settings = experiment(home, tree={"height": 0}, epochs=(12,)).model_copy(update={"name": "flat"})
        train_tree(settings, corpus)
        about = json.loads(level_file(settings, 1, LEVEL_MANIFEST).read_text())
        assert about["nodes"] == 14 and about["valid_nDCG@5"] > 90
        assert not level_file(settings, 2).exists()

    @pytest.mark.parametrize("precision", ["float32", "bfloat16"])
    def test_a_level_says_in_what_it_was_computed(self, precision, home, corpus):
        settings = experiment(home, tree={"height": 0}, epochs=(1,), precision=precision)
        settings = settings.model_copy(update={"name": precision})
        train_tree(settings, corpus)
        assert json.loads(level_file(settings, 1, LEVEL_MANIFEST).read_text())["computed_in"] == precision

    @pytest.mark.parametrize("decided", ["float32", "bfloat16"])
    def test_what_auto_decided_once_is_kept(self, decided, home, corpus):
        """By the level that is trained next, and by processes that predict, whatever is faster where they run."""
        settings = experiment(home, epochs=(1,), precision="auto").model_copy(update={"name": f"auto-{decided}"})
        run = Run(settings, corpus)
        run.layout.directory.mkdir(parents=True)
        # Another tree of the run was the first to start, perhaps on another machine.
        write_json(run.layout.number_format("cpu"), decided)
        train_tree(settings, corpus)
        for level in (1, 2):
            assert json.loads(level_file(settings, level, LEVEL_MANIFEST).read_text())["computed_in"] == decided
        run.spec("network_tree-0").mark_fitted()
        assert run.open_member(run.spec("network_tree-0"), None).precision == decided

    def test_the_first_tree_decides_what_auto_is(self, home, corpus):
        settings = experiment(home, tree={"height": 0}, epochs=(1,), precision="auto")
        settings = settings.model_copy(update={"name": "auto-first"})
        train_tree(settings, corpus)
        computed_in = json.loads(level_file(settings, 1, LEVEL_MANIFEST).read_text())["computed_in"]
        assert read_json(Run(settings, corpus).layout.number_format("cpu")) == computed_in

    def test_two_levels_of_clusters(self, home, corpus):
        settings = experiment(home, tree={"height": 2, "cluster_size": 2, "beam": 3})
        settings = settings.model_copy(update={"name": "high"})
        train_tree(settings, corpus)
        abouts = [json.loads(level_file(settings, level, LEVEL_MANIFEST).read_text()) for level in (1, 2, 3)]
        assert [about["nodes"] for about in abouts] == [4, 8, 14]
        assert abouts[2]["valid_nDCG@5"] > 85


class TestResuming:
    def test_finished_levels_are_opened(self, run, corpus):
        before = times(run)
        assert opened(train_tree(run, corpus, build=False)) == [1, 2]
        assert times(run) == before

    def test_after_a_kill_before_the_mark_nothing_is_scored_or_left(self, run, corpus):
        """The beams of a finished tree are gone, and its member was not yet marked as fitted."""
        spec = Run(run, corpus).spec("network_tree-0")
        (spec.directory / "member.json").unlink(missing_ok=True)
        for name in ("level-1.scored", "level-2.checkpoint", ".level-2.checkpoint.0123abcd", ".level-1.89abcdef.old"):
            (spec.directory / name).mkdir()
            (spec.directory / name / "file").write_text("large")
        records = train_tree(run, corpus, build=False)
        assert not [record for record in records if record.keys() & {"scored", "scored_so_far", "begun"}]
        assert opened(records) == [1, 2]
        assert sorted(path.name for path in spec.directory.iterdir()) == ["level-1", "level-2"]

    def test_a_level_whose_replacement_a_kill_interrupted_is_found(self, run, corpus):
        directory = level_file(run, 1).parent
        directory.rename(directory.with_name(".level-1.0123abcd"))
        directory.with_name(".level-1.0123abcd.old").mkdir()
        assert opened(train_tree(run, corpus, build=False)) == [1, 2]

    @pytest.mark.fault("truncated weights of a level", "files", work_repeated="the level")
    @pytest.mark.parametrize("name", [MODEL, ROWS_0])
    @pytest.mark.parametrize("level", [1, 2])
    def test_a_torn_file_is_trained_again(self, run, corpus, level, name):
        file = level_file(run, level, name)
        whole, before = file.read_bytes(), times(run)
        file.write_bytes(whole[:-7])
        assert opened(train_tree(run, corpus, build=False)) == [3 - level]
        after = times(run)
        assert after[3 - level] == before[3 - level] and after[level] > before[level]
        # and comes out the same, to the last bit, from a level above that was opened or trained
        assert file.read_bytes() == whole
        assert opened(train_tree(run, corpus, build=False)) == [1, 2]

    @pytest.mark.parametrize("content", [None, "", "{", "[]", "{}"])
    def test_without_a_whole_manifest_it_is_trained_again(self, run, corpus, content):
        file = level_file(run, 2, LEVEL_MANIFEST)
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
        assert not is_saved(file.parent, key_of(run, corpus, 2))
        assert not levels_are_finished(file.parent.parent, label_tree(run), Run(run, corpus).members[0].key)

    def test_another_cache_key(self, run, corpus):
        file = level_file(run, 1, LEVEL_MANIFEST)
        file.write_text(file.read_text().replace(key_of(run, corpus, 1), "0123456789ab"))
        assert opened(train_tree(run, corpus, build=False)) == [2]

    def test_other_settings(self, run, corpus):
        other = run.model_copy(update={"training": run.training.model_copy(update={"epochs": (1,)})})
        before = times(run)
        assert opened(train_tree(other, corpus, build=False)) == []
        assert all(times(run)[level] > before[level] for level in (1, 2))

    def test_what_the_cache_key_depends_on(self, run, corpus):
        def key(settings: Experiment = run, tree: int = 0, level: int = 1, corpus: Corpus = corpus) -> str:
            settings = settings.model_copy(update={"ensemble": settings.ensemble.model_copy(update={"trees": 2})})
            return key_of(settings, corpus, level, tree)

        changes = {
            "seed": 4,
            "tree": run.tree.model_copy(update={"beam": 4}),
            "network": run.network.model_copy(update={"hidden": 11}),
            "training": run.training.model_copy(update={"patience_steps": 9_999}),
        }
        keys = [key(run.model_copy(update={name: value})) for name, value in changes.items()]
        keys += [key(), key(tree=1), key(level=2)]
        keys.append(key(corpus=Corpus(corpus.directory, {**corpus.manifest, "fingerprint": "other"})))
        assert len(set(keys)) == len(keys)
        rare = run.resources.model_copy(update={"checkpoint_minutes": 99})
        assert key(run.model_copy(update={"resources": rare})) == key()
        assert key(run.model_copy(update={"name": "x", "runs": Path("/elsewhere")})) == key()

    @pytest.mark.parametrize("name", ["save_rows", "save_tensors", "write_json"])
    def test_an_interrupted_save_leaves_the_old_level(self, run, corpus, monkeypatch, name):
        directory = level_file(run, 1).parent
        tree = label_tree(run)
        network = FusedAttentionXML(Level.from_tree(tree, 1), torch.zeros(corpus.word_vectors().shape), run.network)
        before = {path: path.read_bytes() for path in directory.iterdir()}
        assert {path.name for path in before} == {LEVEL_MANIFEST, MODEL, ROWS_0}

        def killed(*rest):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(f"axml_ray.training.level_files.{name}", killed)
            with pytest.raises(KeyboardInterrupt):
                save_level(network, directory, "key", {}, DistributedContext())
        assert {path: path.read_bytes() for path in directory.iterdir()} == before
        # what is left of it is in nobody's way
        save_level(network, directory, "key", {}, DistributedContext())
        assert is_saved(directory, "key")
        assert sorted(path.name for path in directory.parent.iterdir()) == ["level-1", "level-2"]

    def test_a_level_that_is_wanted_again_starts_from_nothing(self, run, corpus):
        """Its checkpoint is gone with its end."""
        level_file(run, 2, LEVEL_MANIFEST).unlink()
        records = train_tree(run, corpus, build=False)
        assert scored_at(records) == AT

    def test_a_checkpoint_beside_a_finished_level_is_removed(self, run, corpus):
        """Of a worker that was killed between the two."""
        left = path_of(run, 1, "checkpoint")
        left.mkdir()
        (left / "file").write_text("large")
        train_tree(run, corpus, build=False)
        assert not left.exists()
