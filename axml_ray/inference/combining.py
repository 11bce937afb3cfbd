"""Several rankings into one: sums of scores over their best labels, 0 where one left a label out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from axml_ray.inference.frequency import FrequencyCorrection
from axml_ray.inference.learned_join import LearnedJoin

Found = tuple[np.ndarray, np.ndarray]
"""Label ids, int32 [documents, top], best first, -1 for none; and their scores, float32 [documents, top], 0 there."""


class Ballot(NamedTuple):
    """What a tree says of some labels of each document."""

    labels: np.ndarray
    """Ids, int32 [documents, k], -1 for none."""
    scores: np.ndarray
    """float32 [documents, k]."""
    networks: np.ndarray
    """Of which these are the mean: the networks' scores, float32 [documents, k]."""
    classifiers: np.ndarray
    """And the linear classifiers', zeros where a tree has none."""

    @classmethod
    def empty(cls, documents: int, top: int) -> "Ballot":
        """No labels yet."""
        scores = (np.zeros((documents, top), np.float32) for _ in cls._fields[1:])
        return cls(np.full((documents, top), -1, np.int32), *scores)

    @classmethod
    def of_networks(cls, labels: np.ndarray, scores: np.ndarray) -> "Ballot":
        """Of a tree without classifiers."""
        return cls(labels, scores, scores, np.zeros_like(scores))

    @property
    def found(self) -> Found:
        """Labels and scores."""
        return self.labels, self.scores


@dataclass(frozen=True, eq=False)
class Votes:
    """How what trees found becomes what their ensemble says.

    Attributes:
        top_labels: best labels of each tree whose scores are summed, and of the ensemble.
        correction: of the sums, if there is one.
        learned: what networks and classifiers are worth beyond that, if that was learned.
    """

    top_labels: int
    correction: FrequencyCorrection | None = None
    learned: LearnedJoin | None = None

    def ranking(self, of_trees: Sequence[Ballot]) -> Found:
        """The ensemble's best labels and their scores, as of `combine`, from those of each tree."""
        if self.learned is not None:
            labels, means = mean_ballot(of_trees, self.top_labels)
            return ranked(labels, self._learned(labels, means, len(of_trees)), self.top_labels)
        summed = combine([each.labels for each in of_trees], [each.scores for each in of_trees], self.top_labels)
        return summed if self.correction is None else self.correction.ranked(summed, len(of_trees))

    def scores(self, labels: np.ndarray, of_trees: Iterable[np.ndarray]) -> np.ndarray:
        """The ensemble's scores of given labels, float32 [documents, n].

        Args:
            labels: integer [n].
            of_trees: what each tree says of them, as of `Ensemble.score_each`.
        """
        total, trees = np.zeros((), np.float32), 0
        for said in of_trees:
            total, trees = total + said, trees + 1
        if self.learned is not None:
            return self._learned(np.broadcast_to(labels, total.shape[:-1]), total / np.float32(trees), trees)
        summed: np.ndarray = total[..., 0]
        return summed if self.correction is None else self.correction.scores(labels, summed, trees)

    def _learned(self, labels: np.ndarray, means: np.ndarray, trees: int) -> np.ndarray:
        assert self.learned is not None
        scores: np.ndarray = (self.learned.scores(labels, means, self.correction) * trees).astype(np.float32)
        return scores


def mean_ballot(of_trees: Sequence[Ballot], top: int) -> tuple[np.ndarray, np.ndarray]:
    """The labels that trees score best together, and what they say of them in the mean.

    Args:
        of_trees: of the same documents.
        top: labels wanted.

    Returns:
        int32 [documents, top], best first (equal scores by label id), -1 where there are fewer; and float32
        [documents, top, 3], the means of their scores, of the networks' and of the classifiers', where a label that a
        tree left out counts 0.
    """
    every, order = _by_label([each.labels for each in of_trees])
    _, *parts = (_ordered(part, order) for part in zip(*of_trees, strict=True))
    means = (_added(every, part, len(of_trees)) / len(of_trees) for part in parts)
    labels, *best = best_of(_once(every), top, *means)
    return labels, np.stack(best, axis=2)


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
    every, order = _by_label(labels)
    return ranked(_once(every), _added(every, _ordered(scores, order), len(labels)), top)


def aligned(labels: Sequence[np.ndarray], scores: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The labels of several rankings, each once, beside what each ranking says of them.

    Args:
        labels: of each of M rankings, int32 [documents, k], distinct in a row, -1 for none.
        scores: float [documents, k].

    Returns:
        int32 [documents, all k], rising but for a -1 wherever none stands, and float64 [documents, all k, M], 0 there
        and where a ranking left a label out.
    """
    every, order = _by_label(labels)
    points, whose = _ordered(scores, order), np.repeat(np.arange(len(labels)), [one.shape[1] for one in labels])[order]
    rankings = range(len(labels))
    once = _once(every)
    of_each = [_added(every, np.where(whose == one, points, 0.0), len(labels)) for one in rankings]
    return once, np.stack([np.where(once >= 0, of_one, 0.0) for of_one in of_each], axis=2)


def _by_label(labels: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """All labels of a document in order, and where they stood one ranking after the other."""
    every = np.concatenate(labels, axis=1)
    order = np.argsort(every, axis=1, kind="stable")
    return np.take_along_axis(every, order, 1), order


def _ordered(scores: Sequence[np.ndarray], order: np.ndarray) -> np.ndarray:
    """The rankings' scores in the order of their labels, float64."""
    return np.take_along_axis(np.concatenate(scores, axis=1).astype(np.float64), order, 1)


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
    found, points = best_of(labels, top, scores)
    return found, points


def best_of(labels: np.ndarray, top: int, scores: np.ndarray, *more: np.ndarray) -> list[np.ndarray]:
    """The best of some labels, and what is said of them.

    Args:
        labels: int32 [documents, k], -1 for none.
        top: labels wanted.
        scores: float [documents, k], by which they are the best, the first of equals first. A label whose score isn't
            finite counts as none.
        more: of the same shape.

    Returns:
        int32 [documents, top], -1 where there are fewer; then the scores and what is more of them, float32, 0 there.
    """
    there = (labels >= 0) & np.isfinite(scores)
    best = np.argsort(np.where(there, -scores, np.inf), axis=1, kind="stable")[:, :top]
    there, found, *values = (np.take_along_axis(each, best, 1) for each in (there, labels, scores, *more))
    missing = ((0, 0), (0, max(0, top - found.shape[1])))
    found = np.pad(np.where(there, found, -1), missing, constant_values=-1).astype(np.int32)
    return [found, *(np.pad(np.where(there, value, 0.0), missing).astype(np.float32) for value in values)]
