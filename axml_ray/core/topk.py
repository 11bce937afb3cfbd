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
        """Return the scores of labels (integer [N, n], -1 for none), float32 [N, n]; 0 for one that is not ranked."""
        same = (labels[:, :, None] == self.labels[:, None, :]) & (labels[:, :, None] >= 0)
        scores: np.ndarray = np.where(same, self.scores[:, None, :], np.float32(0)).sum(axis=2, dtype=np.float32)
        return scores

    def of_documents(self, kept: np.ndarray) -> "TopK":
        """Return the ranking with labels for the documents that are `kept` (bool [N]) only."""
        return TopK(
            np.where(kept[:, None], self.labels, np.int32(-1)), np.where(kept[:, None], self.scores, np.float32(0))
        )

    def among(self, allowed: np.ndarray) -> "TopK":
        """Return the ranking without the labels that are not `allowed` (bool [L])."""
        keep = allowed[self.labels] & (self.labels >= 0)
        return best_of(np.where(keep, self.labels, -1), self.scores, self.labels.shape[1])


def weighted_sum(rankings: Sequence[TopK], weights: Sequence[float], k: int) -> TopK:
    """Rank k labels by the weighted sum of their scores in M rankings; a label that is not ranked has the score 0.

    The labels of a ranking are distinct in each row. Equal scores are ordered by label id.
    """
    labels = np.concatenate([ranking.labels for ranking in rankings], axis=1)
    weighted = zip(rankings, weights, strict=True)
    scores = np.concatenate([weight * ranking.scores.astype(np.float64) for ranking, weight in weighted], axis=1)
    order = np.argsort(labels, axis=1, kind="stable")
    labels, scores = np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1)
    # A label is distinct within a ranking, so it now fills at most M neighbouring columns. The sum of its scores goes
    # into the first of them, and the others become padding.
    total, width = scores.copy(), labels.shape[1]
    for shift in range(1, len(rankings)):
        is_same = labels[:, shift:] == labels[:, : width - shift]
        total[:, : width - shift] += np.where(is_same, scores[:, shift:], 0.0)
    distinct = labels.copy()
    distinct[:, 1:][labels[:, 1:] == labels[:, :-1]] = -1
    return best_of(distinct, total, k)


def best_of(labels: np.ndarray, scores: np.ndarray, k: int) -> TopK:
    """Select the best k of some labels.

    Args:
        labels: int32 [N, n], -1 for none.
        scores: float [N, n], the scores to rank by, in float32 as they are returned; ties keep their order. A label
            whose score is not finite is left out.
        k: number of labels to keep.
    """
    scores = scores.astype(np.float32, copy=False)  # sums that differ by the rounding of float64 alone are equal
    present = (labels >= 0) & np.isfinite(scores)
    best = np.argsort(np.where(present, -scores, np.inf), axis=1, kind="stable")[:, :k]
    present, labels, scores = (np.take_along_axis(values, best, 1) for values in (present, labels, scores))
    return TopK(np.where(present, labels, -1).astype(np.int32), np.where(present, scores, np.float32(0))).padded(k)


def rank_given(labels: np.ndarray, scores: np.ndarray) -> TopK:
    """Rank given labels (integer [n]) for each document by their scores (float32 [N, n])."""
    order = np.argsort(-scores, axis=1, kind="stable")
    return TopK(labels[order].astype(np.int32), np.take_along_axis(scores, order, 1))


def best_of_sparse(scores: sparse.csr_matrix, k: int) -> TopK:
    """Return the best k labels of each row of a sparse matrix of positive scores, float32 CSR [N, L]."""
    labels, points = TopK.empty(scores.shape[0], k)
    for row, (start, end) in enumerate(pairwise(scores.indptr.tolist())):
        columns, values = scores.indices[start:end], scores.data[start:end]
        best = np.lexsort((columns, -values))[:k]
        labels[row, : len(best)], points[row, : len(best)] = columns[best], values[best]
    return TopK(labels, points)
