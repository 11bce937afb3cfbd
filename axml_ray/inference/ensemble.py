"""Several trees that predict together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from axml_ray.corpus.store import Corpus
from axml_ray.inference.beam import Found, TreePredictor
from axml_ray.inference.combining import combine
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
