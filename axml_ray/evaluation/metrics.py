"""How good rankings of labels are: P@k, nDCG@k, PSP@k, PSnDCG@k, R@k, R-Precision@k and F1@k.

The paper, "Evaluation Metrics": P@k and N@k by its formulas; PSP@k (and PSnDCG@k) as the Extreme
Classification Repository reports it, divided by the best attainable value. `rankings.py` says how rankings and truth
are given.

- Every document's own values are kept (:class:`Measured`): means, intervals and tests all come from them.
- Documents without a true label have no defined nDCG or recall. They are left out of every score and counted.
- P@k, nDCG@k, R@k, RP@k and F1@k are means over documents. PSP@k and PSnDCG@k are ratios of two sums over
  documents: what the ranking collects in inverse propensities, and the most that any ranking could collect.
- nDCG@k's ideal has min(k, number of true labels) terms. ``nDCG@10/all`` is SemEval-2025 task 5's measure:
  the best ten against an ideal ranking of *all* true labels, below 100 wherever a document has more than ten.
- A true label that no training document has won't be predicted, but it counts in every denominator.

Shapes: N documents, K ranked labels a document, L labels, nnz true labels of all documents together, M measures.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from axml_ray.evaluation.rankings import check, first, hits, true_counts

CUTS = (1, 3, 5, 10)
DEEPEST = CUTS[-1]
MEANS = (*(f"{measure}@{k}" for measure in ("P", "nDCG", "R") for k in CUTS), "RP@5", "F1@5", "nDCG@10/all")
RATIOS = tuple(f"{measure}@{k}" for measure in ("PSP", "PSnDCG") for k in CUTS)
MEASURES = (*MEANS, *RATIOS)


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
    counts = true_counts(top, labels, offsets)
    return _ndcg(hits(first(top, k), labels, offsets), np.minimum(counts, k))


@dataclass(frozen=True, slots=True)
class Measured:
    """Every measure of each document.

    Attributes:
        values: float64[N, M], columns as `MEASURES`: for `MEANS` the document's score as a fraction, for `RATIOS`
            what it collects.
        attainable: float64[N, len(RATIOS)], the most that each document could have collected.
    """

    values: NDArray[np.float64]
    attainable: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)

    def column(self, name: str) -> NDArray[np.float64]:
        """One measure of each document, float64[N]: a fraction, 0 to 1 for those of `MEANS`."""
        return self.values[:, MEASURES.index(name)]

    def scores(self, weights: NDArray[np.floating]) -> NDArray[np.float64]:
        """Scores in percent of samples of the documents.

        Args:
            weights: float64[B, N], how often each document is in each sample.

        Returns:
            float64[B, M].
        """
        sums = weights @ self.values
        of = np.concatenate([weights.sum(1, keepdims=True).repeat(len(MEANS), 1), weights @ self.attainable], axis=1)
        return 100 * sums / of

    def result(self) -> dict[str, float]:
        """Scores of all documents, in percent, by measure."""
        return dict(zip(MEASURES, self.scores(np.ones((1, len(self))))[0].tolist(), strict=True))


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
        self._parts = [Measured(np.empty((0, len(MEASURES))), np.empty((0, len(RATIOS))))]

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
        counts = true_counts(top, labels, offsets)
        top = first(top, DEEPEST)
        check(top, labels, counts, len(self._inverse_propensity))
        labelled = counts > 0
        self.documents += int(labelled.sum())
        self.documents_without_labels += int((~labelled).sum())
        top, counts = top[labelled], counts[labelled]
        self._parts.append(self._measure(top, labels, np.concatenate([[0], np.cumsum(counts)])))

    def measured(self) -> Measured:
        """The values of all documents with a true label, in the order they were added.

        Raises:
            ValueError: there is none.
        """
        if not self.documents:
            raise ValueError(f"nothing to score: none of {self.documents_without_labels} documents has a true label")
        if len(self._parts) > 1:
            values = np.concatenate([part.values for part in self._parts])
            self._parts = [Measured(values, np.concatenate([part.attainable for part in self._parts]))]
        return self._parts[0]

    def result(self) -> dict[str, float]:
        """The scores of all documents added so far.

        Returns:
            In percent, not rounded: ``P@k``, ``nDCG@k``, ``PSP@k``, ``PSnDCG@k``, ``R@k`` for k = 1, 3, 5, 10;
            ``RP@5``: hits over min(5, true labels); ``F1@5``: 2·hits / (5 + true labels);
            ``nDCG@10/all``: DCG of the best ten over the DCG of an ideal ranking of all true labels.

        Raises:
            ValueError: no document with a true label was added.
        """
        return self.measured().result()

    def _measure(self, top: NDArray[np.integer], labels: NDArray[np.integer], offsets: NDArray[np.int64]) -> Measured:
        counts = np.diff(offsets)
        hit = hits(top, labels, offsets)
        collected = np.where(hit, self._inverse_propensity[top], 0)
        best = self._best_inverse_propensities(labels, counts, offsets)
        values: dict[str, NDArray[np.float64]] = {}
        attainable: dict[str, NDArray[np.float64]] = {}
        for k in CUTS:
            found, terms = hit[:, :k].sum(1), np.minimum(counts, k)
            values[f"P@{k}"] = found / k
            values[f"nDCG@{k}"] = _ndcg(hit[:, :k], terms)
            values[f"R@{k}"] = found / counts
            values[f"PSP@{k}"], attainable[f"PSP@{k}"] = collected[:, :k].sum(1), best[:, :k].sum(1)
            values[f"PSnDCG@{k}"] = _ndcg(collected[:, :k], terms)
            attainable[f"PSnDCG@{k}"] = _ndcg(best[:, :k], terms)
        found = hit[:, :5].sum(1)
        values["RP@5"] = found / np.minimum(counts, 5)
        values["F1@5"] = 2 * found / (5 + counts)
        values["nDCG@10/all"] = _ndcg(hit, counts)
        return Measured(
            np.stack([values[name] for name in MEASURES], axis=1),
            np.stack([attainable[name] for name in RATIOS], axis=1),
        )

    def _best_inverse_propensities(
        self, labels: NDArray[np.integer], counts: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Each document's ten largest inverse propensities of true labels, falling, 0 beyond: [N, 10]."""
        document = np.repeat(np.arange(len(counts)), counts)
        inverse = self._inverse_propensity[labels]
        inverse = inverse[np.lexsort((-inverse, document))]
        rank = np.arange(len(labels)) - offsets[document]
        kept = rank < DEEPEST
        best = np.zeros((len(counts), DEEPEST))
        best[document[kept], rank[kept]] = inverse[kept]
        return best


def _ndcg(gains: NDArray, terms: NDArray[np.int64]) -> NDArray[np.float64]:
    """DCG of gains [N, K] over that of ``terms`` hits at the top, [N]; 0 where there are no terms."""
    discount = 1 / np.log2(np.arange(2, 2 + max(gains.shape[1], int(terms.max(initial=0)))))
    ideal = np.concatenate([[1.0], np.cumsum(discount)])
    return gains @ discount[: gains.shape[1]] / ideal[terms]
