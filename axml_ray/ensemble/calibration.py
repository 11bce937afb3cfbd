"""Calibration of the ensemble's scores: probabilities and thresholds, fitted on the validation predictions.

The scores of an ensemble rank labels well but are not probabilities. `Calibration.fit` maps a score to the share of
true labels among validation predictions of about that score:

1. Isotonic regression divides the predictions into blocks, from low to high scores, whose shares of true labels rise.
2. A block of n predictions with s true labels gets the probability (s + 1/2) / (n + 1), the posterior mean under
   Jeffreys' prior, so that a few true labels in a row are not taken for certainty. Where this disturbs the order, a
   second isotonic regression merges neighbouring blocks.
3. A higher score always means a higher probability: from the lowest to the highest score of a block its odds rise, from
   half of its own to their double unless the next block is nearer. Between these knots the log-odds are linear in the
   logarithm of the score.

Of N predictions, every probability lies between 1 / (N + 2) and 1 - 1 / (N + 2).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, logit

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.evaluation.metrics.rankings import hits

VERSION = 2
"""Version of the JSON format. Version 1 had no such key, and its probabilities were a step function."""
LEAST_SCORE, GREATEST_SCORE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
"""Range of float32 scores; lower ones, such as 0, count as the least."""
ODDS_IN_BLOCK = 2.0
"""Factor by which the odds rise from a block's mean to its highest score, and fall to its lowest."""
SHARE_OF_GAP = 0.4
"""Largest change of the log-odds within a block, relative to the gap to the next block; below 0.5 to keep the order."""
LEAST_SLOPE = 1e-3
"""Least gain in log-odds when the score is multiplied by e, so that float64 distinguishes all scores."""
CURVE_POINTS = 1_000
"""Largest number of points of the precision curve."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A monotone map from scores to probabilities, and the precision of each threshold.

    Raises:
        ValueError: the curves are empty, of different lengths, not finite, or not monotone.
    """

    documents: int
    """Number of validation documents."""
    scores: tuple[float, ...]
    """Knots of the map from score to probability, above 0 and strictly rising."""
    probabilities: tuple[float, ...]
    """Probabilities at the knots, strictly rising, between 0 and 1 exclusively."""
    cuts: tuple[float, ...]
    """Score thresholds, falling."""
    precisions: tuple[float, ...]
    """Share of true labels among predictions with at least the score of the cut."""
    counts: tuple[float, ...]
    """Mean number of labels of a document with at least the score of the cut."""

    def __post_init__(self) -> None:
        for curve in (self.scores, self.probabilities), (self.cuts, self.precisions, self.counts):
            if len({len(column) for column in curve}) != 1 or not curve[0]:
                raise ValueError("its curves are empty or of different lengths")
            if not np.isfinite(curve).all():
                raise ValueError("a number in it isn't finite")
        if (np.diff([self.scores, self.probabilities]) <= 0).any() or self.scores[0] <= 0:
            raise ValueError("its scores or probabilities don't rise, or a score isn't above 0")
        if not 0 < self.probabilities[0] <= self.probabilities[-1] < 1:
            raise ValueError("a probability in it isn't between 0 and 1")
        if (np.diff([np.negative(self.cuts), self.counts]) < 0).any() or not 0 <= min(self.precisions) <= max(
            self.precisions
        ) <= 1:
            raise ValueError("a curve in it turns, or a precision isn't from 0 to 1")
        if self.documents < 1:
            raise ValueError("it is of no documents")

    @classmethod
    def fit(cls, labels: np.ndarray, scores: np.ndarray, truth: Ragged) -> "Calibration":
        """Fit the calibration to predictions of documents whose labels are known.

        Args:
            labels: int [documents, top], -1 for none.
            scores: float32 [documents, top].
            truth: true labels of each document, sorted.

        Raises:
            ValueError: there is no prediction.
        """
        predicted = labels >= 0
        if not predicted.any():
            raise ValueError("nothing was predicted for the validation documents")
        hit = hits(labels, truth.values, truth.offsets)[predicted]
        given_scores = scores[predicted].astype(np.float64)
        knots, probabilities = _knots(np.clip(given_scores, LEAST_SCORE, GREATEST_SCORE), hit)
        order = np.argsort(-given_scores, kind="stable")
        last = np.flatnonzero(np.append(np.diff(given_scores[order]) != 0, True))  # equal scores are cut together
        shown = last[np.unique(np.linspace(0, len(last) - 1, CURVE_POINTS).astype(np.int64))]
        precisions = np.cumsum(hit[order])[shown] / (shown + 1)
        return cls(
            documents=len(labels),
            scores=tuple(knots.tolist()),
            probabilities=tuple(probabilities.tolist()),
            cuts=tuple(given_scores[order][shown].tolist()),
            precisions=tuple(precisions.tolist()),
            counts=tuple(((shown + 1) / len(labels)).tolist()),
        )

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """Return the calibrated probability of each score (float32, any shape), float64 of the same shape.

        A higher score has a higher probability; negative scores count as 0.
        """
        inside = np.clip(np.asarray(scores, dtype=np.float64), LEAST_SCORE, GREATEST_SCORE)
        log_odds = np.interp(np.log(inside), np.log(self.scores), logit(self.probabilities))
        probability: np.ndarray = expit(log_odds)
        return probability

    def threshold(self, *, precision: float | None = None, count: float | None = None) -> float:
        """Return the lowest probability threshold with a given precision, or mean number of labels, on validation.

        Exactly one of the two is given: the share of true labels (0 to 1), or the mean number of labels of a document,
        at or above the threshold.

        Raises:
            SettingsError: not exactly one is given, or validation never reached it.
        """
        if (precision is None) == (count is None):
            raise SettingsError("threshold: give either precision, such as 0.8, or count, such as 5")
        # A threshold admits the labels of all cuts with the same probability, so the last of them is the one to use.
        least = self.probability(np.array(self.cuts))
        last = np.append(np.diff(least) != 0, True)
        least, precisions, counts = least[last], np.array(self.precisions)[last], np.array(self.counts)[last]
        if precision is not None:
            if not 0 <= precision <= 1:
                raise SettingsError(f"precision: expected a share, 0 to 1, such as 0.8 (given: {precision!r})")
            good = np.flatnonzero(precisions >= precision)
            if not len(good):
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
        """Return the calibration as plain numbers."""
        return {"version": VERSION} | {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, content: Any) -> "Calibration":
        """Read what `as_json` returned; a ValueError if it is something else, or of another version."""
        names = set(cls.__dataclass_fields__)
        if isinstance(content, dict) and content.get("version", 1) != VERSION:
            raise ValueError(f"it is of version {content.get('version', 1)!r}, and this program reads {VERSION}")
        if not isinstance(content, dict) or set(content) != names | {"version"}:
            raise ValueError(f"expected the keys {', '.join(sorted(names | {'version'}))}")
        try:
            curves = {name: tuple(map(float, content[name])) for name in names - {"documents"}}
            return cls(documents=int(content["documents"]), **curves)
        except TypeError:
            raise ValueError("expected lists of numbers") from None


def _knots(scores: np.ndarray, hit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores and probabilities between which `Calibration.probability` interpolates, float64 [knots].

    `scores` (float64 [N]) are from `LEAST_SCORE` to `GREATEST_SCORE`; `hit` (bool [N]) is whether each is of a true
    label.
    """
    block = _rising_blocks(scores, hit)
    weights = np.bincount(block) + 1.0
    shares = (np.bincount(block, hit) + 0.5) / weights  # Jeffreys' prior, Beta(1/2, 1/2)
    merged = _rising_blocks(np.arange(len(shares)), shares, weights)
    log_odds = logit(np.bincount(merged, weights * shares) / np.bincount(merged, weights))

    order = np.argsort(scores)
    first = np.flatnonzero(np.diff(merged[block[order]], prepend=-1))
    lowest, highest = scores[order[first]], scores[order[np.append(first[1:], len(order)) - 1]]
    room = np.minimum(math.log(ODDS_IN_BLOCK), SHARE_OF_GAP * np.diff(log_odds, prepend=-np.inf, append=np.inf))
    room = np.where(lowest < highest, room[:-1], 0), np.where(lowest < highest, room[1:], 0)
    knots = np.stack([lowest, highest], axis=1).ravel()
    log_odds = np.stack([log_odds - room[0], log_odds + room[1]], axis=1).ravel()

    # Extend the map to the range of float32; `unique` then merges the two equal knots of a block with one score.
    knots = np.concatenate([[LEAST_SCORE], knots, [GREATEST_SCORE]])
    log_odds = np.concatenate([log_odds[:1], log_odds, log_odds[-1:]])
    log_odds[0] -= LEAST_SLOPE * math.log(knots[1] / LEAST_SCORE)
    knots, unique = np.unique(knots, return_index=True)
    tilt = LEAST_SLOPE * np.log(knots)
    log_odds = np.maximum.accumulate(log_odds[unique] - tilt) + tilt
    bound = 1 / (len(scores) + 2)
    return knots, bound + (1 - 2 * bound) * expit(log_odds)


def _rising_blocks(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the block of the isotonic regression of `y` on `x` of each point, from low to high, int64 [len(x)]."""
    from sklearn.isotonic import IsotonicRegression  # slow to import, and only the export fits

    ranks = np.unique(x, return_inverse=True)[1]  # scikit-learn merges values less than 1e-15 apart
    fitted = IsotonicRegression().fit(ranks, y, sample_weight=weights).predict(ranks)
    return np.unique(fitted, return_inverse=True)[1]
