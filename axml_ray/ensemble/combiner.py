"""The combiner interface: compute the ensemble's rankings and scores from those of its members.

The paper's combiner is the mean. The others start from the weighted mean and are fitted on the members' rankings of the
validation documents. `COMBINERS` is the registry; nothing outside this package and its settings names a kind.

Legend: N documents, k ranked labels per document, n given labels, M members, L labels.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK, weighted_sum


@dataclass(frozen=True)
class MemberWeights:
    """The kind and the weight of each member that is combined; not all weights are 0."""

    kinds: Sequence[str]
    weights: Sequence[float]

    @cached_property
    def shares(self) -> list[float]:
        """Return the weights divided by their sum, so that scores are a mean even if members are missing."""
        total = sum(self.weights)
        return [weight / total for weight in self.weights]


@dataclass(frozen=True)
class Validation:
    """The data that a combiner is fitted on: validation documents ranked by the members.

    Attributes:
        members: kinds and weights of the M members.
        rankings: ranking of each member, [N, k].
        truth: true label ids of the N documents.
        counts: int [L], training documents of each label.
    """

    members: MemberWeights
    rankings: Sequence[TopK]
    truth: Ragged
    counts: np.ndarray

    def take(self, rows: np.ndarray) -> "Validation":
        """Return some documents, given their numbers (int64)."""
        rankings = [TopK(*(array[rows] for array in ranking)) for ranking in self.rankings]
        return replace(self, rankings=rankings, truth=self.truth.take(rows))


class Combiner(ABC):
    """Base class of combiners."""

    is_fitted: ClassVar[bool] = True
    """Whether the combiner has parameters to fit; the mean has none."""

    @classmethod
    @abstractmethod
    def fit(cls, validation: Validation, k: int) -> "Combiner":
        """Fit on validation documents, for an ensemble that ranks k labels."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write the fitted parameters into an existing directory."""

    @classmethod
    @abstractmethod
    def load(cls, directory: Path, counts: np.ndarray) -> "Combiner":
        """Load what `save` wrote; `counts` (int [L]) are the training documents of each label.

        Raises:
            OSError, ValueError: a file is missing or broken.
        """

    def reweighted(self, members: MemberWeights) -> MemberWeights:
        """Return the members with the weights that the combiner gives them; by default their own."""
        return members

    def about(self) -> dict[str, Any] | None:
        """Return what a reader should know of the fit, as JSON values; None by default."""
        return None

    @abstractmethod
    def rank(self, members: MemberWeights, rankings: Sequence[TopK], k: int) -> TopK:
        """Rank the top k labels of the ensemble from the rankings of M members; scores are between 0 and 1."""

    @abstractmethod
    def score(self, members: MemberWeights, labels: np.ndarray, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Compute the ensemble's scores of given labels (integer [n]) from those of the members, all float32 [N, n]."""


class Mean(Combiner):
    """The paper's combiner: the weighted mean of the members' scores, 0 for a label that a member does not rank."""

    is_fitted: ClassVar[bool] = False

    @classmethod
    def fit(cls, validation: Validation, k: int) -> "Mean":
        """Return a mean; there is nothing to fit."""
        return cls()

    def save(self, directory: Path) -> None:
        """Do nothing; there are no parameters."""

    @classmethod
    def load(cls, directory: Path, counts: np.ndarray) -> "Mean":
        """Return a mean; there are no parameters."""
        return cls()

    def rank(self, members: MemberWeights, rankings: Sequence[TopK], k: int) -> TopK:
        """Rank by the weighted mean of the members' scores."""
        return weighted_sum(rankings, members.shares, k)

    def score(self, members: MemberWeights, labels: np.ndarray, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Compute the weighted mean of the members' scores."""
        mean = sum(share * each.astype(np.float64) for share, each in zip(members.shares, scores, strict=True))
        return np.asarray(mean, dtype=np.float32)


FOLDS = 5
"""Number of folds of `out_of_fold`, by default."""


def out_of_fold(combiner: type[Combiner], validation: Validation, k: int, folds: int = FOLDS) -> TopK:
    """Rank the top k labels of each validation document by a combiner that was fitted without it.

    Probabilities are calibrated on these rankings: scores of documents that the combiner was fitted on are too good. A
    combiner without parameters ranks all documents at once, and a single document is ranked by its own fit.
    """
    documents = len(validation.truth)
    folds = min(folds, documents)
    if folds < 2 or not combiner.is_fitted:
        return combiner.fit(validation, k).rank(validation.members, validation.rankings, k)
    # Shuffled, since neighbouring documents may be alike; by a fixed seed, so that a run can be repeated.
    fold_of = np.random.default_rng(0).permutation(documents) % folds
    result = TopK.empty(documents, k)
    for fold in range(folds):
        fitted_on, held_out = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
        fitted = combiner.fit(validation.take(fitted_on), k)
        ranking = fitted.rank(validation.members, validation.take(held_out).rankings, k)
        result.labels[held_out], result.scores[held_out] = ranking
    return result


COMBINERS = {
    "mean": "axml_ray.ensemble.combiner:Mean",
    "calibrated": "axml_ray.ensemble.frequency:FrequencyCalibration",
    "weighted": "axml_ray.ensemble.weights:FittedWeights",
}


def combiner_class(kind: str) -> type[Combiner]:
    """Import and return the class of a kind of combiner; a ValueError if it is not in `COMBINERS`."""
    if kind not in COMBINERS:
        raise ValueError(f"unknown combiner {kind!r}. Choose one of {', '.join(COMBINERS)}")
    module, _, name = COMBINERS[kind].partition(":")
    implementation: type[Combiner] = getattr(importlib.import_module(module), name)
    return implementation
