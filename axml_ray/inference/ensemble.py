"""Several trees that predict together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from axml_ray.corpus.store import Corpus
from axml_ray.inference.beam import TreePredictor, join_fingerprint
from axml_ray.inference.combining import Ballot, Found, Votes
from axml_ray.inference.frequency import FrequencyCorrection
from axml_ray.inference.learned_join import ABOUT, LearnedJoin
from axml_ray.inference.texts import TextBatch, each_batch, length_batches
from axml_ray.linear.checked import fingerprint_of
from axml_ray.linear.classifiers import Seen
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment, SettingsError, fingerprint

FREQUENCY = "frequency.json"
"""In a run's directory, what corrects its scores."""
LEARNED_JOIN = "learned_join.safetensors"
"""There too, what its networks and classifiers are worth together."""


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

    def predict(self, tokens: Ragged) -> tuple[Found, list[Ballot]]:
        """The best labels of each document, by all trees, as they are joined, and by each: `votes.top_labels` of each.

        Args:
            tokens: word ids, at least one a document.
        """
        found = self.find(tokens)
        return self.votes.ranking(found), found

    def find(self, tokens: Ragged) -> list[Ballot]:
        """The `votes.top_labels` best labels of each document by each tree.

        Args:
            tokens: word ids, at least one a document.
        """
        found = [Ballot.empty(len(tokens), self.votes.top_labels) for _ in self.trees]

        def work(batch: TextBatch) -> tuple[np.ndarray, list[Ballot]]:
            seen = self._see(batch.ragged())
            return batch.rows, [tree.predict_batch(batch, self.votes.top_labels, seen) for tree in self.trees]

        # Sorted, padded and looked up once for all trees.
        for rows, of_trees in each_batch(work, length_batches(tokens)):
            for whole, some in zip(found, of_trees, strict=True):
                for part, some_of_it in zip(whole, some, strict=True):
                    part[rows] = some_of_it
        return found

    def _see(self, tokens: Ragged) -> Seen | None:
        return self.trees[0].see(tokens) if self._alike else None

    @cached_property
    def _alike(self) -> bool:
        """Whether one tree may see for all; a bundle's may be of several runs."""
        linear = [tree.linear and tree.linear[0] for tree in self.trees]
        return all(one and linear[0] and one.sees_like(linear[0]) for one in linear)

    def score(self, tokens: Ragged, labels: np.ndarray) -> np.ndarray:
        """Scores of given labels, float32 [documents, n]: every tree's `TreePredictor.score`, joined by `votes`."""
        return self.votes.scores(labels, self.score_each(tokens, labels))

    def score_each(self, tokens: Ragged, labels: np.ndarray) -> Iterator[np.ndarray]:
        """What `votes` need of each tree's `TreePredictor.said_of` given labels, one after the other: the scores alone
        where no join is learned.
        """
        seen, needed = self._see(tokens), None if self.votes.learned else 1
        return (tree.said_of(tokens, labels, seen)[..., :needed] for tree in self.trees)


def open_trees(settings: Experiment, corpus: Corpus) -> list[TreePredictor]:
    """All trees of a finished run.

    Raises:
        SettingsError: a tree or a level is missing, cut short, or was trained with other settings.
    """
    return [TreePredictor.open(settings, corpus, number) for number in range(settings.ensemble.trees)]


def votes_of(settings: Experiment, corpus: Corpus) -> Votes:
    """How the trees of a run are joined.

    Raises:
        SettingsError: what their scores are corrected or joined by wasn't fitted yet, or for other trees.
    """
    return Votes(settings.ensemble.top_labels, _correction(settings, corpus), _learned_join(settings, corpus))


def _correction(settings: Experiment, corpus: Corpus) -> FrequencyCorrection | None:
    if not settings.ensemble.frequency_correction:
        return None
    path = settings.run_directory / FREQUENCY
    found = FrequencyCorrection.load(path, join_fingerprint(settings, corpus), corpus.labels.counts)
    if found is None:
        raise SettingsError(f"{path}: no frequency correction of these trees; run jobs/train_ensemble.py")
    return found


def _learned_join(settings: Experiment, corpus: Corpus) -> LearnedJoin | None:
    if not settings.linear.learned_join:
        return None
    path = settings.run_directory / LEARNED_JOIN
    if fingerprint_of(path, ABOUT) != learned_join_fingerprint(settings, corpus):
        raise SettingsError(f"{path}: no learned join of these trees; run jobs/train_ensemble.py")
    try:
        return LearnedJoin.load(path, corpus.labels.counts)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{error}; remove the file and run jobs/train_ensemble.py") from None


def learned_join_fingerprint(settings: Experiment, corpus: Corpus) -> str:
    """Changes with all that a learned join depends on."""
    return fingerprint(join_fingerprint(settings, corpus), settings.ensemble.frequency_correction, "boosted")


def predictions_fingerprint(settings: Experiment, corpus: Corpus) -> str:
    """Changes with all that the ensemble's predictions depend on."""
    if settings.linear.learned_join:
        return learned_join_fingerprint(settings, corpus)
    return fingerprint(join_fingerprint(settings, corpus), settings.ensemble.frequency_correction)
