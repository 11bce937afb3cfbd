"""What a tree's networks and its linear classifiers say, joined. Not in the paper.

By `linear.weight` s, a label's score is the mean m = (1 - s)·n + s·l of what the networks (n) and the classifiers (l)
give it. With `linear.learned_join` a logistic regression on the validation documents says what the three are worth,

    log-odds = intercept + frequency · f + Σ_x [h_x(logit x) + both_x · f · logit x],   x in m, n, l,   f = ln(1 + c),

with c the label's training documents and each h_x piecewise linear between `KNOTS`. So a label that one of both is sure
of may be worth more, or less, than the mean of both tells, and frequent labels less than rare ones: members score
labels of few documents too low (see `frequency`). The curves are a few dozen numbers, fitted without chance.

Shapes: N documents, k labels a document.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from axml_ray.files import read_json, write_json
from axml_ray.inference.combining import aligned, ranked
from axml_ray.inference.frequency import Finite, logits_of
from axml_ray.settings import Settings

KNOTS = (-9.0, -7.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 5.0)
"""Logits at which the curves may bend: a label that one of both left out lies below all of them."""
FORMAT = "axml-ray join"
Found = tuple[np.ndarray, np.ndarray]
Values = Annotated[tuple[Finite, ...], Field(min_length=len(KNOTS) + 1, max_length=len(KNOTS) + 1)]


class Curve(Settings):
    """What one of the three adds to the log-odds."""

    slopes: Values
    """Of h: below all knots, and by how much it grows at each."""
    both: Finite
    """Times f and the logit."""


class Learned(Settings):
    """Of the equation above."""

    intercept: Finite
    frequency: Finite
    mean: Curve
    networks: Curve
    classifiers: Curve


@dataclass(frozen=True, eq=False)
class Join:
    """How a tree joins what its networks and its classifiers say.

    Attributes:
        share: of the classifiers in the mean.
        learned: what the mean and both are worth; None takes the mean as it is.
        counts: int [L], training documents of each label; needed for what is learned.
    """

    share: float
    learned: Learned | None = None
    counts: np.ndarray | None = None

    def ranking(self, networks: Found, classifiers: Found, top: int) -> Found:
        """One ranking from two: int32 [N, top] labels, best first, -1 for none, and float32 [N, top] scores.

        Args:
            networks: label ids, int32 [N, k], -1 for none, and their scores, float32 [N, k].
            classifiers: likewise. A label that one of both left out counts 0 for it.
            top: labels wanted.
        """
        labels, scores = aligned([networks[0], classifiers[0]], [networks[1], classifiers[1]])
        return ranked(labels, self.scores(labels, scores[..., 0], scores[..., 1]), top)

    def scores(self, labels: np.ndarray, networks: np.ndarray, classifiers: np.ndarray) -> np.ndarray:
        """The joined scores, float64 [N, k].

        Args:
            labels: integer [N, k], or [k] of all documents; those below 0 are none, and have any score.
            networks: float [N, k].
            classifiers: float [N, k].
        """
        mean: np.ndarray = (1.0 - self.share) * networks + self.share * classifiers
        if self.learned is None:
            return mean
        assert self.counts is not None
        f = np.log1p(self.counts[labels])
        total = np.full(mean.shape, self.learned.intercept) + self.learned.frequency * f
        curves = self.learned.mean, self.learned.networks, self.learned.classifiers
        for curve, scores in zip(curves, (mean, networks, classifiers), strict=True):
            for value, column in zip((*curve.slopes, curve.both), _columns(scores, f), strict=True):
                total += value * column
        found: np.ndarray = 1 / (1 + np.exp(-total))
        return found

    def fitted(
        self, labels: np.ndarray, networks: np.ndarray, classifiers: np.ndarray, true: np.ndarray, counts: np.ndarray
    ) -> "Join":
        """This join with what it learns; where there is nothing to tell true labels by, nothing.

        Args:
            labels: integer [n], trained labels that were found for documents whose true ones are known.
            networks: float [n], their scores.
            classifiers: float [n], likewise.
            true: bool [n], whether they are.
            counts: int [L], training documents of each label.
        """
        from sklearn.linear_model import LogisticRegression  # slow to import, and only training fits

        if not true.any() or true.all():
            return Join(self.share)
        f = np.log1p(counts[labels]).astype(np.float32)
        mean = (1 - self.share) * networks + self.share * classifiers
        columns = [f, *(column for scores in (mean, networks, classifiers) for column in _columns(scores, f))]
        table = np.stack([column.astype(np.float32) for column in columns], axis=1)
        del columns
        # Of like size, so that all are held back alike, and the search for the best is short.
        centres, sizes = table.mean(0, dtype=np.float64), table.std(0, dtype=np.float64)
        sizes[sizes == 0] = 1
        table -= centres.astype(np.float32)
        table /= sizes.astype(np.float32)
        regression = LogisticRegression(max_iter=500).fit(table, true)
        values = regression.coef_[0].astype(np.float64) / sizes
        frequency, *slopes = values.tolist()
        width = len(slopes) // 3
        curves = [
            Curve(slopes=slopes[at : at + width - 1], both=slopes[at + width - 1]) for at in range(0, 3 * width, width)
        ]
        intercept = float(regression.intercept_[0] - values @ centres)
        learned = Learned(
            intercept=intercept, frequency=frequency, mean=curves[0], networks=curves[1], classifiers=curves[2]
        )
        return Join(self.share, learned, counts)

    def save(self, path: Path, fingerprint: str) -> None:
        """Write what was learned, with the fingerprint of what it depends on."""
        learned = None if self.learned is None else self.learned.model_dump(mode="json")
        write_json(path, {"format": FORMAT, "fingerprint": fingerprint, "learned": learned})

    @classmethod
    def load(cls, path: Path, fingerprint: str, share: float, counts: np.ndarray) -> "Join | None":
        """What `save` wrote; None where there is nothing of this fingerprint."""
        try:
            content = read_json(path)
            if content["format"] != FORMAT or content["fingerprint"] != fingerprint:
                return None
            learned = content["learned"]
            return cls(share) if learned is None else cls(share, Learned.model_validate(learned), counts)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def _columns(scores: np.ndarray, f: np.ndarray) -> Iterator[np.ndarray]:
    """What a curve's numbers are multiplied by, one after the other; float64 of the shape of `scores`."""
    logits = logits_of(scores)
    yield logits
    for knot in KNOTS:
        yield np.maximum(0, logits - knot)
    yield logits * f
