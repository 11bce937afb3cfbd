"""Uncertainty of scores: bootstrap intervals over documents, and a paired comparison of two rankings.

- An interval is the middle 95 % of the scores of samples drawn with replacement from the documents (percentile
  bootstrap). It covers the choice of documents, not the randomness of training.
- Two rankings of the same documents are compared by the difference of their scores, with a bootstrap interval and the
  p-value of a paired permutation test: how often swapping the two rankings of random documents makes as large a
  difference. There is no correction for testing several metrics.
- Of many documents, groups of equal size are drawn, or swapped, instead of each document: means vary as much, and the
  time no longer grows with their number.
- Both depend on the seed alone, not on the memory for samples.

Shapes: N documents, M metrics, B samples, G groups.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from axml_ray.evaluation.metrics.metrics import MEANS, METRICS, DocumentScores

LEVEL = 0.95
RESAMPLES, SEED = 1_000, 0
"""Bootstrap resamples of an interval or a test, and their seed."""
MAX_WEIGHTS = 1 << 22
"""Greatest number of document weights (of all samples together) in memory at once."""
MOST_GROUPS = 1 << 14
"""Largest number of documents that are drawn one by one, and of groups of more. With G groups, the width of an interval
is known to a share of 1 / √(2G): 0.6 to 0.8 %."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two rankings in one metric and its 95 % interval, in percentage points."""

    points: float
    interval: Interval
    p: float
    """Two-sided p-value of the paired permutation test."""


def bootstrap_intervals(scores: DocumentScores, *, resamples: int = RESAMPLES, seed: int = SEED) -> dict[str, Interval]:
    """Compute the 95 % interval of each metric, in percent, from B `resamples`."""
    drawn = _grouped(scores)
    samples = _draw_weights(_draw_sample, len(drawn), resamples, seed)
    sampled_BM = np.concatenate([drawn.scores(weights) for weights in samples])
    return dict(zip(METRICS, _percentile_intervals(sampled_BM), strict=True))


def compare_paired(
    one: DocumentScores, other: DocumentScores, *, resamples: int = RESAMPLES, seed: int = SEED
) -> dict[str, Difference]:
    """Compute the difference `one` minus `other` in each metric, for two rankings of the same documents in one order.

    Both the interval and the test take B `resamples`.

    Raises:
        ValueError: the documents or the propensities differ.
    """
    if one.attainable.shape != other.attainable.shape or not np.allclose(one.attainable, other.attainable):
        raise ValueError("the two rankings have different documents or different propensities")
    differences = DocumentScores(one.values - other.values, one.attainable)
    points = differences.scores(np.ones((1, len(one))))[0]
    differences = _grouped(differences)
    documents = len(differences)
    samples = _draw_weights(_draw_sample, documents, resamples, seed)
    sampled_BM = np.concatenate([differences.scores(weights) for weights in samples])
    # Swapping a document's rankings flips the sign of its difference and leaves the denominators unchanged.
    denominators = np.concatenate([np.full(len(MEANS), documents), differences.attainable.sum(0)])
    as_large = np.zeros(len(METRICS))
    for signs in _draw_weights(_draw_signs, documents, resamples, seed):
        swapped = np.abs(100 * (signs @ differences.values) / denominators)
        as_large += (swapped >= np.abs(points) - 1e-9).sum(0)
    p_values = (1 + as_large) / (1 + resamples)
    results = zip(points.tolist(), _percentile_intervals(sampled_BM), p_values.tolist(), strict=True)
    return dict(zip(METRICS, (Difference(*values) for values in results), strict=True))


def _grouped(scores: DocumentScores) -> DocumentScores:
    """Return the means of at most `MOST_GROUPS` groups of equal size; the documents themselves if these are not more.

    Neighbours may be alike, so a group has documents that are far from each other. Fewer documents than a group has are
    left out at the end.
    """
    size = math.ceil(len(scores) / MOST_GROUPS)
    groups = len(scores) // size
    columns = (scores.values, scores.attainable)
    return DocumentScores(*(each[: groups * size].reshape(size, groups, -1).mean(0) for each in columns))


def _draw_sample(random: np.random.Generator, documents: int) -> NDArray[np.float64]:
    return np.bincount(random.integers(0, documents, documents), minlength=documents).astype(np.float64)


def _draw_signs(random: np.random.Generator, documents: int) -> NDArray[np.float64]:
    return random.integers(0, 2, documents).astype(np.float64) * 2 - 1


def _draw_weights(
    draw: Callable[[np.random.Generator, int], NDArray[np.float64]], documents: int, resamples: int, seed: int
) -> Iterator[NDArray[np.float64]]:
    """Yield B rows of document weights [N], in blocks [b, N] of at most `MAX_WEIGHTS` weights."""
    random = np.random.default_rng(seed)
    block = max(1, MAX_WEIGHTS // max(1, documents))
    for start in range(0, resamples, block):
        yield np.stack([draw(random, documents) for _ in range(min(block, resamples - start))])


def _percentile_intervals(sampled_BM: NDArray[np.float64]) -> list[Interval]:
    low, high = np.quantile(sampled_BM, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))
