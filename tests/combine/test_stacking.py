"""Stacking against a literal walk through its regression trees, scikit-learn's own, and laws that it is to find.

Run: pytest tests/combine/test_stacking.py
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from combine.some_rankings import COUNTS, UNEVEN, rankings
from hypothesis import given
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor

from axml_ray.combine import frequency
from axml_ray.combine import stacking as module
from axml_ray.combine.combiner import Validation, Weighted
from axml_ray.combine.frequency import Coefficients, FrequencyCalibration
from axml_ray.combine.stacking import DEPTH, FILE, LEAVES, NODES, STEP, Stacking
from axml_ray.members.topk import TopK
from axml_ray.ragged import Ragged
from axml_ray.storage.array_file import open_arrays, save_arrays

KINDS = ("network_tree", "knn")
AS_THEY_ARE = FrequencyCalibration(Coefficients(), COUNTS)


def tree(*nodes: tuple[int, float, int, int] | float) -> dict[str, np.ndarray]:
    """One regression tree, of inner nodes (column, threshold, left, right) and leaves."""
    columns, thresholds, values = np.zeros(NODES, np.int64), np.zeros(NODES), np.zeros(NODES)
    children = np.arange(NODES)[:, None].repeat(2, axis=1)
    for place, node in enumerate(nodes):
        if isinstance(node, tuple):
            columns[place], thresholds[place], children[place] = node[0], node[1], node[2:]
        else:
            values[place] = node
    return {"columns": columns, "thresholds": thresholds, "children": children, "values": values}


def stacking(*trees: dict[str, np.ndarray]) -> Stacking:
    return Stacking(**{name: np.stack([one[name] for one in trees]) for name in trees[0]}, kinds=KINDS, start=UNEVEN)


STACKING = stacking(
    tree((1, 0.25, 1, 2), -0.5, (3, 2.0, 3, 4), 1.5, (0, 0.5, 5, 6), 0.25, -2.0),
    tree((2, 0.125, 1, 2), 0.75, -0.25),
    tree(0.125),
)


def literal(stacked: Stacking, means: list[float], count: int) -> float:
    """The score of a label by its mean score, those of each kind, and its training documents."""
    f, c = math.log(1 + count), stacked.start.coefficients
    inside = min(max(means[0], frequency.LEAST), 1 - frequency.LEAST)
    log_odds = c.intercept + (c.score + c.both * f) * math.log(inside / (1 - inside)) + c.frequency * f
    columns = [*means, float(np.float32(f))]
    for number in range(len(stacked.columns)):
        node = 0
        while (left_right := stacked.children[number, node].tolist()) != [node, node]:
            node = left_right[int(columns[stacked.columns[number, node]] > stacked.thresholds[number, node])]
        log_odds += stacked.values[number, node]
    return 1 / (1 + math.exp(-log_odds))


def literal_means(members: Weighted, scores: list[float]) -> list[float]:
    """The weighted mean of the members' scores, then that of each kind, or of all where the kind is away."""

    def mean(own: list[int]) -> float:
        return sum(members.weights[i] * scores[i] for i in own) / sum(members.weights[i] for i in own)

    every = list(range(len(scores)))
    return [mean(every), *(mean([i for i in every if members.kinds[i] == kind] or every) for kind in KINDS)]


WHOLE = Weighted(["network_tree", "network_tree", "knn"], [0.25, 0.25, 0.5])
PARTS = {
    "all": WHOLE,
    "a tree away": Weighted(["network_tree", "knn"], [0.5, 0.5]),
    "kNN away": Weighted(["network_tree", "network_tree"], [0.25, 0.25]),
    "kNN alone": Weighted(["knn"], [0.5]),
}


@pytest.mark.parametrize("members", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("start", [AS_THEY_ARE, UNEVEN], ids=["the mean", "calibrated"])
class TestScores:
    @given(data=st.data(), k=st.integers(1, 9))
    def test_are_the_equations_and_ranked(self, members, start, data, k):
        stacked, of_members = replace(STACKING, start=start), data.draw(rankings(len(members.kinds)))
        labels, scores = stacked.rank(members, of_members, k)
        assert (labels.dtype, scores.dtype) == (np.int32, np.float32) and labels.shape == scores.shape == (2, k)
        for document in range(2):
            known = [
                dict(zip(each.labels[document].tolist(), each.scores[document].tolist(), strict=True))
                for each in of_members
            ]
            means = {
                label: literal_means(members, [own.get(label, 0.0) for own in known])
                for label in sorted(set().union(*known) - {-1})
            }
            # The best by the mean alone, which then change places.
            kept = sorted(means, key=lambda label: -means[label][0])[:k]
            expected = {label: literal(stacked, means[label], int(COUNTS[label])) for label in kept}
            there = [label for label in labels[document].tolist() if label >= 0]
            assert set(there) == set(kept) and not scores[document, len(there) :].any()
            points = scores[document, : len(there)].tolist()
            assert points == pytest.approx([expected[label] for label in there], rel=1e-5)
            assert points == sorted(points, reverse=True)

    def test_of_given_labels(self, members, start):
        labels, random = np.array([6, 0, 2]), np.random.default_rng(0)
        own = random.random((len(members.kinds), 4, 3)).astype(np.float32)
        stacked = replace(STACKING, start=start)
        scores = stacked.score(members, labels, list(own))
        assert scores.dtype == np.float32 and scores.shape == (4, 3)
        for document, place in np.ndindex(4, 3):
            means = literal_means(members, own[:, document, place].tolist())
            expected = literal(stacked, means, int(COUNTS[labels[place]]))
            assert scores[document, place] == pytest.approx(expected, rel=1e-5)


def test_pairs_are_walked_in_steps(monkeypatch):
    own = list(np.random.default_rng(0).random((3, 7, 5)).astype(np.float32))
    expected = STACKING.score(WHOLE, np.arange(5), own)
    monkeypatch.setattr(module, "PAIRS", 3)
    assert np.array_equal(STACKING.score(WHOLE, np.arange(5), own), expected)


BOTH = Weighted(KINDS, [0.5, 0.5])


def drawn(law, documents: int, seed: int = 0) -> Validation:
    """Rankings by two members of six labels, each of which is true by a law of both scores and the label's count."""
    random = np.random.default_rng(seed)
    labels = np.argsort(random.random((documents, 6)), axis=1).astype(np.int32)
    networks, neighbours = random.random((2, documents, 6)).astype(np.float32) ** 3
    true = random.random(labels.shape) < law(networks, neighbours, COUNTS[labels])
    truth = Ragged.from_rows([row[hit].tolist() for row, hit in zip(labels, true, strict=True)])
    return Validation(BOTH, [TopK(labels, networks), TopK(labels, neighbours)], truth, COUNTS)


def mean_error(stacked: Stacking, validation: Validation, law) -> float:
    """Of the scores against the law."""
    labels, scores = stacked.rank(BOTH, validation.rankings, 6)
    networks, neighbours = (ranking.scores_of(labels) for ranking in validation.rankings)
    return float(np.abs(scores - law(networks, neighbours, COUNTS[labels])).mean())


def mean_law(networks, neighbours, counts):
    return (networks + neighbours) / 2


class TestFit:
    def test_finds_that_one_kind_counts_where_the_other_is_silent(self):
        def law(networks, neighbours, counts):
            return np.where((networks > 0.5) & (counts > 20), 0.9, np.where(neighbours > 0.5, 0.4, 0.02))

        known, new = drawn(law, 1_500), drawn(law, 1_500, seed=1)
        stacked = Stacking.fit(known, 6)
        assert mean_error(stacked, new, law) < 0.03
        without_trees = replace(stacked, **{name: getattr(stacked, name)[:0] for name, *_ in module.ARRAYS})
        assert mean_error(without_trees, new, law) > 0.06
        again = Stacking.fit(known, 6)
        assert np.array_equal(again.values, stacked.values) and np.array_equal(again.thresholds, stacked.thresholds)

    def test_where_the_start_is_right_next_to_nothing_is_learned(self):
        validation = drawn(mean_law, 1_500)
        assert mean_error(Stacking.fit(validation, 6), validation, mean_law) < 0.01

    def test_starts_from_the_calibration(self):
        def law(networks, neighbours, counts):
            labels = np.searchsorted(-COUNTS, -counts)
            return 1 / (1 + np.exp(-UNEVEN.log_odds(labels, (networks + neighbours) / 2)))

        validation = drawn(law, 1_500)
        stacked = Stacking.fit(validation, 6)
        assert stacked.start.coefficients == FrequencyCalibration.fit(validation, 6).coefficients
        assert mean_error(stacked, validation, law) < 0.01

    def test_a_few_mistakes_teach_nothing(self):
        """Where both kinds are sure, five documents of many are wrong."""
        validation = drawn(mean_law, 1_500)
        labels = validation.rankings[0].labels
        for ranking in validation.rankings:
            ranking.scores[:, 0] = 0.99
            ranking.scores[:5] = 0.999
        rows = [set(row.tolist()) for row in validation.truth]
        truth = [
            row - {best} if i < 5 else row | {best}
            for i, (row, best) in enumerate(zip(rows, labels[:, 0].tolist(), strict=True))
        ]
        mistaken = replace(validation, truth=Ragged.from_rows([sorted(row) for row in truth]))
        stacked = Stacking.fit(mistaken, 6)
        sure = [np.full((1, 6), 0.999, np.float32)] * 2
        assert (stacked.score(BOTH, np.arange(6), sure) > 0.99).all()

    def test_its_trees_are_scikit_learns(self):
        random = np.random.default_rng(0)
        table, wanted = random.random((3_000, 4)).astype(np.float32), random.random(3_000)
        theirs = [
            DecisionTreeRegressor(max_leaf_nodes=LEAVES, max_depth=DEPTH, random_state=seed).fit(table, wanted)
            for seed in range(3)
        ]
        ours = Stacking(**module._as_arrays(theirs), kinds=KINDS, start=AS_THEY_ARE)
        expected = STEP * sum(one.predict(table) for one in theirs)
        np.testing.assert_allclose(ours._sum_of_leaves(table), expected, rtol=1e-12)

    @pytest.mark.parametrize("documents", [0, 3])
    def test_a_handful_of_documents_teaches_nothing(self, documents):
        validation = drawn(mean_law, documents)
        stacked = Stacking.fit(validation, 6)
        assert len(stacked.columns) == 0
        one, other = (each.rank(BOTH, validation.rankings, 6) for each in (stacked, stacked.start))
        assert np.array_equal(one.labels, other.labels)
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-6)

    @pytest.mark.parametrize("all_true", [True, False])
    def test_nothing_to_tell_by(self, all_true):
        validation = drawn(lambda networks, *_: np.full(networks.shape, float(all_true)), 50)
        assert np.isfinite(Stacking.fit(validation, 6).rank(BOTH, validation.rankings, 6).scores).all()

    def test_more_documents_are_thinned_out_evenly(self, monkeypatch):
        validation = drawn(mean_law, 30)
        monkeypatch.setattr(module, "DOCUMENTS", 10)
        rows = np.arange(0, 30, 3)
        third = replace(
            validation,
            rankings=[TopK(*(each[rows] for each in ranking)) for ranking in validation.rankings],
            truth=validation.truth.take(rows),
        )
        start = FrequencyCalibration.fit(validation, 6)
        monkeypatch.setattr(FrequencyCalibration, "fit", lambda validation, k: start)
        monkeypatch.setattr(module, "LEAST", 2)
        monkeypatch.setattr(module, "_best_number", lambda *_: 5)
        whole, part = Stacking.fit(validation, 6), Stacking.fit(third, 6)
        assert len(whole.values) == 5 and np.array_equal(whole.values, part.values)


class TestFile:
    def test_is_read_back(self, tmp_path):
        STACKING.save(tmp_path)
        again = Stacking.load(tmp_path, COUNTS)
        assert all(np.array_equal(getattr(again, name), getattr(STACKING, name)) for name, *_ in module.ARRAYS)
        assert again.kinds == KINDS and again.start.coefficients == UNEVEN.coefficients
        (tmp_path / frequency.FILE).unlink()
        with pytest.raises(FileNotFoundError):
            Stacking.load(tmp_path, COUNTS)
        with pytest.raises(FileNotFoundError):
            Stacking.load(tmp_path / "none", COUNTS)

    @pytest.mark.parametrize(
        ("name", "change", "what"),
        [
            ("columns", lambda it: it + 4, "compares more than 4 features"),
            ("columns", lambda it: it - 1, "compares more than 4 features"),
            ("columns", lambda it: it[:, :3].copy(), "columns are not those of regression trees of 15 nodes"),
            ("children", lambda it: it + NODES, "nodes that do not exist"),
            ("children", lambda it: it.astype(np.int32), "children are not those of regression trees"),
            ("thresholds", lambda it: it[:2].copy(), "thresholds are not those of regression trees"),
            ("values", lambda it: it * np.nan, "not finite"),
        ],
    )
    def test_damage_is_refused(self, tmp_path, name, change, what):
        STACKING.save(tmp_path)
        path = tmp_path / FILE
        arrays, about = open_arrays(path, module.ABOUT)
        save_arrays({**arrays, name: change(arrays[name])}, path, about, "")
        with pytest.raises(ValueError, match=rf"stacking\.safetensors holds no stacking: .*{what}"):
            Stacking.load(tmp_path, COUNTS)

    def test_a_file_of_other_kinds_or_none_is_refused(self, tmp_path):
        replace(STACKING, kinds=("knn",)).save(tmp_path)
        with pytest.raises(ValueError, match="compares more than 3 features"):
            Stacking.load(tmp_path, COUNTS)
        arrays, _ = open_arrays(tmp_path / FILE, module.ABOUT)
        save_arrays(arrays, tmp_path / FILE, module.ABOUT, "")
        with pytest.raises(ValueError, match="kinds"):
            Stacking.load(tmp_path, COUNTS)
        save_arrays(arrays, tmp_path / FILE, {"format": "else"}, "")
        with pytest.raises(ValueError, match="its format is 'else', not 'axml-ray stacking'"):
            Stacking.load(tmp_path, COUNTS)

    def test_a_circle_ends(self, tmp_path):
        circle = replace(stacking(tree((0, 0.5, 0, 1), (0, 0.5, 1, 0))), start=AS_THEY_ARE)
        circle.save(tmp_path)
        score = Stacking.load(tmp_path, COUNTS).score(BOTH, np.array([0, 1]), [np.full((1, 2), 0.75, np.float32)] * 2)
        np.testing.assert_allclose(score, 0.75, rtol=1e-5)
