"""Whether scores mean what they say: of the labels scored 0.8, are eight in ten true?

The ensemble's score of a label, between 0 and 1, is taken for its probability. Only the best labels of each document
are stored, so that labels with a small score are mostly missing.
"""

import numpy as np
from numpy.typing import NDArray

BINS = 20


class Calibration:
    """How many labels have which score, and how many of them are true, in 20 bins of equal width from 0 to 1."""

    def __init__(self) -> None:
        self._labels = np.zeros(BINS, np.int64)
        self._true = np.zeros(BINS, np.int64)
        self._sums = np.zeros(BINS)

    def add(self, probability: NDArray[np.floating], true: NDArray[np.bool_]) -> None:
        """Count labels.

        Args:
            probability: float[n], from 0 to 1.
            true: bool[n].

        Raises:
            ValueError: a probability is outside 0 … 1.
        """
        values = np.asarray(probability, np.float64)
        if values.size and not (values.min() >= 0 and values.max() <= 1 + 1e-6):
            raise ValueError(f"probabilities run from {values.min()} to {values.max()}, not from 0 to 1")
        place = np.minimum((values * BINS).astype(np.int64), BINS - 1)
        self._labels += np.bincount(place, minlength=BINS)
        self._true += np.bincount(place[true], minlength=BINS)
        self._sums += np.bincount(place, values, minlength=BINS)

    def result(self) -> dict[str, object]:
        """What was counted.

        Returns:
            `edges` of the bins (21 numbers); of each bin `labels`, `true` and `mean_score` (None where it is empty);
            `expected_error`: the mean distance of a label's score to the share of true labels in its bin, or None.
        """
        filled = self._labels > 0
        count = np.maximum(self._labels, 1)
        means = self._sums / count
        error = np.abs(means - self._true / count) * self._labels
        return {
            "edges": np.linspace(0, 1, BINS + 1).tolist(),
            "labels": self._labels.tolist(),
            "true": self._true.tolist(),
            "mean_score": [mean if full else None for mean, full in zip(means.tolist(), filled.tolist(), strict=True)],
            "expected_error": float(error.sum() / self._labels.sum()) if filled.any() else None,
        }
