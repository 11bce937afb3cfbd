"""Run: pytest tests/evaluation/test_label_sets.py

Micro-averages of label sets against scikit-learn, and the threshold against all thresholds.
"""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, precision_score, recall_score

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.evaluation.metrics import label_sets
from axml_ray.evaluation.metrics.label_sets import best_threshold, scores_above

LABELS, TOP = 12, 6


def rankings(seed: int, documents: int = 30):
    """Random rankings, and the same as matrices [documents, LABELS]: scores (0 for labels not ranked) and truth."""
    rng = np.random.default_rng(seed)
    truth = rng.random((documents, LABELS)) < 0.2
    # Few distinct scores, so that some are equal.
    scores = (np.round(rng.random((documents, LABELS)) + 0.3 * truth, 1) + 0.1).astype(np.float32)
    top = np.argsort(-scores, axis=1)[:, :TOP].astype(np.int32)
    kept = np.zeros_like(scores)
    np.put_along_axis(kept, top, np.take_along_axis(scores, top, 1), 1)
    ranked = np.take_along_axis(scores, top, 1)
    top[::7, -2:], ranked[::7, -2:] = -1, 0
    for row in range(0, documents, 7):
        kept[row, np.setdiff1d(np.arange(LABELS), top[row])] = 0
    half = documents // 2
    parts = [
        (TopK(top[rows], ranked[rows]), Ragged.from_rows([np.flatnonzero(row).tolist() for row in truth[rows]]))
        for rows in (slice(half), slice(half, None))
    ]
    return parts, kept, truth


@given(st.integers(0, 1_000), st.floats(0.1, 1.4))
def test_scores_agree_with_scikit_learn(seed, threshold):
    parts, scores, truth = rankings(seed)
    result = scores_above(parts, threshold)
    predicted = scores >= np.float32(threshold)
    for name, function in (("F1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        expected = 100 * function(truth, predicted, average="micro", zero_division=0)
        assert result[f"micro-{name}"] == pytest.approx(expected)
    assert result["labels"] == pytest.approx(predicted.sum() / len(truth))


@given(st.integers(0, 1_000), st.sampled_from([1, 2, 7, 1 << 20]))
def test_no_threshold_is_better(seed, pairs):
    parts, scores, _ = rankings(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_sets, "PAIRS", pairs)
        threshold = best_threshold(parts)
    f1 = {float(each): scores_above(parts, float(each))["micro-F1"] for each in np.unique(scores[scores > 0])}
    assert threshold == max(f1, key=lambda each: (f1[each], each))


def test_without_a_true_prediction_there_is_no_threshold():
    part = TopK(np.array([[3, 1]], np.int32), np.array([[0.5, 0.4]], np.float32)), Ragged.from_rows([[2]])
    with pytest.raises(SettingsError, match="threshold"):
        best_threshold([part])


def test_a_threshold_takes_few_bytes_for_each_pair(monkeypatch):
    """A split of a million documents has a hundred million pairs."""
    monkeypatch.setattr(label_sets, "PAIRS", 1 << 10)
    random = np.random.default_rng(0)
    blocks, documents, top = 100, 100, 50

    def parts():
        for _ in range(blocks):
            labels = np.tile(np.arange(top, dtype=np.int32), (documents, 1))
            truth = Ragged.from_rows([[row % top] for row in range(documents)])
            yield TopK(labels, random.random((documents, top), np.float32)), truth

    tracemalloc.start()
    best_threshold(parts())
    scores_above(parts(), 0.5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * blocks * documents * top
