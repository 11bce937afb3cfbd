"""Top-k results, and functions that merge several of them.

Legend: N documents, k labels of each, M rankings.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import sparse


class TopK(NamedTuple):
    """The best labels of each document."""

    labels: np.ndarray
    """Label ids, int32 [N, k], best first; -1 where there are fewer."""
    scores: np.ndarray
    """Their scores, float32 [N, k]; 0 where there is no label."""

    @classmethod
    def empty(cls, documents: int, k: int) -> "TopK":
        """Return a ranking without labels."""
        return cls(np.full((documents, k), -1, np.int32), np.zeros((documents, k), np.float32))

    def padded(self, k: int) -> "TopK":
        """Return the ranking with columns for at least k labels."""
        if (missing := k - self.labels.shape[1]) <= 0:
            return self
        columns = ((0, 0), (0, missing))
        return TopK(np.pad(self.labels, columns, constant_values=-1), np.pad(self.scores, columns))

    def scores_of(self, labels: np.ndarray) -> np.ndarray:
        """Return the scores of given labels.

        Args:
            labels: integer [N, n], -1 for none.

        Returns:
            float32 [N, n]; 0 for a label that is not ranked.
        """
        same = (labels[:, :, None] == self.labels[:, None, :]) & (labels[:, :, None] >= 0)
        scores: np.ndarray = np.where(same, self.scores[:, None, :], np.float32(0)).sum(axis=2, dtype=np.float32)
        return scores

    def among(self, allowed: np.ndarray) -> "TopK":
        """Return the ranking without the labels that are not allowed.

        Args:
            allowed: whether each label is allowed, bool [L].
        """
        keep = np.append(allowed, False)[self.labels]  # the appended entry is what the padding -1 indexes
        return TopK(*best_of(np.where(keep, self.labels, -1), self.labels.shape[1], self.scores))


def weighted_sum(rankings: Sequence[TopK], weights: Sequence[float], k: int) -> TopK:
    """Rank labels by the weighted sum of their scores; a label that a ranking leaves out has the score 0 in it.

    Args:
        rankings: M rankings, whose labels are distinct in each row.
        weights: weight of each ranking.
        k: number of labels to keep. Equal scores are ordered by label id.
    """
    labels, order = _sorted_by_label(rankings)
    scores = np.concatenate([w * each.scores.astype(np.float64) for each, w in zip(rankings, weights, strict=True)], 1)
    total = _sum_of_equal_labels(labels, np.take_along_axis(scores, order, 1), len(rankings))
    best, points = best_of(_first_of_equal_labels(labels), k, total)
    return TopK(best, points)


def align(rankings: Sequence[TopK]) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of several rankings, each once, with the score that each ranking gives it.

    Returns:
        Label ids, int32 [N, sum of all k], ascending except for -1 in unused columns; and scores, float64
        [N, sum of all k, M], 0 in unused columns and for rankings that leave the label out.
    """
    labels, order = _sorted_by_label(rankings)
    scores = np.take_along_axis(np.concatenate([each.scores.astype(np.float64) for each in rankings], 1), order, 1)
    source = np.repeat(np.arange(len(rankings)), [each.labels.shape[1] for each in rankings])[order]
    once = _first_of_equal_labels(labels)
    columns = [
        _sum_of_equal_labels(labels, np.where(source == number, scores, 0.0), len(rankings))
        for number in range(len(rankings))
    ]
    return once, np.stack([np.where(once >= 0, column, 0.0) for column in columns], axis=2)


def best_of(labels: np.ndarray, k: int, scores: np.ndarray, *more: np.ndarray) -> list[np.ndarray]:
    """Select the best k of some labels, with their scores and further values.

    Args:
        labels: int32 [N, n], -1 for none.
        k: number of labels to keep.
        scores: float [N, n], the scores to rank by, in float32 as they are returned; ties keep their order. A label
            whose score is not finite is left out.
        more: further values of the labels, each [N, n].

    Returns:
        int32 [N, k], -1 where there are fewer; then the scores and the further values, float32 [N, k], 0 there.
    """
    scores = scores.astype(np.float32, copy=False)  # sums that differ by the rounding of float64 alone are equal
    present = (labels >= 0) & np.isfinite(scores)
    best = np.argsort(np.where(present, -scores, np.inf), axis=1, kind="stable")[:, :k]
    present, kept, *values = (np.take_along_axis(each, best, 1) for each in (present, labels, scores, *more))
    missing = ((0, 0), (0, max(0, k - kept.shape[1])))
    kept = np.pad(np.where(present, kept, -1), missing, constant_values=-1).astype(np.int32)
    return [kept, *(np.pad(np.where(present, value, 0.0), missing).astype(np.float32) for value in values)]


def rank_given(labels: np.ndarray, scores: np.ndarray) -> TopK:
    """Rank given labels (integer [n]) for each document by their scores (float32 [N, n])."""
    order = np.argsort(-scores, axis=1, kind="stable")
    return TopK(labels[order].astype(np.int32), np.take_along_axis(scores, order, 1))


def _sorted_by_label(rankings: Sequence[TopK]) -> tuple[np.ndarray, np.ndarray]:
    """Sort the labels of all rankings of each document; return them and the permutation, int [N, sum of all k] each."""
    labels = np.concatenate([each.labels for each in rankings], axis=1)
    order = np.argsort(labels, axis=1, kind="stable")
    return np.take_along_axis(labels, order, 1), order


def _sum_of_equal_labels(labels: np.ndarray, scores: np.ndarray, rankings: int) -> np.ndarray:
    """Return, in the first column of each label, the sum of its scores.

    Labels are sorted and distinct within a ranking, so a label fills at most `rankings` neighbouring columns.
    """
    total, width = scores.copy(), labels.shape[1]
    for shift in range(1, rankings):
        same = labels[:, shift:] == labels[:, : width - shift]
        total[:, : width - shift] += np.where(same, scores[:, shift:], 0.0)
    return total


def _first_of_equal_labels(labels: np.ndarray) -> np.ndarray:
    """Replace repetitions in sorted labels by -1."""
    once = labels.copy()
    once[:, 1:][labels[:, 1:] == labels[:, :-1]] = -1
    return once


def best_of_sparse(scores: sparse.csr_matrix, k: int) -> TopK:
    """Return the best k labels of each row of a sparse matrix of positive scores, float32 CSR [N, L]."""
    labels, points = TopK.empty(scores.shape[0], k)
    for row, (start, end) in enumerate(pairwise(scores.indptr.tolist())):
        columns, values = scores.indices[start:end], scores.data[start:end]
        best = np.lexsort((columns, -values))[:k]
        labels[row, : len(best)], points[row, : len(best)] = columns[best], values[best]
    return TopK(labels, points)
