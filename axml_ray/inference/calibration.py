"""Scores into probabilities, and thresholds, from what the ensemble predicted for the validation split.

The summed scores of an ensemble rank well but are no probabilities: each is an estimate times the estimates along its
path (to the power of `network.path_weight`), and there are several. Isotonic regression finds the rising step function
from score to share of true labels that fits the validation predictions best. Its joints are plain numbers, kept as
JSON.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from axml_ray.ragged import Ragged
from axml_ray.settings import SettingsError

CURVE_POINTS = 1_000
"""Points of the curve of precision at most."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What validation told about scores.

    Raises:
        ValueError: the numbers are not such a description.
    """

    documents: int
    """Validation documents."""
    scores: tuple[float, ...]
    """Joints of the map from score to probability, rising; constant beyond them, straight between."""
    probabilities: tuple[float, ...]
    """At the joints, not falling, 0 to 1."""
    cuts: tuple[float, ...]
    """Scores, falling."""
    precisions: tuple[float, ...]
    """Share of true labels among those with at least the score of the cut."""
    counts: tuple[float, ...]
    """Labels a document with at least the score of the cut."""

    def __post_init__(self) -> None:
        curves = (self.scores, self.probabilities), (self.cuts, self.precisions, self.counts)
        for curve in curves:
            if len({len(part) for part in curve}) != 1 or not curve[0]:
                raise ValueError("its curves are empty or of different lengths")
            if not all(math.isfinite(value) for part in curve for value in part):
                raise ValueError("a number in it isn't finite")
        shares = (*self.probabilities, *self.precisions)
        rising = self.scores, self.probabilities, tuple(-cut for cut in self.cuts), self.counts
        if any((np.diff(part) < 0).any() for part in rising) or min(shares) < 0 or max(shares) > 1:
            raise ValueError("a curve in it turns, or a share isn't between 0 and 1")
        if self.documents < 1:
            raise ValueError("it is of no documents")

    @classmethod
    def fit(cls, labels: np.ndarray, scores: np.ndarray, truth: Ragged) -> "Calibration":
        """From predictions of documents whose labels are known.

        Args:
            labels: int [documents, top], -1 for none.
            scores: float32 [documents, top].
            truth: true labels of each document, sorted.

        Raises:
            ValueError: there is no prediction.
        """
        from sklearn.isotonic import IsotonicRegression  # slow to import, and only the export fits

        predicted = labels >= 0
        if not predicted.any():
            raise ValueError("nothing was predicted for the validation documents")
        width = int(max(labels.max(), truth.values.max(initial=0))) + 1
        owner = np.repeat(np.arange(len(truth)), truth.lengths)
        places = np.arange(len(labels))[:, None] * width + labels
        hit = np.isin(places, owner * width + truth.values)[predicted]
        given = scores[predicted].astype(np.float64)
        step = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(given, hit)
        order = np.argsort(-given, kind="stable")
        last = np.flatnonzero(np.append(np.diff(given[order]) != 0, True))  # equal scores are cut together
        some = last[np.unique(np.linspace(0, len(last) - 1, CURVE_POINTS).astype(np.int64))]
        precisions = np.cumsum(hit[order])[some] / (some + 1)
        return cls(
            documents=len(labels),
            scores=tuple(step.X_thresholds_.tolist()),
            probabilities=tuple(step.y_thresholds_.tolist()),
            cuts=tuple(given[order][some].tolist()),
            precisions=tuple(precisions.tolist()),
            counts=tuple(((some + 1) / len(labels)).tolist()),
        )

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """The calibrated probability of each score, float64, of the same shape."""
        return np.interp(scores, self.scores, self.probabilities)

    def threshold(self, *, precision: float | None = None, count: float | None = None) -> float:
        """The lowest probability so that labels with at least that are as precise, or as many, on validation.

        Args:
            precision: share of labels at or above the threshold that should be true, 0 to 1.
            count: labels a document that should be at or above it, on average.

        Raises:
            SettingsError: not exactly one of them is given, or validation never reached it.
        """
        if (precision is None) == (count is None):
            raise SettingsError("threshold: give either precision, such as 0.8, or count, such as 5")
        # Several cuts may have one probability: a threshold admits the labels of all of them, so the last counts.
        least = self.probability(np.array(self.cuts))
        last = np.append(np.diff(least) != 0, True)
        least, precisions, counts = least[last], np.array(self.precisions)[last], np.array(self.counts)[last]
        if precision is not None:
            good = np.flatnonzero(precisions >= precision)
            if not 0 <= precision <= 1 or not len(good):
                best = math.floor(1_000 * precisions.max()) / 1_000
                raise SettingsError(
                    f"threshold: a precision of {precision:g} was not reached on validation; ask for at most {best:.3f}"
                )
            return float(least[good[-1]])
        assert count is not None
        most = self.counts[-1]
        if not 0 < count <= most:
            shown = math.floor(10 * most) / 10
            raise SettingsError(f"threshold: {count:g} labels a document are out of reach; ask for 0 to {shown:.1f}")
        return float(least[np.argmin(np.abs(counts - count))])

    def as_json(self) -> dict[str, Any]:
        """As plain numbers."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, content: Any) -> "Calibration":
        """What `as_json` gave.

        Raises:
            ValueError: it isn't that.
        """
        names = set(cls.__dataclass_fields__)
        if not isinstance(content, dict) or set(content) != names:
            raise ValueError(f"expected the keys {', '.join(sorted(names))}")
        try:
            curves = {name: tuple(float(one) for one in content[name]) for name in names - {"documents"}}
            return cls(documents=int(content["documents"]), **curves)
        except TypeError:
            raise ValueError("expected lists of numbers") from None
