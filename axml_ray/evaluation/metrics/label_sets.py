"""Scores of predicted label sets: the labels of a document whose score reaches a threshold.

Rankings have no number of labels; a set has. The threshold is the one with the best micro-F1 on validation documents,
and is the same for all documents and labels. Micro-averages count (document, label) pairs over all documents, those
without a true label included; a true label that is not among the stored ones is missed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.evaluation.metrics.rankings import hits


@dataclass(frozen=True, slots=True)
class ScoredPairs:
    """All stored (document, label) pairs of a split, with what micro-averages need besides.

    Attributes:
        scores: float32[n], the ensemble's scores, in any order.
        is_true: bool[n], whether the label is a true one of the document.
        true_labels: number of true labels of all documents, predicted or not.
        documents: number of documents.
    """

    scores: NDArray[np.float32]
    is_true: NDArray[np.bool_]
    true_labels: int
    documents: int

    @classmethod
    def of(cls, rankings: Iterable[tuple[TopK, Ragged]]) -> "ScoredPairs":
        """Collect the pairs of the ensemble's rankings, `predictions.read(ENSEMBLE)`."""
        scores, is_true, true_labels, documents = [np.empty(0, np.float32)], [np.empty(0, np.bool_)], 0, 0
        for ranking, truth in rankings:
            is_predicted = ranking.labels >= 0
            scores.append(ranking.scores[is_predicted])
            is_true.append(hits(ranking.labels, truth.values, truth.offsets)[is_predicted])
            true_labels += len(truth.values)
            documents += len(truth)
        return cls(np.concatenate(scores), np.concatenate(is_true), true_labels, documents)

    def best_threshold(self) -> float:
        """Return the score that, as the least one of a predicted label, gives the best micro-F1.

        Raises:
            ValueError: no document has a true label, or no true label was predicted.
        """
        if not self.is_true.any():
            raise ValueError("no true label was predicted, so that no threshold is better than another")
        order = np.argsort(-self.scores, kind="stable")
        scores = self.scores[order]
        correct = np.cumsum(self.is_true[order])
        f1 = 2 * correct / (np.arange(1, len(scores) + 1) + self.true_labels)
        # Equal scores are above a threshold together.
        is_last = np.append(scores[1:] != scores[:-1], True)
        return float(scores[np.argmax(np.where(is_last, f1, -1))])

    def scores_above(self, threshold: float) -> dict[str, float]:
        """Return the scores of the sets of labels whose scores reach a threshold.

        Returns:
            `threshold`; `labels`, the mean number of labels of a document; and in percent `micro-precision`,
            `micro-recall` and `micro-F1`, which are 0 where they have no denominator.
        """
        is_predicted = self.scores >= threshold
        predicted, correct = int(is_predicted.sum()), int((is_predicted & self.is_true).sum())
        return {
            "threshold": threshold,
            "labels": predicted / max(self.documents, 1),
            "micro-precision": 100 * correct / max(predicted, 1),
            "micro-recall": 100 * correct / max(self.true_labels, 1),
            "micro-F1": 100 * 2 * correct / max(predicted + self.true_labels, 1),
        }
