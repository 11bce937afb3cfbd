"""Run: pytest tests/members/test_network_tree.py

Beam search down trained trees of none, one and two levels of clusters, against every leaf's probability.
"""

import shutil

import numpy as np
import pytest
import torch
from tiny_corpus import experiment, write_corpus

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.members.network_tree import ACCELERATOR, NetworkTree
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.level_network import Beam
from axml_ray.runs.fitting import fit_run
from axml_ray.runs.run import Run
from axml_ray.training.beam_search import expand_rows
from axml_ray.training.level_files import LEVEL_MANIFEST, MODEL, ROWS

NAME = "network_tree-0"
SHAPES = {0: (14,), 1: (4, 14), 2: (4, 8, 14)}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("home")
    return home, write_corpus(home / "corpora" / "tiny")


@pytest.fixture(scope="module", params=[0, 1, 2], ids=["H=0", "H=1", "H=2"])
def run(request, home):
    """A run of one label tree: a few steps of training make unequal scores."""
    directory, corpus = home
    shape = {"height": request.param, "cluster_size": 2 if request.param == 2 else 4, "beam": 20}
    settings = experiment(directory, tree=shape, epochs=(2,))
    # With evidence no two nodes score alike to the last bit, as they do where all of the head's units are at zero.
    network = settings.network.model_copy(update={"evidence": True, "parent_score_exponent": request.param / 2})
    ensemble = settings.ensemble.model_copy(update={"trees": 1, "top_labels": 14})
    settings = settings.model_copy(update={"name": f"h{request.param}", "network": network, "ensemble": ensemble})
    run = Run(settings, corpus)
    fit_run(run)
    return run


@pytest.fixture
def member(run) -> NetworkTree:
    member = run.open_member(run.spec(NAME), None)
    assert member.tree.level_sizes == SHAPES[run.settings.tree.height]
    return member


@torch.no_grad()
def node_probabilities(member: NetworkTree, words: np.ndarray) -> list[list[float]]:
    """Of each level, the conditional probability of each node: one text, all of its nodes."""
    found = []
    tokens, length = torch.from_numpy(words.astype(np.int64))[None], torch.tensor([len(words)])
    for level, network in enumerate(member.networks):
        candidates = None
        if level:
            every = np.arange(member.tree.level_sizes[level - 1])[None]
            candidates = Candidates.from_parents(every, network.level)
        logits = network.logits(network.encode(tokens, length), length, candidates)[0]
        if candidates is not None:
            logits = logits[candidates.exists[0]]
        found.append(torch.sigmoid(logits.double()).tolist())
    return found


def weight_of(member: NetworkTree) -> float:
    return member.networks[0].parent_score_exponent


def label_probabilities(member: NetworkTree, words: np.ndarray) -> dict[int, float]:
    """Along the path to the label's leaf, each node's probability times its parent's score to the power of the path
    weight: with 1 the chain rule (equation 1)."""
    tree, probabilities = member.tree, node_probabilities(member, words)
    found = {}
    for leaf, label in enumerate(tree.label_order.tolist()):
        path = [leaf]
        for level in range(tree.height + 1, 1, -1):
            path.insert(0, int(tree.parents(level)[path[0]]))
        score = 1.0
        for level, node in enumerate(path):
            score = probabilities[level][node] * score ** weight_of(member)
        found[label] = score
    return found


def literal_beam(member: NetworkTree, words: np.ndarray, keep: int) -> set[int]:
    """Labels under the nodes that a beam of `keep` nodes reaches."""
    tree, probabilities = member.tree, node_probabilities(member, words)
    scores = dict(enumerate(probabilities[0]))
    for level in range(2, tree.height + 2):
        best = sorted(scores, key=lambda node: -scores[node])[:keep]
        parents = tree.parents(level).tolist()
        scores = {
            node: scores[parent] ** weight_of(member) * probabilities[level - 1][node]
            for node, parent in enumerate(parents)
            if parent in best
        }
    return {int(tree.label_order[leaf]) for leaf in scores}


def as_dictionaries(labels: np.ndarray, scores: np.ndarray) -> list[dict[int, float]]:
    return [
        {label: score for label, score in zip(row, points, strict=True) if label >= 0}
        for row, points in zip(labels.tolist(), scores.tolist(), strict=True)
    ]


class TestBeamSearch:
    def test_of_all_nodes_is_exhaustive(self, run, member):
        tokens = run.corpus.split("valid").tokens
        labels, scores = member.rank(TextViews(tokens), 14)
        assert labels.dtype == np.int32 and scores.dtype == np.float32
        assert (np.diff(scores, axis=1) <= 0).all()
        for row, found in enumerate(as_dictionaries(labels, scores)):
            expected = label_probabilities(member, tokens[row])
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-12)
            assert labels[row, 0] == max(expected, key=expected.get)

    def test_top_are_the_first_of_all(self, run, member):
        tokens = run.corpus.split("valid").tokens
        labels, scores = member.rank(TextViews(tokens), 14)
        few, best = member.rank(TextViews(tokens), 5)
        assert np.array_equal(few, labels[:, :5]) and np.array_equal(best, scores[:, :5])

    @pytest.mark.parametrize("keep", [1, 2, 3])
    def test_of_few_nodes(self, run, member, keep):
        narrow = NetworkTree(member.tree, member.networks, keep, precision="float32")
        tokens = run.corpus.split("valid").tokens
        labels, scores = narrow.rank(TextViews(tokens), 30)
        assert labels.shape == scores.shape == (len(tokens), 30)
        assert not scores[labels < 0].any()
        for row, found in enumerate(as_dictionaries(labels, scores)):
            reached = literal_beam(member, tokens[row], keep)
            assert set(found) == reached
            assert labels[row, len(reached) :].tolist() == [-1] * (30 - len(reached))
            every = label_probabilities(member, tokens[row])
            assert found == pytest.approx({label: every[label] for label in reached}, rel=1e-4)

    def test_does_not_depend_on_company_or_order(self, run, member, monkeypatch):
        tokens, ensemble = run.corpus.split("train").tokens, run.open_ensemble()
        whole = as_dictionaries(*ensemble.rank(tokens))
        for found, expected in zip(as_dictionaries(*member.rank(TextViews(tokens), 14)), whole, strict=True):
            assert found == pytest.approx(expected, rel=1e-4)
        order = np.random.default_rng(0).permutation(len(tokens))
        for place, found in enumerate(as_dictionaries(*ensemble.rank(tokens.take(order)))):
            assert found == pytest.approx(whole[order[place]], rel=1e-4)
        for row in (0, 3, len(tokens) - 1):
            alone = as_dictionaries(*member.rank(TextViews(tokens.take(np.array([row]))), 14))[0]
            assert alone == pytest.approx(whole[row], rel=1e-4)
        monkeypatch.setattr("axml_ray.members.text_batch.BATCH_DOCUMENTS", 7)
        for found, expected in zip(as_dictionaries(*ensemble.rank(tokens)), whole, strict=True):
            assert found == pytest.approx(expected, rel=1e-4)

    def test_does_not_depend_on_threads(self, run, monkeypatch):
        tokens, ensemble = run.corpus.split("train").tokens, run.open_ensemble()
        whole = as_dictionaries(*ensemble.rank(tokens))
        monkeypatch.setattr("axml_ray.members.text_batch.BATCH_DOCUMENTS", 7)
        try:
            for threads in (2, 3):
                torch.set_num_threads(threads)
                for found, expected in zip(as_dictionaries(*ensemble.rank(tokens)), whole, strict=True):
                    assert found == pytest.approx(expected, rel=1e-4)
                assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(1)

    def test_as_on_an_accelerator(self, run, monkeypatch):
        tokens, ensemble = run.corpus.split("train").tokens, run.open_ensemble()
        whole = as_dictionaries(*ensemble.rank(tokens))
        for member in ensemble.members.values():
            if isinstance(member, NetworkTree):
                monkeypatch.setattr(member, "on_accelerator", True)
                monkeypatch.setattr(member, "_turn", ACCELERATOR)
        monkeypatch.setattr("axml_ray.members.text_batch.ACCELERATOR_DOCUMENTS", 7)
        torch.set_num_threads(3)
        try:
            for found, expected in zip(as_dictionaries(*ensemble.rank(tokens)), whole, strict=True):
                assert found == pytest.approx(expected, rel=1e-4)
        finally:
            torch.set_num_threads(1)

    def test_no_texts(self, run, member):
        nothing, ensemble = Ragged.from_rows([]), run.open_ensemble()
        assert [(each.shape, each.dtype) for each in member.rank(TextViews(nothing), 5)] == [
            ((0, 5), np.int32),
            ((0, 5), np.float32),
        ]
        scores = member.score(TextViews(nothing), np.array([3, 0]))
        assert scores.shape == (0, 2) and scores.dtype == np.float32
        labels, scores = ensemble.rank(nothing)
        assert labels.shape == scores.shape == (0, 14)
        assert ensemble.score(nothing, np.array([3, 0])).shape == (0, 2)

    def test_learned_something(self, run, member):
        split = run.corpus.split("valid")
        labels, _ = member.rank(TextViews(split.tokens), 5)
        hits = sum(len(set(labels[row].tolist()) & set(split.labels[row].tolist())) for row in range(len(split)))
        assert hits > 0.6 * len(split.labels.values)  # chance is 5 of 14

    def test_given_labels_score_as_an_exhaustive_beam_does(self, run, member):
        tokens = run.corpus.split("valid").tokens
        narrow = NetworkTree(member.tree, member.networks, 1, precision="float32")
        given = np.array([5, 0, 13, 9])
        scores = narrow.score(TextViews(tokens), given)
        assert scores.dtype == np.float32 and scores.shape == (len(tokens), 4)
        for row in range(len(tokens)):
            every = label_probabilities(member, tokens[row])
            assert scores[row].tolist() == pytest.approx([every[label] for label in given.tolist()], rel=1e-4)


class TestScoring:
    def test_a_beam_with_fewer_nodes(self, run, member):
        """A document whose beam holds one node gets that node's children, whatever its batch's others have."""
        if len(member.networks) == 1:
            pytest.skip("no level below")
        tokens, (first, second, *_) = run.corpus.split("valid").tokens, member.networks
        beam = expand_rows(first, tokens, None, 4, precision="float32")
        whole = expand_rows(second, tokens, beam, 14, precision="float32")
        ragged = Beam(beam.nodes.clone(), beam.scores.clone())
        ragged.nodes[::2, 1:], ragged.scores[::2, 1:] = -1, -torch.inf
        found = expand_rows(second, tokens, ragged, 14, precision="float32")
        first_child = second.level.first_child
        for row in range(len(tokens)):
            kept = found.nodes[row] >= 0
            nodes, scores = found.nodes[row][kept].tolist(), found.scores[row]
            assert scores[~kept].isneginf().all()
            expected = dict(zip(whole.nodes[row].tolist(), whole.scores[row].tolist(), strict=True))
            best = int(beam.nodes[row, 0])
            children = range(first_child[best], first_child[best + 1]) if row % 2 == 0 else expected
            assert set(nodes) == set(children) - {-1}
            assert scores[kept].tolist() == pytest.approx([expected[node] for node in nodes], rel=1e-4, abs=1e-5)

    def test_no_documents(self, member):
        with pytest.raises(ValueError, match="no documents"):
            expand_rows(member.networks[0], Ragged.from_rows([]), None, 4)


class TestOpen:
    @pytest.fixture
    def copy(self, run, tmp_path) -> Run:
        shutil.copytree(run.settings.run_directory, tmp_path / run.settings.name)
        copy = Run(run.settings.model_copy(update={"runs": tmp_path}), run.corpus)
        copy.open_member(copy.spec(NAME), None)
        return copy

    @pytest.mark.fault("truncated weights of a level, at prediction", "files")
    @pytest.mark.parametrize("name", [MODEL, ROWS.format(0), LEVEL_MANIFEST])
    @pytest.mark.parametrize("missing", [False, True], ids=["cut short", "missing"])
    def test_an_incomplete_level(self, copy, name, missing):
        spec = copy.spec(NAME)
        path = spec.directory / f"level-{len(SHAPES[copy.settings.tree.height])}" / name
        path.unlink() if missing else path.write_bytes(path.read_bytes()[:-7])
        assert not spec.is_fitted
        with pytest.raises(SettingsError, match="tree-0/network_tree: no network tree 1 of these settings"):
            copy.open_member(spec, None)

    @pytest.mark.parametrize("name", [MODEL, ROWS.format(0)])
    def test_a_damaged_level(self, copy, name):
        """Of the right size."""
        spec = copy.spec(NAME)
        path = spec.directory / f"level-{len(SHAPES[copy.settings.tree.height])}" / name
        path.write_bytes(b"\xff" * path.stat().st_size)
        with pytest.raises(SettingsError, match=rf"{path.parent.name}.*remove .*tree-0/network_tree, and run axml-ray"):
            copy.open_member(spec, None)

    def test_other_settings(self, run):
        other = run.settings.model_copy(update={"training": run.settings.training.model_copy(update={"epochs": (9,)})})
        changed = Run(other, run.corpus)
        with pytest.raises(SettingsError, match="no network tree 1 of these settings"):
            changed.open_member(changed.spec(NAME), None)

    def test_how_often_training_is_saved_needs_no_new_fit(self, run):
        resources = run.settings.resources.model_copy(update={"checkpoint_minutes": 0.5})
        changed = Run(run.settings.model_copy(update={"resources": resources}), run.corpus)
        assert changed.spec(NAME).is_fitted

    def test_no_label_tree(self, copy):
        copy.layout.tree_file(0).unlink()
        with pytest.raises(SettingsError, match=r"tree-0/tree\.safetensors: no label tree"):
            copy.open_member(copy.spec(NAME), None)
