"""Several rankings into one: sums of scores over their best labels, 0 where one left a label out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from axml_ray.inference.frequency import FrequencyCorrection


@dataclass(frozen=True, eq=False)
class Votes:
    """How what trees found becomes what their ensemble says.

    Attributes:
        top_labels: best labels of each tree whose scores are summed, and of the ensemble.
        correction: of the sums, if there is one.
    """

    top_labels: int
    correction: FrequencyCorrection | None = None

    def ranking(self, of_trees: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        """The ensemble's best labels and their scores, as of `combine`, from those of each tree."""
        summed = combine([labels for labels, _ in of_trees], [scores for _, scores in of_trees], self.top_labels)
        return summed if self.correction is None else self.correction.ranked(summed, len(of_trees))

    def scores(self, labels: np.ndarray, of_trees: Iterable[np.ndarray]) -> np.ndarray:
        """The ensemble's scores of given labels (integer [n]), float32 [documents, n], from those of each tree."""
        total, trees = np.zeros((), np.float32), 0
        for scores in of_trees:
            total, trees = total + scores, trees + 1
        return total if self.correction is None else self.correction.scores(labels, total, trees)


def combine(labels: Sequence[np.ndarray], scores: Sequence[np.ndarray], top: int) -> tuple[np.ndarray, np.ndarray]:
    """One ranking from several.

    Args:
        labels: of each, int32 [documents, k], distinct in a row, -1 for none.
        scores: float32 [documents, k].
        top: labels wanted.

    Returns:
        int32 [documents, top], best first (equal scores by label id), -1 where there are fewer, and the summed
        scores, float32 [documents, top].
    """
    every, of_each = aligned(labels, scores)
    return ranked(every, of_each.sum(axis=2), top)


def aligned(labels: Sequence[np.ndarray], scores: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The labels of several rankings, each once, beside what each ranking says of them.

    Args:
        labels: of each of M rankings, int32 [documents, k], distinct in a row, -1 for none.
        scores: float [documents, k].

    Returns:
        int32 [documents, all k], rising, with a -1 wherever none stands, and float64 [documents, all k, M], 0 where a
        ranking left a label out.
    """
    every, rankings = np.concatenate(labels, axis=1), len(labels)
    whose = np.repeat(np.arange(rankings), [one.shape[1] for one in labels])
    order = np.argsort(every, axis=1, kind="stable")
    every, points = np.take_along_axis(every, order, 1), np.take_along_axis(np.concatenate(scores, axis=1), order, 1)
    alone = np.where(whose[order][..., None] == np.arange(rankings), points[..., None].astype(np.float64), 0.0)
    # A label stands in at most as many neighbouring columns as there are rankings: the first takes the others' scores.
    of_each, width = alone.copy(), every.shape[1]
    for shift in range(1, rankings):
        same = every[:, shift:] == every[:, : width - shift]
        of_each[:, : width - shift] += np.where(same[..., None], alone[:, shift:], 0.0)
    again = np.zeros(every.shape, dtype=bool)
    again[:, 1:] = every[:, 1:] == every[:, :-1]
    return np.where(again, -1, every), of_each


def ranked(labels: np.ndarray, scores: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """The best of some labels (int32 [documents, k], -1 for none) by scores (float [documents, k]), as of `combine`."""
    best = np.argsort(np.where(labels >= 0, -scores, np.inf), axis=1, kind="stable")[:, :top]
    found, score = np.take_along_axis(labels, best, 1), np.take_along_axis(scores, best, 1)
    missing = ((0, 0), (0, max(0, top - found.shape[1])))
    score = np.pad(np.where(found >= 0, score, 0.0), missing).astype(np.float32)
    return np.pad(found, missing, constant_values=-1).astype(np.int32), score
