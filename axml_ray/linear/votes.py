"""Votes that have a share in the scores of a tree's classifiers: of neighbours, and of labels' names.

Legend: N documents, L trained labels.
"""

from itertools import pairwise

import numpy as np
from scipy import sparse


def joined_ranking(
    votes: sparse.csr_matrix, share: float, labels: np.ndarray, scores: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The classifiers' best labels and those with votes, joined: as many, best first.

    Args:
        votes: float32 CSR [N, L], those of each voter times its share.
        share: of the classifiers.
        labels: int32 [N, top], what the classifiers found, -1 for none.
        scores: float32 [N, top]. A label that one of both left out counts 0 for it.

    Returns:
        int32 [N, top], equal scores by label id, -1 where there are fewer, and float32 [N, top], 0 there.
    """
    there = labels >= 0
    offsets = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    own = sparse.csr_matrix((scores[there] * np.float32(share), labels[there], offsets), shape=votes.shape)
    joined = (own + votes).tocsr()
    found, points = np.full(labels.shape, -1, np.int32), np.zeros(labels.shape, np.float32)
    for row, (start, end) in enumerate(pairwise(joined.indptr)):
        known, values = joined.indices[start:end], joined.data[start:end]
        best = np.lexsort((known, -values))[: labels.shape[1]]
        found[row, : len(best)], points[row, : len(best)] = known[best], values[best]
    return found, points


def joined_scores(votes: sparse.csr_matrix, share: float, labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Scores of given labels joined with the votes for them, float32 [N, n].

    Args:
        votes: as of `joined_ranking`.
        share: of the classifiers.
        labels: integer [n].
        scores: float32 [N, n], the classifiers'.
    """
    joined: np.ndarray = np.float32(share) * scores + votes[:, labels].toarray()
    return joined
