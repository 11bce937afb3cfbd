"""What a tree's networks and its linear classifiers say, joined. Not in the paper.

By `linear.weight` s, a label's score is the mean m = (1 - s)·n + s·l of what the networks (n) and the classifiers (l)
give it. With `linear.learned_join` a logistic regression on the validation documents says what the three are worth,

    log-odds = intercept + frequency · f + Σ_x [h_x(X) + both_x · f · X],   X = max(logit x, K₀),   x in m, n, l,

with f = ln(1 + c) of the label's c training documents, and each h_x piecewise linear with bends at the knots K. So a
label that one of both is sure of may be worth more, or less, than the mean of both tells, and frequent labels less than
rare ones: members score labels of few documents too low (see `frequency`). Scores below the first knot are alike, as
are labels that a member didn't name.

Shapes: N documents, k labels a document.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from axml_ray.files import read_json, write_json
from axml_ray.inference.combining import Found, aligned, ranked
from axml_ray.inference.frequency import Finite, logits_of
from axml_ray.settings import Settings

KNOTS = (-9.0, -7.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 5.0)
"""Logits at which the curves may bend, where enough is known beyond."""
FEWEST = 20
"""True labels, and as many false ones, that must lie beyond a knot: a few mistaken ones would bend a curve down."""
FORMAT = "axml-ray join"
Knots = Annotated[tuple[Finite, ...], Field(min_length=1)]


class Curve(Settings):
    """What one of the three adds to the log-odds."""

    slopes: Knots
    """Of h from the first knot on, and by how much it grows at each of the others."""
    both: Finite
    """Times f and the logit."""


class Learned(Settings):
    """Of the equation above."""

    knots: Knots
    """Rising; that of the curves' first slope comes first."""
    intercept: Finite
    frequency: Finite
    mean: Curve
    networks: Curve
    classifiers: Curve

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if any(len(curve.slopes) != len(self.knots) for curve in self.curves):
            raise ValueError("a curve has a slope for each knot")
        return self

    @property
    def curves(self) -> tuple[Curve, Curve, Curve]:
        """In the order of `_three`."""
        return self.mean, self.networks, self.classifiers


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
        """The joined scores, float64 [N, k]; those of a label that a member left out are of 0, as it was fitted.

        Args:
            labels: integer [N, k], or [k] of all documents; those below 0 are none, and have any score.
            networks: float [N, k].
            classifiers: float [N, k].
        """
        mean, *_ = three = self._three(networks, classifiers)
        if self.learned is None:
            return mean
        assert self.counts is not None
        f = np.log1p(self.counts[labels])
        total = np.full(mean.shape, self.learned.intercept) + self.learned.frequency * f
        for curve, scores in zip(self.learned.curves, three, strict=True):
            for value, column in zip((*curve.slopes, curve.both), _columns(scores, f, self.learned.knots), strict=True):
                total += value * column
        found: np.ndarray = 1 / (1 + np.exp(-total))
        return found

    def _three(self, networks: np.ndarray, classifiers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The mean of both in full precision, and both."""
        mean = (1 - self.share) * networks.astype(np.float64) + self.share * classifiers.astype(np.float64)
        return mean, networks, classifiers

    def fitted(
        self, labels: np.ndarray, networks: np.ndarray, classifiers: np.ndarray, true: np.ndarray, counts: np.ndarray
    ) -> "Join":
        """This join with what it learns.

        Where little is known curves don't bend; where a label would fall by being scored higher by both they are
        straight; where that doesn't help, or nothing tells true labels from others, nothing is learned.

        Args:
            labels: integer [n], trained labels that were found for documents whose true ones are known.
            networks: float [n], their scores.
            classifiers: float [n], likewise.
            true: bool [n], whether they are.
            counts: int [L], training documents of each label.
        """
        if true.any() and not true.all():
            three, f = self._three(networks, classifiers), np.log1p(counts[labels])
            for knots in (KNOTS, KNOTS[:1]):
                join = Join(self.share, _regression(three, f, true, knots), counts)
                if join._rises(counts):
                    return join
        return Join(self.share)

    def _rises(self, counts: np.ndarray) -> bool:
        """Whether a label that both score higher is scored higher, however frequent it is."""
        scores = 1 / (1 + np.exp(-np.arange(KNOTS[0], -KNOTS[0], 0.1)))
        known = np.flatnonzero(counts)
        ends = known[[np.argmin(counts[known]), np.argmax(counts[known])]]  # log-odds are linear in f
        return all((np.diff(self.scores(np.array(end), scores, scores)) > 0).all() for end in ends)

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


def _columns(scores: np.ndarray, f: np.ndarray, knots: Sequence[float]) -> Iterator[np.ndarray]:
    """What a curve's numbers are multiplied by, one after the other; float64 of the shape of `scores`."""
    logits = np.maximum(logits_of(scores), knots[0])
    yield logits
    for knot in knots[1:]:
        yield np.maximum(0, logits - knot)
    yield logits * f


def _regression(three: Sequence[np.ndarray], f: np.ndarray, true: np.ndarray, knots: tuple[float, ...]) -> Learned:
    """The equation's numbers, by logistic regression; 0 where too little is known to tell."""
    from sklearn.linear_model import LogisticRegression  # slow to import, and only training fits

    width = len(knots) + 1
    table = np.empty((len(f), 1 + len(three) * width), dtype=np.float32)
    sizes = np.empty(table.shape[1])
    parts = (_columns(scores, f, knots) for scores in three)
    centres = np.empty_like(sizes)
    for place, column in enumerate(chain([f], *parts)):
        bends = 0 < (place - 1) % width < width - 1
        enough = not bends or min((true & (column > 0)).sum(), (~true & (column > 0)).sum()) >= FEWEST
        # Of like size, so that all are held back alike, and the search for the best is short.
        centres[place], sizes[place] = column.mean(), column.std() if enough else 0
        table[:, place] = (column - centres[place]) / sizes[place] if sizes[place] else 0
    sizes[sizes == 0] = np.inf
    regression = LogisticRegression(max_iter=500).fit(table, true)
    values = regression.coef_[0] / sizes
    curves = [
        Curve(slopes=tuple(values[at : at + width - 1].tolist()), both=float(values[at + width - 1]))
        for at in range(1, len(values), width)
    ]
    return Learned(
        knots=knots,
        intercept=float(regression.intercept_[0] - values @ centres),
        frequency=float(values[0]),
        mean=curves[0],
        networks=curves[1],
        classifiers=curves[2],
    )
