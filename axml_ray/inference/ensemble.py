"""Several trees' scores into one ranking: sums over the trees' best labels, 0 where a tree left a label out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from axml_ray.corpus.store import Corpus
from axml_ray.inference.beam import Found, TreePredictor
from axml_ray.inference.texts import TextBatch, each_batch, length_batches
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment


@dataclass(frozen=True)
class Ensemble:
    """Trees that predict together.

    Attributes:
        trees: in the order of their numbers.
        top_labels: best labels of each tree whose scores are summed.
    """

    trees: Sequence[TreePredictor]
    top_labels: int

    @classmethod
    def open(cls, settings: Experiment, corpus: Corpus) -> "Ensemble":
        """All trees of a finished run.

        Raises:
            SettingsError: a tree or a level is missing, cut short, or was trained with other settings.
        """
        numbers = range(settings.ensemble.trees)
        return cls([TreePredictor.open(settings, corpus, n) for n in numbers], settings.ensemble.top_labels)

    def predict(self, tokens: Ragged) -> tuple[Found, list[Found]]:
        """The best labels of each document, by all trees and by each: `top_labels` of each.

        Args:
            tokens: word ids, at least one a document.
        """
        found = self.find(tokens)
        return combine([one for one, _ in found], [one for _, one in found], self.top_labels), found

    def find(self, tokens: Ragged) -> list[Found]:
        """The `top_labels` best labels of each document by each tree.

        Args:
            tokens: word ids, at least one a document.
        """
        shape = (len(tokens), self.top_labels)
        found = [(np.full(shape, -1, np.int32), np.zeros(shape, np.float32)) for _ in self.trees]

        def work(batch: TextBatch) -> tuple[np.ndarray, list[Found]]:
            return batch.rows, [tree.predict_batch(batch, self.top_labels) for tree in self.trees]

        # Sorted and padded once for all trees.
        for rows, of_trees in each_batch(work, length_batches(tokens)):
            for (labels, scores), (some_labels, some_scores) in zip(found, of_trees, strict=True):
                labels[rows], scores[rows] = some_labels, some_scores
        return found

    def score(self, tokens: Ragged, labels: np.ndarray) -> np.ndarray:
        """Summed probabilities of given labels, float32 [documents, n]: `TreePredictor.score` of every tree."""
        total = np.zeros((len(tokens), len(labels)), dtype=np.float32)
        for tree in self.trees:
            total += tree.score(tokens, labels)
        return total


def combine(labels: Sequence[np.ndarray], scores: Sequence[np.ndarray], top: int) -> tuple[np.ndarray, np.ndarray]:
    """One ranking from several trees.

    Args:
        labels: of each tree, int32 [documents, k], distinct in a row, -1 for none.
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
    # A label stands in at most as many neighbouring columns as there are trees: the first takes the others' scores.
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
