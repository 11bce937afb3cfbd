"""Several trees that predict together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from axml_ray.corpus.store import Corpus
from axml_ray.inference.beam import Found, TreePredictor
from axml_ray.inference.combining import combine
from axml_ray.inference.frequency import FrequencyCorrection
from axml_ray.inference.texts import TextBatch, each_batch, length_batches
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment, SettingsError, fingerprint
from axml_ray.training.tree import level_fingerprint, linear_fingerprint

FREQUENCY = "frequency.json"
"""In a run's directory, what corrects its scores."""


@dataclass(frozen=True)
class Ensemble:
    """Trees that predict together.

    Attributes:
        trees: in the order of their numbers.
        top_labels: best labels of each tree whose scores are summed.
        correction: of the sums, if there is one.
    """

    trees: Sequence[TreePredictor]
    top_labels: int
    correction: FrequencyCorrection | None = None

    @classmethod
    def open(cls, settings: Experiment, corpus: Corpus) -> "Ensemble":
        """All trees of a finished run.

        Raises:
            SettingsError: a tree or a level is missing, cut short, or was trained with other settings.
        """
        numbers = range(settings.ensemble.trees)
        trees = [TreePredictor.open(settings, corpus, n) for n in numbers]
        return cls(trees, settings.ensemble.top_labels, correction_of(settings, corpus))

    def predict(self, tokens: Ragged) -> tuple[Found, list[Found]]:
        """The best labels of each document, by all trees, corrected, and by each: `top_labels` of each.

        Args:
            tokens: word ids, at least one a document.
        """
        found = self.find(tokens)
        best = combine([one for one, _ in found], [one for _, one in found], self.top_labels)
        return best if self.correction is None else self.correction.ranked(best, len(self.trees)), found

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
        """Scores of given labels, float32 [documents, n]: the sum of every tree's `TreePredictor.score`, corrected."""
        total = np.zeros((len(tokens), len(labels)), dtype=np.float32)
        for tree in self.trees:
            total += tree.score(tokens, labels)
        return total if self.correction is None else self.correction.scores(labels, total, len(self.trees))


def correction_of(settings: Experiment, corpus: Corpus) -> FrequencyCorrection | None:
    """What corrects the scores of a run's ensemble; None where they are left as they are.

    Raises:
        SettingsError: it wasn't fitted yet, or for other trees.
    """
    if not settings.ensemble.frequency_correction:
        return None
    path = settings.run_directory / FREQUENCY
    found = FrequencyCorrection.load(path, correction_fingerprint(settings, corpus), corpus.labels.counts)
    if found is None:
        raise SettingsError(f"{path}: no frequency correction of these trees; run jobs/train_ensemble.py")
    return found


def correction_fingerprint(settings: Experiment, corpus: Corpus) -> str:
    """Changes with all that the correction of an ensemble's scores depends on."""
    numbers = range(settings.ensemble.trees)
    networks = [level_fingerprint(settings, corpus, number, 1) for number in numbers]
    linear = [linear_fingerprint(settings, corpus, number) for number in numbers] if settings.linear.weight else []
    return fingerprint(networks, linear, settings.linear.weight, settings.ensemble.top_labels)
