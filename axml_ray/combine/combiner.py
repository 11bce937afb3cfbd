"""What a combiner is: it turns the members' rankings and scores into the ensemble's.

The paper's is the mean. Others start from the weighted mean and are fitted on the ensemble's own rankings of the
validation documents. `COMBINERS` lists the kinds; nothing outside this package and its settings knows one by its name.

Legend: N documents, k labels of each, n given labels, M members, L labels.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from axml_ray.members.topk import TopK, weighted_sum
from axml_ray.ragged import Ragged


@dataclass(frozen=True)
class Weighted:
    """The members that give rankings or scores, in their order.

    Attributes:
        kinds: of each.
        weights: of each, positive.
    """

    kinds: Sequence[str]
    weights: Sequence[float]
    shares: Sequence[float] = field(init=False)
    """The weights divided by their sum, so that the members that are there make a mean where some are away."""

    def __post_init__(self) -> None:
        total = sum(self.weights)
        object.__setattr__(self, "shares", [weight / total for weight in self.weights])


@dataclass(frozen=True)
class Validation:
    """What a combiner is fitted on.

    Attributes:
        members: that ranked the documents.
        rankings: of each member, [N, k].
        truth: true label ids of the N documents.
        counts: int [L], training documents of each label.
    """

    members: Weighted
    rankings: Sequence[TopK]
    truth: Ragged
    counts: np.ndarray


class Combiner(ABC):
    """Combines the members' rankings and scores."""

    is_fitted: ClassVar[bool] = True
    """Whether `fit` learns something; the mean does not."""

    @classmethod
    @abstractmethod
    def fit(cls, validation: Validation, k: int) -> "Combiner":
        """Learn from validation documents; k labels of the ensemble are ranked."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write what was learned into a directory, which exists."""

    @classmethod
    @abstractmethod
    def load(cls, directory: Path, counts: np.ndarray) -> "Combiner":
        """Open what `save` wrote.

        Args:
            directory: of the combiner.
            counts: int [L], training documents of each label.

        Raises:
            OSError, ValueError: a file is missing or broken.
        """

    @abstractmethod
    def rank(self, members: Weighted, rankings: Sequence[TopK], k: int) -> TopK:
        """The ensemble's best k labels from the rankings of M members; scores between 0 and 1."""

    @abstractmethod
    def score(self, members: Weighted, labels: np.ndarray, scores: Sequence[np.ndarray]) -> np.ndarray:
        """The ensemble's scores of given labels, float32 [N, n].

        Args:
            members: M.
            labels: integer [n].
            scores: of each member, float32 [N, n].
        """


class Mean(Combiner):
    """The weighted mean of the members' scores; a label that a member leaves out counts 0 for it (the paper's)."""

    is_fitted: ClassVar[bool] = False

    @classmethod
    def fit(cls, validation: Validation, k: int) -> "Mean":
        """Learns nothing."""
        return cls()

    def save(self, directory: Path) -> None:
        """Writes nothing."""

    @classmethod
    def load(cls, directory: Path, counts: np.ndarray) -> "Mean":
        """Reads nothing."""
        return cls()

    def rank(self, members: Weighted, rankings: Sequence[TopK], k: int) -> TopK:
        """As `weighted_sum`."""
        return weighted_sum(rankings, members.shares, k)

    def score(self, members: Weighted, labels: np.ndarray, scores: Sequence[np.ndarray]) -> np.ndarray:
        """The weighted mean."""
        mean = sum(share * each.astype(np.float64) for share, each in zip(members.shares, scores, strict=True))
        return np.asarray(mean, dtype=np.float32)


COMBINERS = {
    "mean": "axml_ray.combine.combiner:Mean",
    "calibrated": "axml_ray.combine.frequency:FrequencyCalibration",
    "stacked": "axml_ray.combine.stacking:Stacking",
}


def combiner_class(kind: str) -> type[Combiner]:
    """The class of a kind of combiner.

    Raises:
        ValueError: there is no such kind.
    """
    if kind not in COMBINERS:
        raise ValueError(f"combiner {kind!r} is unknown; known are {', '.join(COMBINERS)}")
    module, _, name = COMBINERS[kind].partition(":")
    found: type[Combiner] = getattr(importlib.import_module(module), name)
    return found
