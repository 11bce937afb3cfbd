"""Several rankings into one: sums of scores over their best labels, 0 where one left a label out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from axml_ray.inference.frequency import FrequencyCorrection

Found = tuple[np.ndarray, np.ndarray]
"""Label ids, int32 [documents, top], best first, -1 for none; and their scores, float32 [documents, top], 0 there."""


@dataclass(frozen=True, eq=False)
class Votes:
    """How what trees found becomes what their ensemble says.

    Attributes:
        top_labels: best labels of each tree whose scores are summed, and of the ensemble.
        correction: of the sums, if there is one.
    """

    top_labels: int
    correction: FrequencyCorrection | None = None

    def ranking(self, of_trees: Sequence[Found]) -> Found:
        """The ensemble's best labels and their scores, as of `combine`, from those of each tree."""
        summed = combine([labels for labels, _ in of_trees], [scores for _, scores in of_trees], self.top_labels)
        return summed if self.correction is None else self.correction.ranked(summed, len(of_trees))

    def scores(self, labels: np.ndarray, of_trees: Iterable[np.ndarray]) -> np.ndarray:
        """The ensemble's scores of given labels (integer [n]), float32 [documents, n], from those of each tree."""
        total, trees = np.zeros((), np.float32), 0
        for scores in of_trees:
            total, trees = total + scores, trees + 1
        return total if self.correction is None else self.correction.scores(labels, total, trees)


def combine(labels: Sequence[np.ndarray], scores: Sequence[np.ndarray], top: int) -> Found:
    """One ranking from several.

    Args:
        labels: of each, int32 [documents, k], distinct in a row, -1 for none.
        scores: float32 [documents, k].
        top: labels wanted.

    Returns:
        int32 [documents, top], best first (equal scores by label id), -1 where there are fewer, and the summed
        scores, float32 [documents, top].
    """
    every, points, _ = _by_label(labels, scores)
    return ranked(_once(every), _added(every, points, len(labels)), top)


def aligned(labels: Sequence[np.ndarray], scores: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The labels of several rankings, each once, beside what each ranking says of them.

    Args:
        labels: of each of M rankings, int32 [documents, k], distinct in a row, -1 for none.
        scores: float [documents, k].

    Returns:
        int32 [documents, all k], rising but for a -1 wherever none stands, and float64 [documents, all k, M], 0 there
        and where a ranking left a label out.
    """
    every, points, whose = _by_label(labels, scores)
    rankings = range(len(labels))
    once = _once(every)
    of_each = [_added(every, np.where(whose == one, points, 0.0), len(labels)) for one in rankings]
    return once, np.stack([np.where(once >= 0, of_one, 0.0) for of_one in of_each], axis=2)


def _by_label(labels: Sequence[np.ndarray], scores: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All labels of a document in order, their scores (float64), and which ranking each is of."""
    every = np.concatenate(labels, axis=1)
    order = np.argsort(every, axis=1, kind="stable")
    points = np.take_along_axis(np.concatenate(scores, axis=1).astype(np.float64), order, 1)
    whose = np.repeat(np.arange(len(labels)), [one.shape[1] for one in labels])[order]
    return np.take_along_axis(every, order, 1), points, whose


def _added(every: np.ndarray, points: np.ndarray, rankings: int) -> np.ndarray:
    """Where a label stands first, the sum of its points. It stands in at most `rankings` neighbouring columns."""
    total, width = points.copy(), every.shape[1]
    for shift in range(1, rankings):
        same = every[:, shift:] == every[:, : width - shift]
        total[:, : width - shift] += np.where(same, points[:, shift:], 0.0)
    return total


def _once(every: np.ndarray) -> np.ndarray:
    """Labels in order, -1 where one stands again."""
    found = every.copy()
    found[:, 1:][every[:, 1:] == every[:, :-1]] = -1
    return found


def ranked(labels: np.ndarray, scores: np.ndarray, top: int) -> Found:
    """The best of some labels (int32 [documents, k], -1 for none) by scores (float [documents, k]), as of `combine`."""
    there = (labels >= 0) & np.isfinite(scores)
    best = np.argsort(np.where(there, -scores, np.inf), axis=1, kind="stable")[:, :top]
    there, found, score = (np.take_along_axis(values, best, 1) for values in (there, labels, scores))
    missing = ((0, 0), (0, max(0, top - found.shape[1])))
    found = np.pad(np.where(there, found, -1), missing, constant_values=-1).astype(np.int32)
    return found, np.pad(np.where(there, score, 0.0), missing).astype(np.float32)
