"""Reliability of the ensemble's scores as probabilities: of the labels scored 0.8, are eight in ten true?

Predictions store only the best labels of each document, so labels with small scores are mostly missing here.
"""

import numpy as np
from numpy.typing import NDArray

BINS = 20


class ReliabilityCurve:
    """The numbers of predicted and of true labels in each of 20 score bins of equal width between 0 and 1."""

    def __init__(self) -> None:
        self._labels = np.zeros(BINS, np.int64)
        self._true = np.zeros(BINS, np.int64)
        self._score_sums = np.zeros(BINS)

    def add(self, scores: NDArray[np.floating], is_true: NDArray[np.bool_]) -> None:
        """Add predicted labels.

        Args:
            scores: float[n], between 0 and 1.
            is_true: bool[n], whether each predicted label is true.

        Raises:
            ValueError: a score is outside [0, 1].
        """
        values = np.asarray(scores, np.float64)
        if values.size and not (values.min() >= 0 and values.max() <= 1 + 1e-6):
            raise ValueError(f"scores range from {values.min()} to {values.max()}; probabilities lie between 0 and 1")
        bins = np.minimum((values * BINS).astype(np.int64), BINS - 1)
        self._labels += np.bincount(bins, minlength=BINS)
        self._true += np.bincount(bins[is_true], minlength=BINS)
        self._score_sums += np.bincount(bins, values, minlength=BINS)

    def result(self) -> dict[str, object]:
        """Return the curve.

        Returns:
            `edges` of the bins (21 numbers); for each bin `labels`, `true` and `mean_score` (None in an empty bin);
            `expected_error`: the expected calibration error, which is the distance between a bin's mean score and its
            share of true labels, averaged over labels; None without labels.
        """
        is_filled = self._labels > 0
        count = np.maximum(self._labels, 1)
        means = self._score_sums / count
        error = np.abs(means - self._true / count) * self._labels
        return {
            "edges": np.linspace(0, 1, BINS + 1).tolist(),
            "labels": self._labels.tolist(),
            "true": self._true.tolist(),
            "mean_score": [
                mean if filled else None for mean, filled in zip(means.tolist(), is_filled.tolist(), strict=True)
            ],
            "expected_error": float(error.sum() / self._labels.sum()) if is_filled.any() else None,
        }
