"""How good rankings of labels are: P@k, nDCG@k, PSP@k, PSnDCG@k, R@k, R-Precision@k and F1@k.

The paper, "Evaluation Metrics": P@k and N@k by its formulas; PSP@k (and PSnDCG@k) as the Extreme
Classification Repository reports it, divided by the best attainable value.

Truth is ragged: document i has the labels ``labels[offsets[i]:offsets[i + 1]]``, in any order, each once.
A ranking is a row of ``top``, best label first, with -1 where nothing was predicted::

    labels  = [3 7 | 2 | 0 3 5]      top = [[7 1 3]      hits = [[1 0 1]
    offsets = [0 2 3 6]                     [4 2 -1]             [0 1 0]
                                            [5 0 3]]             [1 1 1]]

- A split is streamed: :class:`Scores` keeps sums over documents, never the documents.
- Documents without a true label have no defined nDCG or recall. They are left out of every score and counted.
- P@k, nDCG@k, R@k, RP@k and F1@k are means over documents. PSP@k and PSnDCG@k are ratios of two sums over
  documents: what the ranking collects in inverse propensities, and the most that any ranking could collect.
- nDCG@k's ideal has min(k, number of true labels) terms. ``nDCG@10/all`` is SemEval-2025 task 5's measure:
  the best ten against an ideal ranking of *all* true labels, below 100 wherever a document has more than ten.
- A true label that no training document has won't be predicted, but it counts in every denominator.

Shapes: N documents, K ranked labels a document, L labels, nnz true labels of all documents together.
"""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

CUTS = (1, 3, 5)
DEEPEST = 10


def propensities(
    train_counts: NDArray[np.int64], documents: int, *, a: float = 0.55, b: float = 1.5
) -> NDArray[np.float64]:
    """The chance that a label which is true of a document was also noted, by Jain, Prabhu and Varma (2016).

    p = 1 / (1 + C·exp(−A·ln(n + B))) with C = (ln N − 1)(B + 1)^A.

    Args:
        train_counts: int64[L], training documents of each label; 0 is fine.
        documents: training documents in all, N.
        a: A of the formula: 0.55, or 0.6 for Amazon-670K and Amazon-3M, 0.5 for Wiki-500K.
        b: B of the formula: 1.5, or 2.6 for Amazon-670K and Amazon-3M, 0.4 for Wiki-500K.

    Returns:
        float64[L], each in (0, 1).

    Raises:
        ValueError: b is not positive, or there are fewer than 3 documents: the formula leaves (0, 1) there.
    """
    if documents < 3 or b <= 0:
        raise ValueError(f"propensities need 3 or more documents and b > 0, not {documents} and b = {b}")
    c = (np.log(documents) - 1) * (b + 1) ** a
    return 1 / (1 + c * np.exp(-a * np.log(np.asarray(train_counts, np.float64) + b)))


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
    counts = _true_counts(top, labels, offsets)
    if not top.size or not len(labels):
        return np.zeros(top.shape, np.bool_)
    stride = int(max(top.max(), labels.max())) + 1
    true_keys = np.repeat(np.arange(len(counts)) * stride, counts) + labels
    true_keys.sort()
    keys = np.arange(len(counts))[:, None] * stride + top
    found = np.searchsorted(true_keys, keys)
    # An empty place's key is the previous document's last possible label, so it is ruled out by hand.
    return (true_keys[np.minimum(found, len(true_keys) - 1)] == keys) & (top >= 0)


def ndcg_at(
    top: NDArray[np.integer], labels: NDArray[np.integer], offsets: NDArray[np.int64], k: int
) -> NDArray[np.float64]:
    """nDCG@k of each document, as a fraction: what training scores a validation set by.

    Args:
        top: int32[N, K], label ids, best first, -1 where nothing was predicted; K may be less than k.
        labels: int32[nnz], true label ids, document after document.
        offsets: int64[N + 1], where each document's true labels begin.
        k: how many ranks count.

    Returns:
        float64[N], in [0, 1]; 0 for a document without true labels.

    Raises:
        ValueError: the shapes disagree.
    """
    counts = _true_counts(top, labels, offsets)
    return _ndcg(hits(_first(top, k), labels, offsets), np.minimum(counts, k))


class Scores:
    """Every measure of one ranking per document, over documents that arrive batch by batch.

    >>> scores = Scores(1 / propensities(np.array([9, 4, 1]), 10))
    >>> scores.add(np.array([[2, 0], [1, -1]]), np.array([2, 0, 1]), np.array([0, 2, 3]))
    >>> round(scores.result()["P@3"], 2)
    50.0

    Attributes:
        documents: documents with a true label so far: what the means are taken over.
        documents_without_labels: documents left out so far, because nothing is true of them.
    """

    def __init__(self, inverse_propensity: NDArray[np.float64]) -> None:
        """Start with no documents.

        Args:
            inverse_propensity: float64[L], 1 / :func:`propensities`.
        """
        self.documents = 0
        self.documents_without_labels = 0
        self._inverse_propensity = np.asarray(inverse_propensity, np.float64)
        self._sums: dict[str, float] = defaultdict(float)
        self._attainable: dict[str, float] = defaultdict(float)

    def add(self, top: NDArray[np.integer], labels: NDArray[np.integer], offsets: NDArray[np.int64]) -> None:
        """Count a batch of documents; only the first ten columns of ``top`` matter.

        Args:
            top: int32[N, K], label ids, best first, a label once a row, -1 where nothing was predicted;
                columns missing to ten are taken as -1.
            labels: int32[nnz], true label ids, document after document, a label once a document.
            offsets: int64[N + 1], where each document's true labels begin.

        Raises:
            ValueError: the shapes disagree, a label is outside 0 … L − 1, or one stands twice in a document
                or row.
        """
        counts = _true_counts(top, labels, offsets)
        top = _first(top, DEEPEST)
        self._check(top, labels, counts)
        labelled = counts > 0
        self.documents += int(labelled.sum())
        self.documents_without_labels += int((~labelled).sum())
        top, counts = top[labelled], counts[labelled]
        offsets = np.concatenate([[0], np.cumsum(counts)])

        hit = hits(top, labels, offsets)
        collected = np.where(hit, self._inverse_propensity[top], 0)
        best = self._best_inverse_propensities(labels, counts, offsets)

        def tally(name: str, per_document: NDArray[np.float64]) -> None:
            self._sums[name] += float(per_document.sum())

        for k in CUTS:
            found, terms = hit[:, :k].sum(1), np.minimum(counts, k)
            tally(f"P@{k}", found / k)
            tally(f"nDCG@{k}", _ndcg(hit[:, :k], terms))
            tally(f"PSP@{k}", collected[:, :k].sum(1))
            self._attainable[f"PSP@{k}"] += float(best[:, :k].sum())
            tally(f"PSnDCG@{k}", _ndcg(collected[:, :k], terms))
            self._attainable[f"PSnDCG@{k}"] += float(_ndcg(best[:, :k], terms).sum())
        for k in (*CUTS, DEEPEST):
            tally(f"R@{k}", hit[:, :k].sum(1) / counts)
        found = hit[:, :5].sum(1)
        tally("RP@5", found / np.minimum(counts, 5))
        tally("F1@5", 2 * found / (5 + counts))
        tally("nDCG@10/all", _ndcg(hit, counts))

    def result(self) -> dict[str, float]:
        """The scores of all documents added so far.

        Returns:
            In percent, not rounded: ``P@k``, ``nDCG@k``, ``PSP@k``, ``PSnDCG@k`` for k = 1, 3, 5; ``R@k`` for
            k = 1, 3, 5, 10; ``RP@5``: hits over min(5, true labels); ``F1@5``: 2·hits / (5 + true labels);
            ``nDCG@10/all``: DCG of the best ten over the DCG of an ideal ranking of all true labels.

        Raises:
            ValueError: no document with a true label was added.
        """
        if not self.documents:
            raise ValueError(f"nothing to score: none of {self.documents_without_labels} documents has a true label")
        return {name: 100 * total / self._attainable.get(name, self.documents) for name, total in self._sums.items()}

    def _check(self, top: NDArray[np.integer], labels: NDArray[np.integer], counts: NDArray[np.int64]) -> None:
        """Refuse ids outside the label index, and doubles, which would move scores without a sign."""
        size = len(self._inverse_propensity)
        for name, ids, least in (("predicted", top, -1), ("true", labels, 0)):
            if ids.size and not (ids.min() >= least and ids.max() < size):
                raise ValueError(f"{name} labels run from {ids.min()} to {ids.max()}, but there are {size} labels")
        ranked = np.sort(top, axis=1)
        if ((ranked[:, 1:] == ranked[:, :-1]) & (ranked[:, 1:] >= 0)).any():
            raise ValueError("a label is predicted twice for one document")
        keys = np.sort(np.repeat(np.arange(len(counts)) * size, counts) + labels)
        if (keys[1:] == keys[:-1]).any():
            raise ValueError("a document has a true label twice")

    def _best_inverse_propensities(
        self, labels: NDArray[np.integer], counts: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Each document's five largest inverse propensities of true labels, falling, 0 beyond: [N, 5]."""
        document = np.repeat(np.arange(len(counts)), counts)
        inverse = self._inverse_propensity[labels]
        inverse = inverse[np.lexsort((-inverse, document))]
        rank = np.arange(len(labels)) - offsets[document]
        kept = rank < max(CUTS)
        best = np.zeros((len(counts), max(CUTS)))
        best[document[kept], rank[kept]] = inverse[kept]
        return best


def _ndcg(gains: NDArray, terms: NDArray[np.int64]) -> NDArray[np.float64]:
    """DCG of gains [N, K] over that of ``terms`` hits at the top, [N]; 0 where there are no terms."""
    discount = 1 / np.log2(np.arange(2, 2 + max(gains.shape[1], int(terms.max(initial=0)))))
    ideal = np.concatenate([[1.0], np.cumsum(discount)])
    return gains @ discount[: gains.shape[1]] / ideal[terms]


def _first(top: NDArray[np.integer], k: int) -> NDArray[np.integer]:
    """The first k columns of ``top`` [N, K], filled up with -1."""
    return np.pad(top[:, :k], ((0, 0), (0, max(0, k - top.shape[1]))), constant_values=-1)


def _true_counts(
    top: NDArray[np.integer], labels: NDArray[np.integer], offsets: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Number of true labels of each document, [N], once the three arrays are known to fit."""
    if top.ndim != 2 or len(offsets) != len(top) + 1 or offsets[0] != 0 or offsets[-1] != len(labels):
        raise ValueError(
            f"top {top.shape}, labels {labels.shape} and offsets {offsets.shape} do not fit: offsets must "
            "run from 0 to the number of labels, with one more entry than top has rows"
        )
    counts = np.diff(offsets)
    if (counts < 0).any():
        raise ValueError("offsets must not fall")
    return counts
