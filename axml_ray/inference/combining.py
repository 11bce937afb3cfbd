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


def joined(
    one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray], share: float, top: int
) -> tuple[np.ndarray, np.ndarray]:
    """As `combine`, of two rankings' labels and scores; the other's count by `share`, the one's by the rest."""
    return combine([one[0], other[0]], [one[1] * (1 - share), other[1] * share], top)


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
    every = np.concatenate(labels, axis=1)
    summed = np.concatenate(scores, axis=1).astype(np.float64)
    order = np.argsort(every, axis=1, kind="stable")
    every, summed = np.take_along_axis(every, order, 1), np.take_along_axis(summed, order, 1)
    total = np.where(every >= 0, summed, -np.inf)
    # A label stands in at most as many neighbouring columns as there are rankings: the first takes the others' scores.
    width = every.shape[1]
    for shift in range(1, len(labels)):
        same = every[:, shift:] == every[:, : width - shift]
        total[:, : width - shift] += np.where(same & (every[:, shift:] >= 0), summed[:, shift:], 0.0)
    total[:, 1:][every[:, 1:] == every[:, :-1]] = -np.inf
    best = np.argsort(-total, axis=1, kind="stable")[:, :top]
    found, score = np.take_along_axis(every, best, 1), np.take_along_axis(total, best, 1)
    none = ~np.isfinite(score)
    found, score = np.where(none, -1, found), np.where(none, 0.0, score)
    missing = ((0, 0), (0, max(0, top - found.shape[1])))
    found = np.pad(found, missing, constant_values=-1).astype(np.int32)
    return found, np.pad(score, missing).astype(np.float32)
