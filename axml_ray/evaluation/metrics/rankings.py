"""Rankings and true labels as arrays: which ranked labels are true, restriction to some labels, validation.

True labels are ragged: document i has ``labels[offsets[i]:offsets[i + 1]]``, in any order, without duplicates;
``labels`` is int32[nnz], ``offsets`` int64[N + 1]. A ranking is a row of ``top``, int32[N, K], best label first, padded
with -1::

    labels  = [3 7 | 2 | 0 3 5]      top = [[7 1 3]      hits = [[1 0 1]
    offsets = [0 2 3 6]                     [4 2 -1]             [0 1 0]
                                            [5 0 3]]             [1 1 1]]

Shapes: N documents, K ranked labels per document, L labels, nnz true labels of all documents together.
"""

import numpy as np
from numpy.typing import NDArray

from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK


def hits(top: NDArray[np.integer], labels: NDArray[np.integer], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of the ranked labels are true, bool[N, K].

    Raises:
        ValueError: the shapes do not match.
    """
    counts = count_true_labels(top, labels, offsets)
    if not top.size or not len(labels):
        return np.zeros(top.shape, np.bool_)
    stride = int(max(top.max(), labels.max())) + 1
    # A document and a label make one integer key, so that one sorted search answers for all documents.
    true_keys = np.repeat(np.arange(len(counts)) * stride, counts) + labels
    true_keys.sort()
    keys = np.arange(len(counts))[:, None] * stride + top
    positions = np.searchsorted(true_keys, keys)
    # The key of the padding -1 is that of the previous document's last possible label, hence `top >= 0`.
    return (true_keys[np.minimum(positions, len(true_keys) - 1)] == keys) & (top >= 0)


def restrict_to(
    is_member: NDArray[np.bool_], top: NDArray[np.integer], labels: NDArray[np.integer], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.int64]]:
    """Remove all labels but those of `is_member`, bool[L], from rankings and true labels, which keep their order.

    Returns:
        top (int32[N, K], padded with -1), labels (int32[nnz']) and offsets (int64[N + 1]) of the remaining labels.

    Raises:
        ValueError: the shapes do not match.
    """
    counts = count_true_labels(top, labels, offsets)
    # The appended entry is what the padding -1 indexes.
    keep = np.append(is_member, False)[top]
    order = np.argsort(~keep, axis=1, kind="stable")
    remaining_top = np.take_along_axis(np.where(keep, top, -1), order, 1)
    keep_true = is_member[labels]
    document = np.repeat(np.arange(len(counts)), counts)[keep_true]
    remaining = np.bincount(document, minlength=len(counts))
    return remaining_top, labels[keep_true], np.concatenate([[0], np.cumsum(remaining)]).astype(np.int64)


def rank_without(pairs: Ragged, ranking: TopK) -> TopK:
    """Remove label ids of each document (`pairs`) from a ranking; the others keep their order, and the shape stays."""
    is_out = hits(ranking.labels, pairs.values, pairs.offsets)
    order = np.argsort(is_out, axis=1, kind="stable")
    labels, scores = np.where(is_out, np.int32(-1), ranking.labels), np.where(is_out, np.float32(0), ranking.scores)
    return TopK(np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1))


def labels_without(pairs: Ragged, truth: Ragged) -> Ragged:
    """Remove pairs of a document and a label (`pairs`, label ids of each document) from true labels."""
    stride = int(max(truth.values.max(initial=0), pairs.values.max(initial=0))) + 1
    documents, out_documents = (np.repeat(np.arange(len(rows)), rows.lengths) for rows in (truth, pairs))
    is_left = ~np.isin(documents * stride + truth.values, out_documents * stride + pairs.values)
    lengths = np.bincount(documents[is_left], minlength=len(truth))
    return Ragged(truth.values[is_left], np.concatenate([[0], np.cumsum(lengths)]))


def first_columns(top: NDArray[np.integer], k: int) -> NDArray[np.integer]:
    """Return the first k columns of ``top`` [N, K], padded with -1 to k columns."""
    return np.pad(top[:, :k], ((0, 0), (0, max(0, k - top.shape[1]))), constant_values=-1)


def count_true_labels(
    top: NDArray[np.integer], labels: NDArray[np.integer], offsets: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number of true labels of each document, int64[N], after validating the shapes.

    Raises:
        ValueError: the shapes do not match, or the offsets are not ascending.
    """
    if top.ndim != 2 or len(offsets) != len(top) + 1 or offsets[0] != 0 or offsets[-1] != len(labels):
        raise ValueError(
            f"top {top.shape}, labels {labels.shape} and offsets {offsets.shape} do not match: offsets must "
            "run from 0 to the number of labels, with one more entry than top has rows"
        )
    counts = np.diff(offsets)
    if (counts < 0).any():
        raise ValueError("offsets must be ascending")
    return counts


def check_labels(
    top: NDArray[np.integer], labels: NDArray[np.integer], counts: NDArray[np.int64], num_labels: int
) -> None:
    """Raise on ids outside the label index of L labels and on duplicates, which would silently distort scores.

    Raises:
        ValueError: an id is outside 0 … L − 1 (in ``top``, -1 is allowed), or a document has a label twice.
    """
    for name, ids, lowest in (("predicted", top, -1), ("true", labels, 0)):
        if ids.size and not (ids.min() >= lowest and ids.max() < num_labels):
            raise ValueError(
                f"{name} label ids range from {ids.min()} to {ids.max()}, but there are {num_labels} labels"
            )
    ranked = np.sort(top, axis=1)
    if ((ranked[:, 1:] == ranked[:, :-1]) & (ranked[:, 1:] >= 0)).any():
        raise ValueError("a label is predicted twice for one document")
    keys = np.sort(np.repeat(np.arange(len(counts)) * num_labels, counts) + labels)
    if (keys[1:] == keys[:-1]).any():
        raise ValueError("a document has a true label twice")
