"""Stacking against a literal evaluation of its regression trees, scikit-learn's trees, and fits of simulated data.

Run: pytest tests/ensemble/test_stacking.py
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from ensemble.random_rankings import CALIBRATION, COUNTS, rankings
from hypothesis import given
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor

from axml_ray.core.array_file import open_arrays, save_arrays
from axml_ray.core.ragged import Ragged
from axml_ray.ensemble import frequency
from axml_ray.ensemble import stacking as module
from axml_ray.ensemble.combiner import MemberWeights, Validation
from axml_ray.ensemble.frequency import Coefficients, FrequencyCalibration
from axml_ray.ensemble.stacking import FILE, LEARNING_RATE, MAX_DEPTH, MAX_LEAVES, NODES, Stacking
from axml_ray.members.topk import TopK

KINDS = ("network_tree", "knn")
IDENTITY = FrequencyCalibration(Coefficients(), COUNTS)


def tree(*nodes: tuple[int, float, int, int] | float) -> dict[str, np.ndarray]:
    """Build a regression tree from inner nodes (column, threshold, left, right) and leaves."""
    columns, thresholds, values = np.zeros(NODES, np.int64), np.zeros(NODES), np.zeros(NODES)
    children = np.arange(NODES)[:, None].repeat(2, axis=1)
    for index, node in enumerate(nodes):
        if isinstance(node, tuple):
            columns[index], thresholds[index], children[index] = node[0], node[1], node[2:]
        else:
            values[index] = node
    return {"columns": columns, "thresholds": thresholds, "children": children, "values": values}


def stacking(*trees: dict[str, np.ndarray]) -> Stacking:
    return Stacking(
        **{name: np.stack([one[name] for one in trees]) for name in trees[0]}, kinds=KINDS, start=CALIBRATION
    )


STACKING = stacking(
    tree((1, 0.25, 1, 2), -0.5, (3, 2.0, 3, 4), 1.5, (0, 0.5, 5, 6), 0.25, -2.0),
    tree((2, 0.125, 1, 2), 0.75, -0.25),
    tree(0.125),
)


def literal_score(stacked: Stacking, means: list[float], count: int) -> float:
    """Compute the score of a label from its mean scores (of all members, of each kind) and its training documents."""
    f, c = math.log(1 + count), stacked.start.coefficients
    clipped = min(max(means[0], frequency.MARGIN), 1 - frequency.MARGIN)
    log_odds = c.intercept + (c.score + c.both * f) * math.log(clipped / (1 - clipped)) + c.frequency * f
    columns = [*means, float(np.float32(f))]
    for number in range(len(stacked.columns)):
        node = 0
        while (left_right := stacked.children[number, node].tolist()) != [node, node]:
            node = left_right[int(columns[stacked.columns[number, node]] > stacked.thresholds[number, node])]
        log_odds += stacked.values[number, node]
    return 1 / (1 + math.exp(-log_odds))


def literal_means(members: MemberWeights, scores: list[float]) -> list[float]:
    """Compute the weighted mean of all members, then that of each kind; of all members if the kind is missing."""

    def mean(indices: list[int]) -> float:
        return sum(members.weights[i] * scores[i] for i in indices) / sum(members.weights[i] for i in indices)

    every = list(range(len(scores)))
    return [mean(every), *(mean([i for i in every if members.kinds[i] == kind] or every) for kind in KINDS)]


ALL_MEMBERS = MemberWeights(["network_tree", "network_tree", "knn"], [0.25, 0.25, 0.5])
PRESENT = {
    "all": ALL_MEMBERS,
    "a tree missing": MemberWeights(["network_tree", "knn"], [0.5, 0.5]),
    "kNN missing": MemberWeights(["network_tree", "network_tree"], [0.25, 0.25]),
    "only kNN": MemberWeights(["knn"], [0.5]),
}


@pytest.mark.parametrize("members", PRESENT.values(), ids=PRESENT)
@pytest.mark.parametrize("start", [IDENTITY, CALIBRATION], ids=["mean", "calibrated"])
class TestScores:
    @given(data=st.data(), k=st.integers(1, 9))
    def test_rankings_follow_the_equation(self, members, start, data, k):
        stacked, of_members = replace(STACKING, start=start), data.draw(rankings(len(members.kinds)))
        labels, scores = stacked.rank(members, of_members, k)
        assert (labels.dtype, scores.dtype) == (np.int32, np.float32) and labels.shape == scores.shape == (2, k)
        for document in range(2):
            score_of = [
                dict(zip(each.labels[document].tolist(), each.scores[document].tolist(), strict=True))
                for each in of_members
            ]
            means = {
                label: literal_means(members, [scores.get(label, 0.0) for scores in score_of])
                for label in sorted(set().union(*score_of) - {-1})
            }
            # The mean selects the top k labels, and stacking reorders them.
            selected = sorted(means, key=lambda label: -means[label][0])[:k]
            expected = {label: literal_score(stacked, means[label], int(COUNTS[label])) for label in selected}
            ranked = [label for label in labels[document].tolist() if label >= 0]
            assert set(ranked) == set(selected) and not scores[document, len(ranked) :].any()
            points = scores[document, : len(ranked)].tolist()
            assert points == pytest.approx([expected[label] for label in ranked], rel=1e-5)
            assert points == sorted(points, reverse=True)

    def test_scores_of_given_labels(self, members, start):
        labels, random = np.array([6, 0, 2]), np.random.default_rng(0)
        of_members = random.random((len(members.kinds), 4, 3)).astype(np.float32)
        stacked = replace(STACKING, start=start)
        scores = stacked.score(members, labels, list(of_members))
        assert scores.dtype == np.float32 and scores.shape == (4, 3)
        for document, column in np.ndindex(4, 3):
            means = literal_means(members, of_members[:, document, column].tolist())
            expected = literal_score(stacked, means, int(COUNTS[labels[column]]))
            assert scores[document, column] == pytest.approx(expected, rel=1e-5)


def test_chunks_of_pairs_do_not_change_scores(monkeypatch):
    of_members = list(np.random.default_rng(0).random((3, 7, 5)).astype(np.float32))
    expected = STACKING.score(ALL_MEMBERS, np.arange(5), of_members)
    monkeypatch.setattr(module, "PAIRS_PER_CHUNK", 3)
    assert np.array_equal(STACKING.score(ALL_MEMBERS, np.arange(5), of_members), expected)


BOTH = MemberWeights(KINDS, [0.5, 0.5])


def simulate(probability, documents: int, seed: int = 0) -> Validation:
    """Draw two members' rankings of six labels, each true with `probability(networks, knn, counts)`."""
    random = np.random.default_rng(seed)
    labels = np.argsort(random.random((documents, 6)), axis=1).astype(np.int32)
    networks, knn = random.random((2, documents, 6)).astype(np.float32) ** 3
    true = random.random(labels.shape) < probability(networks, knn, COUNTS[labels])
    truth = Ragged.from_rows([row[hit].tolist() for row, hit in zip(labels, true, strict=True)])
    return Validation(BOTH, [TopK(labels, networks), TopK(labels, knn)], truth, COUNTS)


def mean_error(stacked: Stacking, validation: Validation, probability) -> float:
    """Compute the mean absolute error of the scores as probabilities."""
    labels, scores = stacked.rank(BOTH, validation.rankings, 6)
    networks, knn = (ranking.scores_of(labels) for ranking in validation.rankings)
    return float(np.abs(scores - probability(networks, knn, COUNTS[labels])).mean())


def mean_score(networks, knn, counts):
    return (networks + knn) / 2


class TestFit:
    @pytest.fixture(autouse=True)
    def _few_folds(self, monkeypatch):
        monkeypatch.setattr(module, "FOLDS", 2)

    def test_fits_an_interaction_of_kinds_and_frequency(self):
        def probability(networks, knn, counts):
            return np.where((networks > 0.5) & (counts > 20), 0.9, np.where(knn > 0.5, 0.4, 0.02))

        train, test = simulate(probability, 700), simulate(probability, 700, seed=1)
        stacked = Stacking.fit(train, 6)
        assert mean_error(stacked, test, probability) < 0.035
        without_trees = replace(stacked, **{name: getattr(stacked, name)[:0] for name, *_ in module.ARRAYS})
        assert mean_error(without_trees, test, probability) > 0.06
        fewer = simulate(probability, 300)
        first, again = Stacking.fit(fewer, 6), Stacking.fit(fewer, 6)
        assert len(first.values) and np.array_equal(again.values, first.values)
        assert np.array_equal(again.thresholds, first.thresholds)

    def test_a_correct_start_is_hardly_changed(self):
        validation = simulate(mean_score, 500)
        assert mean_error(Stacking.fit(validation, 6), validation, mean_score) < 0.015

    def test_starts_from_the_frequency_calibration(self):
        def probability(networks, knn, counts):
            labels = np.searchsorted(-COUNTS, -counts)
            return 1 / (1 + np.exp(-CALIBRATION.log_odds(labels, (networks + knn) / 2)))

        validation = simulate(probability, 500)
        stacked = Stacking.fit(validation, 6)
        assert stacked.start.coefficients == FrequencyCalibration.fit(validation, 6).coefficients
        assert mean_error(stacked, validation, probability) < 0.015

    def test_a_few_wrong_labels_change_nothing(self):
        """Both kinds give the top label a high score, which is wrong in two of 600 documents."""
        validation = simulate(mean_score, 600)
        labels = validation.rankings[0].labels
        for ranking in validation.rankings:
            ranking.scores[:, 0] = 0.99
            ranking.scores[:2] = 0.999
        rows = [set(row.tolist()) for row in validation.truth]
        truth = [
            row - {best} if i < 2 else row | {best}
            for i, (row, best) in enumerate(zip(rows, labels[:, 0].tolist(), strict=True))
        ]
        with_errors = replace(validation, truth=Ragged.from_rows([sorted(row) for row in truth]))
        stacked = Stacking.fit(with_errors, 6)
        high = [np.full((1, 6), 0.999, np.float32)] * 2
        assert (stacked.score(BOTH, np.arange(6), high) > 0.99).all()

    def test_evaluates_trees_like_scikit_learn(self):
        random = np.random.default_rng(0)
        features, targets = random.random((3_000, 4)).astype(np.float32), random.random(3_000)
        theirs = [
            DecisionTreeRegressor(max_leaf_nodes=MAX_LEAVES, max_depth=MAX_DEPTH, random_state=seed).fit(
                features, targets
            )
            for seed in range(3)
        ]
        ours = Stacking(**module._as_arrays(theirs), kinds=KINDS, start=IDENTITY)
        expected = LEARNING_RATE * sum(each.predict(features) for each in theirs)
        np.testing.assert_allclose(ours._sum_of_trees(features), expected, rtol=1e-12)

    @pytest.mark.parametrize("documents", [0, 3])
    def test_too_few_documents_give_no_trees(self, documents):
        validation = simulate(mean_score, documents)
        stacked = Stacking.fit(validation, 6)
        assert len(stacked.columns) == 0
        ranking, start = (each.rank(BOTH, validation.rankings, 6) for each in (stacked, stacked.start))
        assert np.array_equal(ranking.labels, start.labels)
        np.testing.assert_allclose(ranking.scores, start.scores, rtol=1e-6)

    @pytest.mark.parametrize("all_true", [True, False])
    def test_only_true_or_only_false_labels_give_finite_scores(self, all_true):
        validation = simulate(lambda networks, *_: np.full(networks.shape, float(all_true)), 50)
        assert np.isfinite(Stacking.fit(validation, 6).rank(BOTH, validation.rankings, 6).scores).all()

    def test_fits_on_evenly_spaced_documents(self, monkeypatch):
        validation = simulate(mean_score, 30)
        monkeypatch.setattr(module, "MAX_DOCUMENTS", 10)
        rows = np.arange(0, 30, 3)
        third = replace(
            validation,
            rankings=[TopK(*(each[rows] for each in ranking)) for ranking in validation.rankings],
            truth=validation.truth.take(rows),
        )
        start = FrequencyCalibration.fit(validation, 6)
        monkeypatch.setattr(FrequencyCalibration, "fit", lambda validation, k: start)
        monkeypatch.setattr(module, "MIN_LEAF_PAIRS", 2)
        monkeypatch.setattr(module, "_choose_number_of_trees", lambda *_: 5)
        whole, part = Stacking.fit(validation, 6), Stacking.fit(third, 6)
        assert len(whole.values) == 5 and np.array_equal(whole.values, part.values)


class TestFile:
    def test_load_reads_what_save_wrote(self, tmp_path):
        STACKING.save(tmp_path)
        loaded = Stacking.load(tmp_path, COUNTS)
        assert all(np.array_equal(getattr(loaded, name), getattr(STACKING, name)) for name, *_ in module.ARRAYS)
        assert loaded.kinds == KINDS and loaded.start.coefficients == CALIBRATION.coefficients
        (tmp_path / frequency.FILE).unlink()
        with pytest.raises(FileNotFoundError):
            Stacking.load(tmp_path, COUNTS)
        with pytest.raises(FileNotFoundError):
            Stacking.load(tmp_path / "none", COUNTS)

    @pytest.mark.parametrize(
        ("name", "change", "what"),
        [
            ("columns", lambda it: it + 4, "columns .* 4 features"),
            ("columns", lambda it: it - 1, "columns .* 4 features"),
            ("columns", lambda it: it[:, :3].copy(), "columns .* 15 nodes"),
            ("children", lambda it: it + NODES, "children .* 15 nodes"),
            ("children", lambda it: it.astype(np.int32), "children .* dtype"),
            ("thresholds", lambda it: it[:2].copy(), "thresholds .* shape"),
            ("values", lambda it: it * np.nan, "not finite"),
        ],
    )
    def test_a_damaged_file_raises(self, tmp_path, name, change, what):
        STACKING.save(tmp_path)
        path = tmp_path / FILE
        arrays, metadata = open_arrays(path, module.METADATA)
        save_arrays({**arrays, name: change(arrays[name])}, path, metadata, "")
        with pytest.raises(ValueError, match=rf"stacking\.safetensors .*{what}"):
            Stacking.load(tmp_path, COUNTS)

    def test_other_kinds_or_metadata_raise(self, tmp_path):
        replace(STACKING, kinds=("knn",)).save(tmp_path)
        with pytest.raises(ValueError, match="3 features"):
            Stacking.load(tmp_path, COUNTS)
        arrays, _ = open_arrays(tmp_path / FILE, module.METADATA)
        save_arrays(arrays, tmp_path / FILE, module.METADATA, "")
        with pytest.raises(ValueError, match="kinds"):
            Stacking.load(tmp_path, COUNTS)
        save_arrays(arrays, tmp_path / FILE, {"format": "else"}, "")
        with pytest.raises(ValueError, match="its format is 'else', not 'axml-ray stacking'"):
            Stacking.load(tmp_path, COUNTS)

    def test_a_cycle_of_nodes_terminates(self, tmp_path):
        cycle = replace(stacking(tree((0, 0.5, 0, 1), (0, 0.5, 1, 0))), start=IDENTITY)
        cycle.save(tmp_path)
        score = Stacking.load(tmp_path, COUNTS).score(BOTH, np.array([0, 1]), [np.full((1, 2), 0.75, np.float32)] * 2)
        np.testing.assert_allclose(score, 0.75, rtol=1e-5)
