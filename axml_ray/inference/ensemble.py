"""Several trees that predict together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from axml_ray.corpus.store import Corpus
from axml_ray.inference.beam import TreePredictor, join_fingerprint
from axml_ray.inference.combining import Found, Votes
from axml_ray.inference.frequency import FrequencyCorrection
from axml_ray.inference.texts import TextBatch, each_batch, length_batches
from axml_ray.linear.classifiers import Seen
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment, SettingsError, fingerprint

FREQUENCY = "frequency.json"
"""In a run's directory, what corrects its scores."""


@dataclass(frozen=True)
class Ensemble:
    """Trees that predict together.

    Attributes:
        trees: in the order of their numbers.
        votes: how they are joined.
    """

    trees: Sequence[TreePredictor]
    votes: Votes

    @classmethod
    def open(cls, settings: Experiment, corpus: Corpus) -> "Ensemble":
        """All trees of a finished run.

        Raises:
            SettingsError: a tree or a level is missing, cut short, or was trained with other settings.
        """
        return cls(open_trees(settings, corpus), votes_of(settings, corpus))

    def predict(self, tokens: Ragged) -> tuple[Found, list[Found]]:
        """The best labels of each document, by all trees, corrected, and by each: `votes.top_labels` of each.

        Args:
            tokens: word ids, at least one a document.
        """
        found = self.find(tokens)
        return self.votes.ranking(found), found

    def find(self, tokens: Ragged) -> list[Found]:
        """The `votes.top_labels` best labels of each document by each tree.

        Args:
            tokens: word ids, at least one a document.
        """
        shape = (len(tokens), self.votes.top_labels)
        found = [(np.full(shape, -1, np.int32), np.zeros(shape, np.float32)) for _ in self.trees]

        def work(batch: TextBatch) -> tuple[np.ndarray, list[Found]]:
            seen = self._see(batch.ragged())
            return batch.rows, [tree.predict_batch(batch, self.votes.top_labels, seen) for tree in self.trees]

        # Sorted, padded and looked up once for all trees.
        for rows, of_trees in each_batch(work, length_batches(tokens)):
            for (labels, scores), (some_labels, some_scores) in zip(found, of_trees, strict=True):
                labels[rows], scores[rows] = some_labels, some_scores
        return found

    def _see(self, tokens: Ragged) -> Seen | None:
        return self.trees[0].see(tokens) if self._alike else None

    @cached_property
    def _alike(self) -> bool:
        """Whether one tree may see for all; a bundle's may be of several runs."""
        linear = [tree.linear and tree.linear[0] for tree in self.trees]
        return all(one and linear[0] and one.sees_like(linear[0]) for one in linear)

    def score(self, tokens: Ragged, labels: np.ndarray) -> np.ndarray:
        """Scores of given labels, float32 [documents, n]: the sum of every tree's `TreePredictor.score`, corrected."""
        return self.votes.scores(labels, self.score_each(tokens, labels))

    def score_each(self, tokens: Ragged, labels: np.ndarray) -> Iterator[np.ndarray]:
        """Each tree's `TreePredictor.score` of given labels, one after the other."""
        seen = self._see(tokens)
        return (tree.score(tokens, labels, seen) for tree in self.trees)


def open_trees(settings: Experiment, corpus: Corpus) -> list[TreePredictor]:
    """All trees of a finished run.

    Raises:
        SettingsError: a tree or a level is missing, cut short, or was trained with other settings.
    """
    return [TreePredictor.open(settings, corpus, number) for number in range(settings.ensemble.trees)]


def votes_of(settings: Experiment, corpus: Corpus) -> Votes:
    """How the trees of a run are joined.

    Raises:
        SettingsError: what corrects their scores wasn't fitted yet, or for other trees.
    """
    if not settings.ensemble.frequency_correction:
        return Votes(settings.ensemble.top_labels)
    path = settings.run_directory / FREQUENCY
    found = FrequencyCorrection.load(path, correction_fingerprint(settings, corpus), corpus.labels.counts)
    if found is None:
        raise SettingsError(f"{path}: no frequency correction of these trees; run jobs/train_ensemble.py")
    return Votes(settings.ensemble.top_labels, found)


def correction_fingerprint(settings: Experiment, corpus: Corpus) -> str:
    """Changes with all that the correction of an ensemble's scores depends on."""
    members = join_fingerprint(settings, corpus)
    return fingerprint(members, "learned join") if settings.linear.learned_join else members


def predictions_fingerprint(settings: Experiment, corpus: Corpus) -> str:
    """Changes with all that the ensemble's predictions depend on."""
    return fingerprint(correction_fingerprint(settings, corpus), settings.ensemble.frequency_correction)
