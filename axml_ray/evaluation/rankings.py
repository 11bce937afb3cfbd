"""Rankings of labels and the true labels beside them: which ranked labels are true, and what is wrong with the arrays.

Truth is ragged: document i has the labels ``labels[offsets[i]:offsets[i + 1]]``, in any order, each once.
A ranking is a row of ``top``, best label first, with -1 where nothing was predicted::

    labels  = [3 7 | 2 | 0 3 5]      top = [[7 1 3]      hits = [[1 0 1]
    offsets = [0 2 3 6]                     [4 2 -1]             [0 1 0]
                                            [5 0 3]]             [1 1 1]]

Shapes: N documents, K ranked labels a document, L labels, nnz true labels of all documents together.
"""

import numpy as np
from numpy.typing import NDArray


def hits(top: NDArray[np.integer], labels: NDArray[np.integer], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the ranked labels are true.

    Args:
        top: int32[N, K], label ids, best first, -1 where nothing was predicted.
        labels: int32[nnz], true label ids, document after document.
        offsets: int64[N + 1], where each document's true labels begin.

    Returns:
        bool[N, K].

    Raises:
        ValueError: the shapes disagree.
    """
    counts = true_counts(top, labels, offsets)
    if not top.size or not len(labels):
        return np.zeros(top.shape, np.bool_)
    stride = int(max(top.max(), labels.max())) + 1
    true_keys = np.repeat(np.arange(len(counts)) * stride, counts) + labels
    true_keys.sort()
    keys = np.arange(len(counts))[:, None] * stride + top
    found = np.searchsorted(true_keys, keys)
    # An empty place's key is the previous document's last possible label, so it is ruled out by hand.
    return (true_keys[np.minimum(found, len(true_keys) - 1)] == keys) & (top >= 0)


def only(
    inside: NDArray[np.bool_], top: NDArray[np.integer], labels: NDArray[np.integer], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.int64]]:
    """Rankings and truth as if only some labels existed; what is left of a ranking keeps its order.

    Args:
        inside: bool[L], the labels that are left.
        top: int32[N, K], label ids, best first, -1 where nothing was predicted.
        labels: int32[nnz], true label ids, document after document.
        offsets: int64[N + 1], where each document's true labels begin.

    Returns:
        The three arrays again: top int32[N, K] with -1 at the end of rows, labels int32[nnz'], offsets int64[N + 1].

    Raises:
        ValueError: the shapes disagree.
    """
    counts = true_counts(top, labels, offsets)
    # The last entry is for -1.
    kept = np.append(inside, False)[top]
    order = np.argsort(~kept, axis=1, kind="stable")
    narrowed = np.take_along_axis(np.where(kept, top, -1), order, 1)
    true = inside[labels]
    document = np.repeat(np.arange(len(counts)), counts)[true]
    left = np.bincount(document, minlength=len(counts))
    return narrowed, labels[true], np.concatenate([[0], np.cumsum(left)]).astype(np.int64)


def first(top: NDArray[np.integer], k: int) -> NDArray[np.integer]:
    """The first k columns of ``top`` [N, K], filled up with -1."""
    return np.pad(top[:, :k], ((0, 0), (0, max(0, k - top.shape[1]))), constant_values=-1)


def true_counts(top: NDArray[np.integer], labels: NDArray[np.integer], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of true labels of each document, [N], once the three arrays are known to fit.

    Raises:
        ValueError: they don't.
    """
    if top.ndim != 2 or len(offsets) != len(top) + 1 or offsets[0] != 0 or offsets[-1] != len(labels):
        raise ValueError(
            f"top {top.shape}, labels {labels.shape} and offsets {offsets.shape} do not fit: offsets must "
            "run from 0 to the number of labels, with one more entry than top has rows"
        )
    counts = np.diff(offsets)
    if (counts < 0).any():
        raise ValueError("offsets must not fall")
    return counts


def check(top: NDArray[np.integer], labels: NDArray[np.integer], counts: NDArray[np.int64], size: int) -> None:
    """Refuse ids outside the label index, and doubles, which would move scores without a sign.

    Args:
        top: int32[N, K].
        labels: int32[nnz].
        counts: int64[N], true labels of each document.
        size: L.

    Raises:
        ValueError: an id is outside 0 … L − 1 (top: or -1), or a label stands twice in a document or row.
    """
    for name, ids, least in (("predicted", top, -1), ("true", labels, 0)):
        if ids.size and not (ids.min() >= least and ids.max() < size):
            raise ValueError(f"{name} labels run from {ids.min()} to {ids.max()}, but there are {size} labels")
    ranked = np.sort(top, axis=1)
    if ((ranked[:, 1:] == ranked[:, :-1]) & (ranked[:, 1:] >= 0)).any():
        raise ValueError("a label is predicted twice for one document")
    keys = np.sort(np.repeat(np.arange(len(counts)) * size, counts) + labels)
    if (keys[1:] == keys[:-1]).any():
        raise ValueError("a document has a true label twice")
