"""Metrics against literal loops, scikit-learn, and values computed by hand.

python -m pytest tests/evaluation/test_metrics.py
"""

from math import exp, log, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score, precision_score, recall_score

from axml_ray.evaluation.metrics.metrics import METRICS, Scores, ndcg_at, propensities
from axml_ray.evaluation.metrics.rankings import hits, restrict_to

NAMES = {f"{measure}@{k}" for measure in ("P", "nDCG", "PSP", "PSnDCG", "R") for k in (1, 3, 5, 10)} | {
    "RP@5",
    "F1@5",
    "nDCG@10/all",
    "R@5-50",
}


def literal_scores(tops, truths, inverse):
    """Compute every metric by its definition, document by document and rank by rank; rankings may contain -1."""
    pairs = [(top, true) for top, true in zip(tops, truths, strict=True) if true]
    n = len(pairs)

    def mean(of):
        return 100 * sum(of(top, set(true)) for top, true in pairs) / n

    def count_hits(top, true, k):
        return sum(1 for label in top[:k] if label in true)

    def dcg(gains):
        return sum(gain / log2(rank + 1) for rank, gain in enumerate(gains, start=1))

    def flags(top, true, k):
        return [1.0 if label in true else 0.0 for label in top[:k]]

    def collected(top, true, k):
        return [inverse[label] if label in true else 0.0 for label in top[:k]]

    def best(true, k):
        return sorted((inverse[label] for label in true), reverse=True)[:k]

    def ideal(true, k):
        return dcg([1.0] * min(k, len(true)))

    result = {}
    for k in (1, 3, 5, 10):
        result[f"P@{k}"] = mean(lambda top, true, k=k: count_hits(top, true, k) / k)
        result[f"nDCG@{k}"] = mean(lambda top, true, k=k: dcg(flags(top, true, k)) / ideal(true, k))
        got = most = got_dcg = most_dcg = 0.0
        for top, true in pairs:
            got += sum(collected(top, true, k)) / k
            most += sum(best(true, k)) / k
            got_dcg += dcg(collected(top, true, k)) / ideal(true, k)
            most_dcg += dcg(best(true, k)) / ideal(true, k)
        result[f"PSP@{k}"] = 100 * got / most
        result[f"PSnDCG@{k}"] = 100 * got_dcg / most_dcg
    for k in (1, 3, 5, 10):
        result[f"R@{k}"] = mean(lambda top, true, k=k: count_hits(top, true, k) / len(true))
    result["RP@5"] = mean(lambda top, true: count_hits(top, true, 5) / min(5, len(true)))
    result["F1@5"] = mean(lambda top, true: 2 * count_hits(top, true, 5) / (5 + len(true)))
    result["nDCG@10/all"] = mean(lambda top, true: dcg(flags(top, true, 10)) / dcg([1.0] * len(true)))
    recalls = [mean(lambda top, true, k=k: count_hits(top, true, k) / len(true)) for k in range(5, 51, 5)]
    result["R@5-50"] = sum(recalls) / len(recalls)
    return result


def ragged(truths):
    labels = np.array([label for true in truths for label in true], np.int32)
    return labels, np.concatenate([[0], np.cumsum([len(true) for true in truths])]).astype(np.int64)


def scored(tops, truths, inverse, batches=1):
    scores = Scores(inverse)
    for part in np.array_split(np.arange(len(tops)), batches):
        scores.add(tops[part], *ragged([truths[i] for i in part]))
    return scores


@st.composite
def rankings(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size, columns = draw(st.integers(1, 30)), draw(st.integers(0, 14))
    tops, truths = [], []
    for _ in range(draw(st.integers(1, 12))):
        predicted = rng.permutation(size)[: rng.integers(0, columns + 1)]
        tops.append(np.pad(predicted, (0, columns - len(predicted)), constant_values=-1))
        truths.append(rng.permutation(size)[: rng.integers(0, size + 1)].tolist())
    truths[0] = truths[0] or [0]
    inverse = 1 / propensities(rng.integers(0, 50, size), 1000)
    return np.array(tops, np.int32), truths, inverse


@settings(max_examples=150, deadline=None)
@given(rankings(), st.integers(1, 4))
def test_agrees_with_the_literal_definitions_in_any_batches(case, batches):
    tops, truths, inverse = case
    scores = scored(tops, truths, inverse, batches)
    assert scores.result() == pytest.approx(literal_scores(tops.tolist(), truths, inverse), rel=1e-12, abs=1e-10)
    assert scores.documents_without_labels == truths.count([])
    assert scores.documents == len(truths) - truths.count([])


@settings(max_examples=100, deadline=None)
@given(rankings())
def test_hits_agree_with_membership(case):
    tops, truths, _ = case
    expected = [[label in true for label in top] for top, true in zip(tops.tolist(), truths, strict=True)]
    found = hits(tops, *ragged(truths))
    assert found.dtype == np.bool_
    np.testing.assert_array_equal(found, np.array(expected, bool).reshape(tops.shape))


def test_order_of_true_labels_does_not_matter():
    tops = np.array([[4, 1, 0, 2, 3], [0, 3, 1, 2, 4]], np.int32)
    inverse = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert scored(tops, [[0, 1, 3], [4, 3]], inverse).result() == scored(tops, [[3, 0, 1], [3, 4]], inverse).result()


def test_values_computed_by_hand():
    # True labels: {0, 1} with a hit at rank 2, {2} with a hit at rank 1, none.
    tops = np.array([[3, 1, 4], [2, 0, -1], [0, 1, 2]], np.int32)
    scores = scored(tops, [[0, 1], [2], []], np.array([4.0, 2.0, 3.0, 1.0, 1.0]))
    got = scores.result()
    assert set(got) == NAMES
    assert (scores.documents, scores.documents_without_labels) == (2, 1)
    second = 1 / log2(3)
    expected = {
        "P@1": 50,
        "P@3": 100 / 3,
        "P@5": 20,
        "nDCG@1": 50,
        "nDCG@3": 100 * (second / (1 + second) + 1) / 2,
        "nDCG@10/all": 100 * (second / (1 + second) + 1) / 2,
        "PSP@1": 100 * 3 / (4 + 3),
        "PSP@3": 100 * (2 + 3) / (4 + 2 + 3),
        "PSnDCG@3": 100 * (2 * second / (1 + second) + 3) / ((4 + 2 * second) / (1 + second) + 3),
        "R@1": 50,
        "R@10": 75,
        "RP@5": 75,
        "F1@5": 100 * (2 / 7 + 2 / 6) / 2,
        "R@5-50": 75,
    }
    assert {name: got[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("k", [1, 3, 5, 10])
def test_ndcg_agrees_with_scikit_learn(k):
    rng = np.random.default_rng(k)
    truth = rng.random((40, 25)) < 0.2
    truth[:, 7] = True
    values = rng.random((40, 25))
    tops = np.argsort(-values, axis=1).astype(np.int32)
    each = ndcg_at(tops, *ragged([np.flatnonzero(row).tolist() for row in truth]), k)
    expected = [ndcg_score(truth[i : i + 1], values[i : i + 1], k=k) for i in range(40)]
    np.testing.assert_allclose(each, expected, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 3, 5, 10])
def test_precision_and_recall_agree_with_scikit_learn(k):
    rng = np.random.default_rng(k)
    truth = rng.random((40, 25)) < 0.2
    truth[:, 7] = True
    tops = np.argsort(-rng.random((40, 25)), axis=1).astype(np.int32)
    predicted = np.zeros((40, 25), bool)
    np.put_along_axis(predicted, tops[:, :k], True, axis=1)
    got = scored(tops, [np.flatnonzero(row).tolist() for row in truth], np.ones(25)).result()
    assert got[f"P@{k}"] == pytest.approx(100 * precision_score(truth, predicted, average="samples"))
    assert got[f"R@{k}"] == pytest.approx(100 * recall_score(truth, predicted, average="samples"))


def test_ndcg_of_scores_agrees_with_scikit_learn():
    rng = np.random.default_rng(8)
    truth, values = rng.random((30, 20)) < 0.3, rng.random((30, 20))
    truth[:, 3] = True
    tops = np.argsort(-values, axis=1).astype(np.int32)
    got = scored(tops, [np.flatnonzero(row).tolist() for row in truth], np.ones(20)).result()
    for k in (1, 3, 5, 10):
        assert got[f"nDCG@{k}"] == pytest.approx(100 * ndcg_score(truth, values, k=k))


@settings(max_examples=60, deadline=None)
@given(rankings(), st.integers(0, 2**32 - 1))
def test_a_band_is_scored_as_if_its_labels_were_the_only_ones(case, seed):
    tops, truths, inverse = case
    is_member = np.random.default_rng(seed).random(len(inverse)) < 0.5
    top, labels, offsets = restrict_to(is_member, tops, *ragged(truths))
    kept = [[label for label in row if label >= 0 and is_member[label]] for row in tops.tolist()]
    assert [[label for label in row if label >= 0] for row in top.tolist()] == kept
    assert top.shape == tops.shape
    remaining = [[label for label in true if is_member[label]] for true in truths]
    assert [part.tolist() for part in np.split(labels, offsets[1:-1])] == remaining
    scores = Scores(inverse)
    scores.add(top, labels, offsets)
    if any(remaining):
        expected = literal_scores(kept, remaining, inverse)
        assert scores.result() == pytest.approx(expected, rel=1e-12, abs=1e-10)


def test_document_scores_are_in_order_and_give_the_result():
    tops = np.array([[0, 1], [1, 0], [2, 0]], np.int32)
    scores = scored(tops, [[0], [], [0, 1]], np.ones(3), batches=2)
    document_scores = scores.document_scores()
    assert len(document_scores) == 2
    assert document_scores.values[:, METRICS.index("P@1")].tolist() == [1, 0]
    assert document_scores.values[:, METRICS.index("R@3")].tolist() == [1, 0.5]
    assert list(document_scores.result()) == list(METRICS)
    twice = document_scores.scores(np.array([[0.0, 2.0]]))[0]
    assert twice[METRICS.index("R@3")] == pytest.approx(50)


def test_ndcg_of_short_rows_and_documents_without_labels():
    each = ndcg_at(np.array([[2, 1], [0, 1]], np.int32), *ragged([[2, 0], []]), 5)
    np.testing.assert_allclose(each, [1 / (1 + 1 / log2(3)), 0])
    assert ndcg_at(np.zeros((0, 3), np.int32), *ragged([]), 5).shape == (0,)


def test_a_perfect_ranking_scores_100():
    rng = np.random.default_rng(0)
    inverse = 1 / propensities(rng.integers(0, 100, 40), 5000)
    truths = [rng.permutation(40)[: rng.integers(1, 9)].tolist() for _ in range(30)]
    tops = np.full((30, 10), -1, np.int32)
    for row, true in zip(tops, truths, strict=True):
        row[: len(true)] = sorted(true, key=lambda label: -inverse[label])
    got = scored(tops, truths, inverse).result()
    best = [name for name in NAMES if name.startswith(("nDCG", "PSP", "PSnDCG"))]
    for name in [*best, "P@1", "RP@5", "R@10"]:
        assert got[name] == pytest.approx(100), name


def test_propensities():
    counts = np.array([0, 1, 10, 1000], np.int64)
    c = (log(1500) - 1) * 3.6**0.6
    expected = [1 / (1 + c * exp(-0.6 * log(n + 2.6))) for n in counts]
    got = propensities(counts, 1500, a=0.6, b=2.6)
    np.testing.assert_allclose(got, expected, rtol=1e-14)
    assert (np.diff(got) > 0).all() and got[0] > 0 and got[-1] < 1
    for documents, b in ((2, 1.5), (1500, 0.0)):
        with pytest.raises(ValueError, match="3 or more training documents"):
            propensities(counts, documents, b=b)


@pytest.mark.parametrize(
    ("top", "labels", "offsets", "says"),
    [
        ([[0, 1]], [0], [0, 2], "do not match"),
        ([[0, 1]], [0], [0, 1, 1], "do not match"),
        ([0, 1], [0], [0, 1, 1], "do not match"),
        ([[0], [1], [2]], [0, 1], [0, 2, 1, 2], "must be ascending"),
        ([[0, 3]], [0], [0, 1], "predicted label ids"),
        ([[0, -2]], [0], [0, 1], "predicted label ids"),
        ([[0, 1]], [3], [0, 1], "true label ids"),
        ([[1, 0, 1]], [0], [0, 1], "predicted twice"),
        ([[0, 1]], [2, 1, 2], [0, 3], "true label twice"),
    ],
)
def test_invalid_arrays_raise(top, labels, offsets, says):
    with pytest.raises(ValueError, match=says):
        Scores(np.ones(3)).add(np.array(top, np.int32), np.array(labels, np.int32), np.array(offsets, np.int64))


def test_without_true_labels_there_is_no_score():
    with pytest.raises(ValueError, match="none of 1 documents"):
        scored(np.array([[0]], np.int32), [[]], np.ones(1)).result()
