"""Rankings and their merging against literal versions. Run: pytest tests/members/test_topk.py"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse

from axml_ray.core.topk import TopK, best_of, best_of_sparse, rank_given, weighted_sum

SIXTEENTHS = st.integers(0, 16).map(lambda sixteenth: sixteenth / 16)
"""Exact in float32 and in sums, so that equal scores are equal."""


@st.composite
def rankings(draw: st.DrawFn, scores: st.SearchStrategy[float] = SIXTEENTHS) -> list[TopK]:
    """One to four rankings of the same documents, of different widths, with labels missing."""
    documents, found = draw(st.integers(1, 3)), []
    for _ in range(draw(st.integers(1, 4))):
        ranking = TopK.empty(documents, draw(st.integers(1, 6)))
        for labels, points in zip(*ranking, strict=True):
            row = draw(st.lists(st.integers(0, 7), max_size=len(labels), unique=True))
            labels[: len(row)], points[: len(row)] = row, [draw(scores) for _ in row]
        found.append(ranking)
    return found


def as_dictionaries(ranking: TopK) -> list[dict[int, float]]:
    """The score of each label, by document."""
    return [
        {label: score for label, score in zip(labels, scores, strict=True) if label >= 0}
        for labels, scores in zip(ranking.labels.tolist(), ranking.scores.tolist(), strict=True)
    ]


def test_an_empty_ranking() -> None:
    labels, scores = TopK.empty(2, 3)
    assert (labels.dtype, scores.dtype) == (np.int32, np.float32)
    assert labels.tolist() == [[-1] * 3] * 2 and scores.tolist() == [[0.0] * 3] * 2


def test_missing_columns_have_no_label() -> None:
    ranking = TopK(np.array([[4, 2]], np.int32), np.array([[0.5, 0.25]], np.float32))
    padded = ranking.padded(3)
    assert padded.labels.tolist() == [[4, 2, -1]] and padded.scores.tolist() == [[0.5, 0.25, 0.0]]
    assert (padded.labels.dtype, padded.scores.dtype) == (np.int32, np.float32)
    assert ranking.padded(1) is ranking


@given(rankings(), st.data())
def test_scores_of_labels(given_rankings: list[TopK], data: st.DataObject) -> None:
    ranking = given_rankings[0]
    shape = (len(ranking.labels), data.draw(st.integers(0, 5)))
    labels = data.draw(arrays.arrays(np.int64, shape, elements=st.integers(-1, 8)))
    scores = ranking.scores_of(labels)
    assert scores.dtype == np.float32 and scores.shape == shape
    for document, known in enumerate(as_dictionaries(ranking)):
        assert scores[document].tolist() == [known.get(label, 0.0) for label in labels[document].tolist()]


@given(rankings(), st.lists(SIXTEENTHS, min_size=4, max_size=4), st.integers(1, 30))
def test_the_weighted_sum_is_the_literal_one(given_rankings: list[TopK], weights: list[float], k: int) -> None:
    weights = weights[: len(given_rankings)]
    labels, scores = weighted_sum(given_rankings, weights, k)
    assert (labels.dtype, scores.dtype) == (np.int32, np.float32)
    assert labels.shape == scores.shape == (len(given_rankings[0].labels), k)
    for document in range(len(labels)):
        total: dict[int, float] = {}
        for ranking, weight in zip(given_rankings, weights, strict=True):
            for label, score in as_dictionaries(ranking)[document].items():
                total[label] = total.get(label, 0.0) + weight * score
        best = sorted(total, key=lambda label: (-total[label], label))[:k]
        missing = k - len(best)
        assert labels[document].tolist() == best + [-1] * missing
        assert scores[document].tolist() == [total[label] for label in best] + [0.0] * missing


@given(rankings(st.floats(0, 1, width=32)), st.lists(st.floats(0.01, 1), min_size=4, max_size=4))
def test_a_weighted_sum_is_added_in_double_precision(given_rankings: list[TopK], weights: list[float]) -> None:
    labels, scores = weighted_sum(given_rankings, weights[: len(given_rankings)], 8)
    for document in range(len(labels)):
        known = [as_dictionaries(ranking)[document] for ranking in given_rankings]
        for label, score in zip(labels[document].tolist(), scores[document].tolist(), strict=True):
            exact = sum(weight * own.get(label, 0.0) for own, weight in zip(known, weights, strict=False))
            assert score == pytest.approx(exact, rel=1e-6, abs=1e-30)


def test_sums_that_differ_by_rounding_alone_are_ordered_by_label_id() -> None:
    weights = [0.1, 0.2, 0.3, 0.6]
    assert 0.1 + 0.2 + 0.3 > 0.6  # in float64
    apart = [TopK(np.array([[label]], np.int32), np.ones((1, 1), np.float32)) for label in (4, 4, 4, 3)]
    assert weighted_sum(apart, weights, 2).labels.tolist() == [[3, 4]]


def test_a_weighted_sum_by_hand() -> None:
    one = TopK(np.array([[7, 2, 5]], np.int32), np.array([[0.5, 0.25, 0.25]], np.float32))
    other = TopK(np.array([[5, 9, -1]], np.int32), np.array([[0.25, 0.25, 0.0]], np.float32))
    labels, scores = weighted_sum([one, other], [1, 1], 5)
    assert labels.tolist() == [[5, 7, 2, 9, -1]]
    assert scores.tolist() == [[0.5, 0.5, 0.25, 0.25, 0.0]]
    assert weighted_sum([one, other], [0.5, 2], 2).labels.tolist() == [[5, 9]]


@given(st.data(), st.integers(1, 3), st.integers(1, 6), st.integers(1, 8))
def test_the_best_of_some_labels(data: st.DataObject, documents: int, width: int, k: int) -> None:
    labels = data.draw(arrays.arrays(np.int32, (documents, width), elements=st.integers(-1, 9)))
    scores = data.draw(
        arrays.arrays(np.float64, (documents, width), elements=st.one_of(SIXTEENTHS, st.sampled_from([np.nan, np.inf])))
    )
    best, points = best_of(labels, scores, k)
    assert (best.dtype, points.dtype) == (np.int32, np.float32)
    assert best.shape == points.shape == (documents, k)
    for row in range(documents):
        kept = [place for place in range(width) if labels[row, place] >= 0 and np.isfinite(scores[row, place])]
        kept = sorted(kept, key=lambda place: -scores[row, place])[:k]  # a stable sort: the first of equals first
        missing = k - len(kept)
        assert best[row].tolist() == labels[row, kept].tolist() + [-1] * missing
        assert points[row].tolist() == scores[row, kept].tolist() + [0.0] * missing


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(0, 3), st.just(4)), elements=SIXTEENTHS),
    st.permutations([9, 0, 4, 2]),
)
def test_given_labels_are_ranked(scores: np.ndarray, labels: list[int]) -> None:
    ranking = rank_given(np.array(labels), scores)
    assert (ranking.labels.dtype, ranking.scores.dtype) == (np.int32, np.float32)
    for row, own in enumerate(scores.tolist()):
        order = sorted(range(4), key=lambda place: -own[place])  # a stable sort: the first of equals first
        assert ranking.labels[row].tolist() == [labels[place] for place in order]
        assert ranking.scores[row].tolist() == [own[place] for place in order]


@given(arrays.arrays(np.float32, (3, 6), elements=SIXTEENTHS), st.integers(1, 8))
def test_the_best_of_a_sparse_matrix(table: np.ndarray, k: int) -> None:
    ranking = best_of_sparse(sparse.csr_matrix(table), k)
    assert (ranking.labels.dtype, ranking.scores.dtype) == (np.int32, np.float32)
    for row, own in enumerate(table.tolist()):
        best = sorted((label for label in range(6) if own[label]), key=lambda label: (-own[label], label))[:k]
        missing = k - len(best)
        assert ranking.labels[row].tolist() == best + [-1] * missing
        assert ranking.scores[row].tolist() == [own[label] for label in best] + [0.0] * missing


def test_labels_that_are_not_allowed_leave_no_gap() -> None:
    ranking = TopK(np.array([[2, 0, 3], [1, -1, -1]], np.int32), np.array([[0.9, 0.5, 0.4], [0.7, 0, 0]], np.float32))
    labels, scores = ranking.among(np.array([True, False, False, True]))
    assert labels.tolist() == [[0, 3, -1], [-1, -1, -1]]
    assert scores.tolist() == [[0.5, np.float32(0.4), 0], [0, 0, 0]]
    assert labels.dtype == np.int32 and scores.dtype == np.float32
