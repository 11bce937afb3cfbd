"""The weighted mean, and combinations of all or some of the ensemble's members.

Run: pytest tests/ensemble/test_combiner.py
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from ensemble.random_rankings import CALIBRATION, COUNTS, rankings
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.ensemble.combiner import (
    COMBINERS,
    FOLDS,
    Combiner,
    Mean,
    MemberWeights,
    Validation,
    combiner_class,
    out_of_fold,
)
from axml_ray.ensemble.ensemble import Combination
from axml_ray.members.member import MemberInfo

MEMBERS = (
    MemberInfo("network_tree-0", "network_tree", 0, 0.125),
    MemberInfo("network_tree-1", "network_tree", 1, 0.125),
    MemberInfo("linear_tree-0", "linear_tree", 0, 0.125),
    MemberInfo("linear_tree-1", "linear_tree", 1, 0.125),
    MemberInfo("knn", "knn", None, 0.5),
)
NAMES = [member.name for member in MEMBERS]
some_members = st.sets(st.sampled_from(NAMES), min_size=1)
LABELS = np.arange(len(COUNTS))


def literal_shares(present: set[str]) -> dict[str, float]:
    """Divide each kind's weight among its present members, and normalise the weights."""
    kinds = {member.kind for member in MEMBERS if member.name in present}
    weight = {kind: sum(member.weight for member in MEMBERS if member.kind == kind) for kind in kinds}
    count = {kind: sum(member.kind == kind and member.name in present for member in MEMBERS) for kind in kinds}
    total = sum(weight.values())
    return {
        member.name: weight[member.kind] / count[member.kind] / total for member in MEMBERS if member.name in present
    }


def literal_mean(present: set[str], by_name: Mapping[str, TopK], document: int) -> dict[int, float]:
    """Compute the weighted mean of each label that a member ranks."""
    total: dict[int, float] = {}
    for name, share in literal_shares(present).items():
        labels, scores = by_name[name]
        for label, score in zip(labels[document].tolist(), scores[document].tolist(), strict=True):
            if label >= 0:
                total[label] = total.get(label, 0.0) + share * score
    return total


class TestMean:
    @given(rankings(3), st.lists(st.integers(1, 9), min_size=3, max_size=3), st.integers(1, 9))
    def test_ranks_by_the_literal_weighted_mean(self, of_members: list[TopK], weights: list[int], k: int):
        members = MemberWeights(["a", "b", "b"], weights)
        assert members.shares == pytest.approx([weight / sum(weights) for weight in weights])
        labels, scores = Mean().rank(members, of_members, k)
        assert (labels.dtype, scores.dtype, labels.shape, scores.shape) == (np.int32, np.float32, (2, k), (2, k))
        for document in range(2):
            total: dict[int, float] = {}
            for ranking, weight in zip(of_members, weights, strict=True):
                pairs = zip(ranking.labels[document].tolist(), ranking.scores[document].tolist(), strict=True)
                for label, score in pairs:
                    if label >= 0:
                        total[label] = total.get(label, 0.0) + weight * score
            expected = sorted((score / sum(weights) for score in total.values()), reverse=True)[:k]
            is_ranked = labels[document] >= 0
            assert is_ranked.sum() == len(expected) and is_ranked[: len(expected)].all()
            assert scores[document][is_ranked].tolist() == pytest.approx(expected, rel=1e-6)
            by_label = [total[label] / sum(weights) for label in labels[document][is_ranked].tolist()]
            assert by_label == pytest.approx(expected, rel=1e-6)

    @given(arrays.arrays(np.float32, (3, 2, 4), elements=st.floats(0, 1, width=32)))
    def test_scores_given_labels(self, of_members: np.ndarray):
        members = MemberWeights(["a", "b", "b"], [2.0, 1.0, 5.0])
        scores = Mean().score(members, np.array([3, 0, 2, 9]), list(of_members))
        assert scores.dtype == np.float32
        expected = np.average(of_members.astype(np.float64), axis=0, weights=[2, 1, 5])
        np.testing.assert_allclose(scores, expected, rtol=1e-6, atol=1e-30)

    def test_has_no_parameters(self, tmp_path):
        empty = TopK.empty(0, 3)
        mean = Mean.fit(Validation(MemberWeights(["a"], [1.0]), [empty], Ragged.from_rows([]), COUNTS), 3)
        mean.save(tmp_path)
        assert not mean.is_fitted and list(tmp_path.iterdir()) == []
        assert isinstance(Mean.load(tmp_path, COUNTS), Mean)


@pytest.mark.parametrize("kind", COMBINERS)
def test_every_kind_is_a_combiner(kind):
    implementation = combiner_class(kind)
    assert issubclass(implementation, Combiner) and implementation.is_fitted == (kind != "mean")


def test_an_unknown_kind_raises():
    with pytest.raises(ValueError, match=r"'best'.* mean, calibrated"):
        combiner_class("best")


class TestCombination:
    @given(rankings(len(MEMBERS)), some_members, st.integers(1, 9))
    def test_ranks_by_the_mean_of_the_present_members(self, of_members, present, k):
        """A kind keeps its weight if one of its trees is missing; equal scores are ordered by label id."""
        by_name = {name: ranking for name, ranking in zip(NAMES, of_members, strict=True) if name in present}
        labels, scores = Combination(MEMBERS, Mean(), k).rank(by_name)
        assert labels.shape == (2, k)
        for document in range(2):
            expected = literal_mean(present, by_name, document)
            ranked = labels[document][labels[document] >= 0].tolist()
            points = scores[document].tolist()
            assert len(ranked) == min(k, len(expected)) and not any(points[len(ranked) :])
            assert points[: len(ranked)] == pytest.approx([expected[label] for label in ranked], rel=1e-6)
            assert points[: len(ranked)] == pytest.approx(
                sorted(expected.values(), reverse=True)[: len(ranked)], rel=1e-6
            )
            for (score, label), (next_score, next_label) in pairwise(zip(points, ranked, strict=False)):
                assert score > next_score or label < next_label

    @given(arrays.arrays(np.float32, (len(MEMBERS), 2, 3), elements=st.floats(0, 1, width=32)), some_members)
    def test_scores_given_labels(self, of_members, present):
        scores = Combination(MEMBERS, Mean(), 5).score(
            np.array([4, 0, 2]), {name: each for name, each in zip(NAMES, of_members, strict=True) if name in present}
        )
        shares = literal_shares(present)
        expected = sum(shares[name] * of_members[NAMES.index(name)].astype(np.float64) for name in shares)
        np.testing.assert_allclose(scores, expected, rtol=1e-6, atol=1e-30)

    @given(rankings(len(MEMBERS)), some_members)
    def test_contributions_sum_to_the_mean(self, of_members, present):
        by_name = {name: ranking for name, ranking in zip(NAMES, of_members, strict=True) if name in present}
        combination = Combination(MEMBERS, Mean(), len(LABELS))
        best = combination.rank(by_name)
        contributions = combination.contributions(best.labels, by_name)
        shares = literal_shares(present)
        for document, of_labels in enumerate(contributions):
            assert len(of_labels) == len(LABELS)
            for place, parts in enumerate(of_labels):
                assert [part.member.name for part in parts] == [name for name in NAMES if name in present]
                assert [part.share for part in parts] == pytest.approx([shares[part.member.name] for part in parts])
                total = sum(part.points for part in parts)
                assert total == pytest.approx(float(best.scores[document, place]), rel=1e-6)
                for part in parts:
                    labels, scores = by_name[part.member.name]
                    score_of = dict(zip(labels[document].tolist(), scores[document].tolist(), strict=True))
                    label = int(best.labels[document, place])
                    assert part.score == (score_of.get(label, 0.0) if label >= 0 else 0.0)

    @given(rankings(3))
    def test_a_missing_tree_with_the_same_ranking_as_its_kind_changes_nothing(self, of_members):
        """With any combiner, kinds keep their weights, so the scores do not change."""
        networks, linear, knn = of_members
        by_name = dict(zip(NAMES, [networks, networks, linear, linear, knn], strict=True))
        for combiner in (Mean(), CALIBRATION):
            combination = Combination(MEMBERS, combiner, 7)
            whole = combination.rank(by_name)
            part = combination.rank({name: by_name[name] for name in (NAMES[0], NAMES[3], NAMES[4])})
            assert np.array_equal(whole.labels, part.labels)
            np.testing.assert_allclose(whole.scores, part.scores, rtol=1e-6)

    def test_without_documents(self):
        empty = {name: TopK.empty(0, 4) for name in NAMES}
        for combiner in (Mean(), CALIBRATION):
            combination = Combination(MEMBERS, combiner, 3)
            assert combination.rank(empty).labels.shape == (0, 3)
            assert combination.contributions(np.empty((0, 3), np.int32), empty) == []


class Memory(Mean):
    """A combiner that gives the true labels of the documents it was fitted on, known by their first ranked label."""

    is_fitted = True

    def __init__(self, truth: dict[int, int]):
        self.truth = truth

    @classmethod
    def fit(cls, validation: Validation, k: int) -> "Memory":
        first = validation.rankings[0].labels[:, 0].tolist()
        return cls(dict(zip(first, validation.truth.values.tolist(), strict=True)))

    def rank(self, members: MemberWeights, rankings: list[TopK], k: int) -> TopK:
        labels = [[self.truth.get(first, -1)] for first in rankings[0].labels[:, 0].tolist()]
        return TopK(np.array(labels, np.int32), (np.array(labels) >= 0).astype(np.float32))


def documents(count: int) -> Validation:
    """Return documents whose first ranked label is their number, and whose true label is that plus a thousand."""
    ranking = TopK(np.arange(count, dtype=np.int32)[:, None], np.ones((count, 1), np.float32))
    truth = Ragged.from_rows([[1000 + number] for number in range(count)])
    return Validation(MemberWeights(["knn"], [1.0]), [ranking], truth, np.ones(2000, np.int64))


class TestOutOfFold:
    @given(st.integers(2, 40))
    def test_no_document_is_ranked_by_a_combiner_that_saw_its_labels(self, count: int):
        assert (out_of_fold(Memory, documents(count), 1).labels == -1).all()

    @given(st.integers(2, 40))
    def test_each_combiner_is_fitted_on_all_other_folds(self, count: int):
        fitted: list[int] = []

        class Counted(Memory):
            @classmethod
            def fit(cls, validation: Validation, k: int) -> "Memory":
                fitted.append(len(validation.truth))
                return super().fit(validation, k)

        out_of_fold(Counted, documents(count), 1)
        assert len(fitted) == min(FOLDS, count)
        assert sum(fitted) == (len(fitted) - 1) * count

    @given(rankings(3))
    def test_rows_stay_in_place_and_the_mean_has_nothing_to_hold_out(self, of_members: list[TopK]):
        members = MemberWeights(["network_tree", "linear_tree", "knn"], [1, 2, 3])
        validation = Validation(members, of_members, Ragged.from_rows([[0], [1]]), COUNTS)
        expected = Mean().rank(members, of_members, 3)
        for kind in (Mean, type("FittedMean", (Mean,), {"is_fitted": True})):
            found = out_of_fold(kind, validation, 3)
            assert (found.labels == expected.labels).all() and (found.scores == expected.scores).all()
