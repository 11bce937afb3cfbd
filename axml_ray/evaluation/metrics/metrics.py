"""Ranking metrics: P@k, nDCG@k, PSP@k, PSnDCG@k, R@k, R-Precision@k and F1@k.

P@k and nDCG@k (the paper's N@k) follow the paper's section "Evaluation Metrics"; PSP@k and PSnDCG@k are divided by
the best attainable value, as in the Extreme Classification Repository. `rankings.py` documents the array format.

- The values of every document are kept (:class:`DocumentScores`): means, intervals and tests are computed from them.
- nDCG and recall are undefined without a true label, so such documents are excluded from every score, and counted.
- P@k, nDCG@k, R@k, RP@k (hits over min(k, true labels)) and F1@k (2·hits over k + true labels) are means over
  documents. PSP@k and PSnDCG@k are ratios of two sums over documents:
  the inverse propensities of the hits, and the largest sum that any ranking could attain.
- The ideal ranking of nDCG@k has min(k, number of true labels) terms. ``nDCG@10/all`` is the measure of SemEval-2025
  task 5: the top ten against an ideal ranking of *all* true labels; below 100 if a document has more than ten.
- ``R@5-50`` is that task's main measure: the mean of R@k over k = 5, 10, …, 50. Shorter rankings have no hits beyond
  their end.
- A true label without training documents cannot be predicted, but it counts in every denominator.

Shapes: N documents, K ranked labels per document, L labels, nnz true labels of all documents together, M metrics.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from axml_ray.evaluation.metrics.rankings import check_labels, count_true_labels, first_columns, hits

CUTS = (1, 3, 5, 10)
DEEPEST = CUTS[-1]
RECALL_CUTS = tuple(range(5, 55, 5))
MEANS = (*(f"{family}@{k}" for family in ("P", "nDCG", "R") for k in CUTS), "RP@5", "F1@5", "nDCG@10/all", "R@5-50")
RATIOS = tuple(f"{family}@{k}" for family in ("PSP", "PSnDCG") for k in CUTS)
METRICS = (*MEANS, *RATIOS)


def propensities(
    train_counts: NDArray[np.int64], documents: int, *, a: float = 0.55, b: float = 1.5
) -> NDArray[np.float64]:
    """Estimate the probability that a true label was recorded as one, by Jain, Prabhu and Varma (2016).

    p = 1 / (1 + C·exp(−A·ln(n + B))) with C = (ln N − 1)(B + 1)^A.

    Args:
        train_counts: int64[L], training documents of each label; may be 0.
        documents: number of training documents, N.
        a: A of the formula: 0.55, or 0.6 for Amazon-670K and Amazon-3M, 0.5 for Wiki-500K.
        b: B of the formula: 1.5, or 2.6 for Amazon-670K and Amazon-3M, 0.4 for Wiki-500K.

    Returns:
        float64[L], each in (0, 1).

    Raises:
        ValueError: b is not positive, or there are fewer than 3 documents, where the formula leaves (0, 1).
    """
    if documents < 3 or b <= 0:
        raise ValueError(f"propensities need 3 or more training documents and b > 0, not {documents} and b = {b}")
    c = (np.log(documents) - 1) * (b + 1) ** a
    return 1 / (1 + c * np.exp(-a * np.log(np.asarray(train_counts, np.float64) + b)))


def ndcg_at(
    top: NDArray[np.integer], labels: NDArray[np.integer], offsets: NDArray[np.int64], k: int
) -> NDArray[np.float64]:
    """Compute nDCG@k of each document, float64[N] in [0, 1]; 0 for a document without true labels.

    Training evaluates on validation documents with it. K may be less than k.

    Raises:
        ValueError: the shapes do not match.
    """
    counts = count_true_labels(top, labels, offsets)
    return _ndcg(hits(first_columns(top, k), labels, offsets), np.minimum(counts, k))


@dataclass(frozen=True, slots=True)
class DocumentScores:
    """All metrics of each document.

    Attributes:
        values: float64[N, M], columns as `METRICS`: for `MEANS` the document's score as a fraction, for `RATIOS`
            the numerator.
        attainable: float64[N, len(RATIOS)], the denominator of `RATIOS`: the largest attainable numerator.
    """

    values: NDArray[np.float64]
    attainable: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)

    def scores(self, weights: NDArray[np.floating]) -> NDArray[np.float64]:
        """Compute the scores of bootstrap samples in percent, float64[B, M].

        `weights`, float64[B, N], is the number of times that each sample contains each document.
        """
        numerators = weights @ self.values
        sizes = weights.sum(1, keepdims=True).repeat(len(MEANS), 1)
        return 100 * numerators / np.concatenate([sizes, weights @ self.attainable], axis=1)

    def result(self) -> dict[str, float]:
        """Return the scores of all documents, in percent, by metric."""
        return dict(zip(METRICS, self.scores(np.ones((1, len(self))))[0].tolist(), strict=True))


class Scores:
    """Accumulates all metrics of one ranking per document, batch by batch, with 1 / :func:`propensities`, float64[L].

    >>> scores = Scores(1 / propensities(np.array([9, 4, 1]), 10))
    >>> scores.add(np.array([[2, 0], [1, -1]]), np.array([2, 0, 1]), np.array([0, 2, 3]))
    >>> round(scores.result()["P@3"], 2)
    50.0

    Attributes:
        documents: number of documents with a true label so far, over which means are taken.
        documents_without_labels: number of documents excluded so far, for lack of a true label.
    """

    def __init__(self, inverse_propensity: NDArray[np.float64]) -> None:
        self.documents = 0
        self.documents_without_labels = 0
        self._inverse_propensity = np.asarray(inverse_propensity, np.float64)
        self._blocks = [DocumentScores(np.empty((0, len(METRICS))), np.empty((0, len(RATIOS))))]

    def add(self, top: NDArray[np.integer], labels: NDArray[np.integer], offsets: NDArray[np.int64]) -> None:
        """Add a batch of documents; only the first fifty columns of ``top`` are used, which may have fewer.

        Raises:
            ValueError: the shapes do not match, a label is outside 0 … L − 1, or a document has a label twice.
        """
        counts = count_true_labels(top, labels, offsets)
        top = first_columns(top, RECALL_CUTS[-1])
        check_labels(top, labels, counts, len(self._inverse_propensity))
        labelled = counts > 0
        self.documents += int(labelled.sum())
        self.documents_without_labels += int((~labelled).sum())
        top, counts = top[labelled], counts[labelled]
        self._blocks.append(self._score_batch(top, labels, np.concatenate([[0], np.cumsum(counts)])))

    def document_scores(self) -> DocumentScores:
        """Return the scores of all documents with a true label, in the order in which they were added.

        Raises:
            ValueError: there is none.
        """
        if not self.documents:
            raise ValueError(
                f"cannot compute scores: none of {self.documents_without_labels} documents has a true label"
            )
        if len(self._blocks) > 1:
            values = np.concatenate([block.values for block in self._blocks])
            self._blocks = [DocumentScores(values, np.concatenate([block.attainable for block in self._blocks]))]
        return self._blocks[0]

    def result(self) -> dict[str, float]:
        """Return the scores of all documents added so far in percent, by the names in `METRICS`.

        Raises:
            ValueError: no document with a true label was added.
        """
        return self.document_scores().result()

    def _score_batch(
        self, top: NDArray[np.integer], labels: NDArray[np.integer], offsets: NDArray[np.int64]
    ) -> DocumentScores:
        """Compute all metrics of documents that each have a true label."""
        counts = np.diff(offsets)
        deep_hits = np.cumsum(hits(top, labels, offsets), axis=1)
        top = top[:, :DEEPEST]
        is_true = np.diff(deep_hits[:, :DEEPEST], axis=1, prepend=0) > 0
        gains = np.where(is_true, self._inverse_propensity[top], 0)
        best = self._best_inverse_propensities(labels, counts, offsets)
        values: dict[str, NDArray[np.float64]] = {}
        attainable: dict[str, NDArray[np.float64]] = {}
        for k in CUTS:
            correct, ideal_terms = is_true[:, :k].sum(1), np.minimum(counts, k)
            values[f"P@{k}"] = correct / k
            values[f"nDCG@{k}"] = _ndcg(is_true[:, :k], ideal_terms)
            values[f"R@{k}"] = correct / counts
            values[f"PSP@{k}"], attainable[f"PSP@{k}"] = gains[:, :k].sum(1), best[:, :k].sum(1)
            values[f"PSnDCG@{k}"] = _ndcg(gains[:, :k], ideal_terms)
            attainable[f"PSnDCG@{k}"] = _ndcg(best[:, :k], ideal_terms)
        correct = is_true[:, :5].sum(1)
        values["RP@5"] = correct / np.minimum(counts, 5)
        values["F1@5"] = 2 * correct / (5 + counts)
        values["nDCG@10/all"] = _ndcg(is_true, counts)
        values["R@5-50"] = np.mean([deep_hits[:, k - 1] / counts for k in RECALL_CUTS], axis=0)
        return DocumentScores(
            np.stack([values[name] for name in METRICS], axis=1),
            np.stack([attainable[name] for name in RATIOS], axis=1),
        )

    def _best_inverse_propensities(
        self, labels: NDArray[np.integer], counts: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the ten largest inverse propensities of each document's true labels, [N, 10], padded with 0."""
        document = np.repeat(np.arange(len(counts)), counts)
        inverse = self._inverse_propensity[labels]
        inverse = inverse[np.lexsort((-inverse, document))]
        rank = np.arange(len(labels)) - offsets[document]
        in_top = rank < DEEPEST
        best = np.zeros((len(counts), DEEPEST))
        best[document[in_top], rank[in_top]] = inverse[in_top]
        return best


def _ndcg(gains: NDArray, ideal_terms: NDArray[np.int64]) -> NDArray[np.float64]:
    """Divide the DCG of gains [N, K] by that of ``ideal_terms`` [N] hits at the top; 0 where there are none."""
    discount = 1 / np.log2(np.arange(2, 2 + max(gains.shape[1], int(ideal_terms.max(initial=0)))))
    ideal = np.concatenate([[1.0], np.cumsum(discount)])
    return gains @ discount[: gains.shape[1]] / ideal[ideal_terms]
