"""Run: pytest tests/inference/test_beam.py

Beam search down trained trees of none, one and two levels of clusters, against every leaf's probability.
"""

import numpy as np
import pytest
import torch
from axml_ray.inference.beam import TreePredictor
from axml_ray.inference.joining import Join
from axml_ray.linear.fitting import fit_linear
from tiny_corpus import experiment, train_tree, write_corpus

from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.level_network import Beam
from axml_ray.ragged import Ragged
from axml_ray.settings import LinearSettings, SettingsError
from axml_ray.training.beam_step import expand_rows
from axml_ray.training.level_files import LEVEL_MANIFEST, MODEL, ROWS
from axml_ray.training.tree import TREE, level_directory, tree_directory

SHAPES = {0: (14,), 1: (4, 14), 2: (4, 8, 14)}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("home")
    return home, write_corpus(home / "corpora" / "tiny")


@pytest.fixture(scope="module", params=[0, 1, 2], ids=["H=0", "H=1", "H=2"])
def run(request, home):
    """Settings, corpus, predictor: a few steps of training make unequal scores."""
    directory, corpus = home
    shape = {"height": request.param, "cluster_size": 2 if request.param == 2 else 4, "beam": 20}
    settings = experiment(directory, tree=shape, epochs=(4,))
    # With evidence no two nodes score alike to the last bit, as they do where all of the head's units are at zero.
    update = {"evidence": True, "path_weight": request.param / 2}
    network = settings.network.model_copy(update=update)
    settings = settings.model_copy(update={"name": f"h{request.param}", "network": network})
    train_tree(settings, corpus)
    predictor = TreePredictor.open(settings, corpus, 0)
    assert predictor.tree.level_sizes == SHAPES[request.param]
    return settings, corpus, predictor


@torch.no_grad()
def node_probabilities(predictor: TreePredictor, words: np.ndarray) -> list[list[float]]:
    """Of each level, the conditional probability of each node: one text, all of its nodes."""
    found = []
    tokens, length = torch.from_numpy(words.astype(np.int64))[None], torch.tensor([len(words)])
    for level, network in enumerate(predictor.networks):
        candidates = None
        if level:
            every = np.arange(predictor.tree.level_sizes[level - 1])[None]
            candidates = Candidates.from_parents(every, network.level)
        logits = network.logits(network.encode(tokens, length), length, candidates)[0]
        if candidates is not None:
            logits = logits[candidates.exists[0]]
        found.append(torch.sigmoid(logits.double()).tolist())
    return found


def weight_of(predictor: TreePredictor) -> float:
    return predictor.networks[0].path_weight


def label_probabilities(predictor: TreePredictor, words: np.ndarray) -> dict[int, float]:
    """Along the path to the label's leaf, each node's probability times its parent's score to the power of the path
    weight: with 1 the chain rule (equation 1)."""
    tree, probabilities = predictor.tree, node_probabilities(predictor, words)
    found = {}
    for leaf, label in enumerate(tree.label_order.tolist()):
        path = [leaf]
        for level in range(tree.height + 1, 1, -1):
            path.insert(0, int(tree.parents(level)[path[0]]))
        score = 1.0
        for level, node in enumerate(path):
            score = probabilities[level][node] * score ** weight_of(predictor)
        found[label] = score
    return found


def literal_beam(predictor: TreePredictor, words: np.ndarray, keep: int) -> set[int]:
    """Labels under the nodes that a beam of `keep` nodes reaches."""
    tree, probabilities = predictor.tree, node_probabilities(predictor, words)
    scores = dict(enumerate(probabilities[0]))
    for level in range(2, tree.height + 2):
        best = sorted(scores, key=lambda node: -scores[node])[:keep]
        parents = tree.parents(level).tolist()
        scores = {
            node: scores[parent] ** weight_of(predictor) * probabilities[level - 1][node]
            for node, parent in enumerate(parents)
            if parent in best
        }
    return {int(tree.label_order[leaf]) for leaf in scores}


def as_dictionaries(labels: np.ndarray, scores: np.ndarray) -> list[dict[int, float]]:
    return [
        {label: score for label, score in zip(row, points, strict=True) if label >= 0}
        for row, points in zip(labels.tolist(), scores.tolist(), strict=True)
    ]


class TestLinearClassifiers:
    """Beside the networks: joined with what they say, here by the mean."""

    @pytest.fixture
    def both(self, run):
        _, corpus, predictor = run
        train = corpus.split("train")
        linear = fit_linear(predictor.tree, train.tokens, train.labels, corpus.tokenizer.words, LinearSettings())
        tree, networks = predictor.tree, predictor.networks
        return TreePredictor(tree, networks, predictor.beam, predictor.precision, (linear, Join(0.3)))

    def test_scores_are_means(self, run, both):
        _, corpus, predictor = run
        tokens, labels = corpus.split("valid").tokens, np.array([3, 0, 11])
        linear = both.linear[0].score(both.see(tokens), labels)
        expected = 0.7 * predictor.score(tokens, labels) + 0.3 * linear
        np.testing.assert_allclose(both.score(tokens, labels), expected, rtol=1e-5)

    def test_rankings_are_joined(self, run, both):
        _, corpus, predictor = run
        tokens = corpus.split("valid").tokens
        found = as_dictionaries(*both.predict(tokens, 6))
        by_networks = as_dictionaries(*predictor.predict(tokens, 6))
        by_linear = as_dictionaries(*both.linear[0].find(both.see(tokens), 6))
        for members, alone in zip(both.by_members(tokens, 6), (by_networks, by_linear), strict=True):
            assert as_dictionaries(*members) == alone
        for joined, one, other in zip(found, by_networks, by_linear, strict=True):
            mean = {label: 0.7 * one.get(label, 0) + 0.3 * other.get(label, 0) for label in one.keys() | other.keys()}
            best = sorted(mean.values(), reverse=True)[:6]
            assert list(joined.values()) == pytest.approx(best, rel=1e-4)
            assert all(mean[label] == pytest.approx(score, rel=1e-4) for label, score in joined.items())


class TestBeamSearch:
    def test_of_all_nodes_is_exhaustive(self, run):
        _, corpus, predictor = run
        tokens = corpus.split("valid").tokens
        labels, scores = predictor.predict(tokens, 14)
        assert labels.dtype == np.int32 and scores.dtype == np.float32
        assert (np.diff(scores, axis=1) <= 0).all()
        for row, found in enumerate(as_dictionaries(labels, scores)):
            expected = label_probabilities(predictor, tokens[row])
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-12)
            assert labels[row, 0] == max(expected, key=expected.get)

    def test_top_are_the_first_of_all(self, run):
        _, corpus, predictor = run
        tokens = corpus.split("valid").tokens
        labels, scores = predictor.predict(tokens, 14)
        few, best = predictor.predict(tokens, 5)
        assert np.array_equal(few, labels[:, :5]) and np.array_equal(best, scores[:, :5])

    @pytest.mark.parametrize("keep", [1, 2, 3])
    def test_of_few_nodes(self, run, keep):
        _, corpus, predictor = run
        narrow = TreePredictor(predictor.tree, predictor.networks, keep, predictor.precision)
        tokens = corpus.split("valid").tokens
        labels, scores = narrow.predict(tokens, 30)
        assert labels.shape == scores.shape == (len(tokens), 30)
        assert not scores[labels < 0].any()
        for row, found in enumerate(as_dictionaries(labels, scores)):
            reached = literal_beam(predictor, tokens[row], keep)
            assert set(found) == reached
            assert labels[row, len(reached) :].tolist() == [-1] * (30 - len(reached))
            every = label_probabilities(predictor, tokens[row])
            assert found == pytest.approx({label: every[label] for label in reached}, rel=1e-4)

    def test_does_not_depend_on_company_or_order(self, run, monkeypatch):
        _, corpus, predictor = run
        tokens = corpus.split("train").tokens
        whole = as_dictionaries(*predictor.predict(tokens, 14))
        order = np.random.default_rng(0).permutation(len(tokens))
        for place, found in enumerate(as_dictionaries(*predictor.predict(tokens.take(order), 14))):
            assert found == pytest.approx(whole[order[place]], rel=1e-4)
        for row in (0, 3, len(tokens) - 1):
            alone = as_dictionaries(*predictor.predict(tokens.take(np.array([row])), 14))[0]
            assert alone == pytest.approx(whole[row], rel=1e-4)
        monkeypatch.setattr("axml_ray.inference.texts.BATCH_DOCUMENTS", 7)
        for found, expected in zip(as_dictionaries(*predictor.predict(tokens, 14)), whole, strict=True):
            assert found == pytest.approx(expected, rel=1e-4)

    def test_does_not_depend_on_threads(self, run, monkeypatch):
        _, corpus, predictor = run
        tokens = corpus.split("train").tokens
        whole = as_dictionaries(*predictor.predict(tokens, 14))
        monkeypatch.setattr("axml_ray.inference.texts.BATCH_DOCUMENTS", 7)
        try:
            for threads in (2, 3):
                torch.set_num_threads(threads)
                for found, expected in zip(as_dictionaries(*predictor.predict(tokens, 14)), whole, strict=True):
                    assert found == pytest.approx(expected, rel=1e-4)
                assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(1)

    def test_learned_something(self, run):
        _, corpus, predictor = run
        split = corpus.split("valid")
        labels, _ = predictor.predict(split.tokens, 5)
        hits = sum(len(set(labels[row].tolist()) & set(split.labels[row].tolist())) for row in range(len(split)))
        assert hits > 0.6 * len(split.labels.values)  # chance is 5 of 14

    def test_given_labels_score_as_an_exhaustive_beam_does(self, run):
        _, corpus, predictor = run
        tokens = corpus.split("valid").tokens
        narrow = TreePredictor(predictor.tree, predictor.networks, 1, predictor.precision)
        asked = np.array([5, 0, 13, 9])
        scores = narrow.score(tokens, asked)
        assert scores.dtype == np.float32 and scores.shape == (len(tokens), 4)
        for row in range(len(tokens)):
            every = label_probabilities(predictor, tokens[row])
            assert scores[row].tolist() == pytest.approx([every[label] for label in asked.tolist()], rel=1e-4)


class TestScoring:
    def test_a_beam_with_fewer_nodes(self, run):
        """A document whose beam holds one node gets that node's children, whatever its batch's others have."""
        _, corpus, predictor = run
        if len(predictor.networks) == 1:
            pytest.skip("no level below")
        tokens, (first, second, *_) = corpus.split("valid").tokens, predictor.networks
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

    def test_no_documents(self, run):
        with pytest.raises(ValueError, match="no documents"):
            expand_rows(run[2].networks[0], Ragged.from_rows([]), None, 4)


class TestOpen:
    @pytest.mark.parametrize("name", [MODEL, ROWS.format(0), LEVEL_MANIFEST])
    def test_a_level_cut_short(self, run, tmp_path, name):
        settings, corpus, _ = run
        moved = settings.model_copy(update={"runs": tmp_path})
        source, target = tree_directory(settings.run_directory, 0), tree_directory(moved.run_directory, 0)
        for file in source.rglob("*"):
            if file.is_file():
                copy = target / file.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_bytes())
        TreePredictor.open(moved, corpus, 0)
        last = level_directory(target, len(SHAPES[settings.tree.height])) / name
        last.write_bytes(last.read_bytes()[:-7])
        with pytest.raises(SettingsError, match=r"level-\d: no finished level"):
            TreePredictor.open(moved, corpus, 0)

    def test_other_settings(self, run):
        settings, corpus, _ = run
        other = settings.model_copy(update={"training": settings.training.model_copy(update={"epochs": (1,)})})
        with pytest.raises(SettingsError, match="no finished level of these settings"):
            TreePredictor.open(other, corpus, 0)

    def test_no_tree(self, run, tmp_path):
        settings, corpus, _ = run
        with pytest.raises(SettingsError, match=TREE):
            TreePredictor.open(settings.model_copy(update={"runs": tmp_path}), corpus, 0)
