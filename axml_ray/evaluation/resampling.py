"""How far scores can be trusted: bootstrap intervals over documents, and a paired comparison of two rankings.

- An interval holds the middle 95 % of the scores of samples of the same size, drawn with replacement from the
  documents (percentile bootstrap). It says what other documents of this kind would give, not what another training
  would.
- A difference is of two rankings of the same documents. Its interval is drawn likewise; its p-value is that of a
  permutation test: how often swapping the two rankings of documents at random makes as large a difference. Each measure
  is tested by itself.
- Both are the same again with the same seed, whatever the memory for samples.

Shapes: N documents, M measures, B samples.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from axml_ray.evaluation.metrics import MEANS, MEASURES, Measured

LEVEL = 0.95
WEIGHTS = 1 << 22
"""Most weights of documents held at once."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Difference:
    """One measure of a ranking, less that of another, in points of percent.

    Attributes:
        points: the difference.
        interval: of 95 %.
        p: of a difference as large, either way, where the two rankings are alike.
    """

    points: float
    interval: Interval
    p: float


def intervals(measured: Measured, *, resamples: int, seed: int) -> dict[str, Interval]:
    """The interval of each measure, in percent.

    Args:
        measured: of one ranking.
        resamples: B.
        seed: of the samples.
    """
    drawn = np.concatenate(list(map(measured.scores, _samples(len(measured), resamples, seed))))
    return dict(zip(MEASURES, _middle(drawn), strict=True))


def compare(one: Measured, other: Measured, *, resamples: int, seed: int) -> dict[str, Difference]:
    """By how much each measure of `one` is above that of `other`.

    Args:
        one: values of some documents.
        other: values of the same documents, in the same order.
        resamples: B, of the interval as of the test.
        seed: of both.

    Raises:
        ValueError: these aren't the same documents.
    """
    if one.attainable.shape != other.attainable.shape or not np.allclose(one.attainable, other.attainable):
        raise ValueError("the two rankings are of other documents, or judged by other propensities")
    between = Measured(one.values - other.values, one.attainable)
    drawn = np.concatenate(list(map(between.scores, _samples(len(one), resamples, seed))))
    points = between.scores(np.ones((1, len(one))))[0]
    # Swapping a document's rankings changes the sign of its difference, and no denominator.
    of = np.concatenate([np.full(len(MEANS), len(one)), one.attainable.sum(0)])
    as_large = np.zeros(len(MEASURES))
    for signs in _drawn(_sign, len(one), resamples, seed):
        swapped = np.abs(100 * (signs @ between.values) / of)
        as_large += (swapped >= np.abs(points) - 1e-9).sum(0)
    chances = (1 + as_large) / (1 + resamples)
    found = zip(points.tolist(), _middle(drawn), chances.tolist(), strict=True)
    return dict(zip(MEASURES, (Difference(*each) for each in found), strict=True))


def _samples(documents: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    return _drawn(_sample, documents, resamples, seed)


def _sample(random: np.random.Generator, documents: int) -> NDArray[np.float64]:
    return np.bincount(random.integers(0, documents, documents), minlength=documents).astype(np.float64)


def _sign(random: np.random.Generator, documents: int) -> NDArray[np.float64]:
    return random.integers(0, 2, documents).astype(np.float64) * 2 - 1


def _drawn(
    draw: Callable[[np.random.Generator, int], NDArray[np.float64]], documents: int, resamples: int, seed: int
) -> Iterator[NDArray[np.float64]]:
    """B rows [N] of weights, as many at once as memory is meant to hold."""
    random = np.random.default_rng(seed)
    at_once = max(1, WEIGHTS // max(1, documents))
    for start in range(0, resamples, at_once):
        yield np.stack([draw(random, documents) for _ in range(min(at_once, resamples - start))])


def _middle(drawn: NDArray[np.float64]) -> list[Interval]:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))
