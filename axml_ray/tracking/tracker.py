"""The interface of trackers, and what they are given: a run's identity, the metrics of a level, and artifacts."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from axml_ray.settings import TrackingSettings

Outcome = Literal["finished", "failed", "stopped"]
Artifact = Literal["settings", "report"]


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """The identity of a tracked run or sweep, and its place among others."""

    name: str
    directory: Path
    job: Literal["train", "sweep", "trial"] = "train"
    sweep: str | None = None
    """Name of the sweep, for its trials and for the sweep itself."""
    known_id: str | None = None
    """The tracker's id of this run, if an earlier start was tracked: the same tracked run then continues."""
    sweep_id: str | None = None
    """The tracker's id of the sweep, for its trials."""


@dataclass(frozen=True, kw_only=True)
class LevelMetrics:
    """Metrics of one level of a label tree at one training step; trees are counted from 0, levels from 1."""

    tree: int
    level: int
    step: int
    """Training steps of this level so far."""
    time: float
    """When they were measured, in seconds since the epoch."""
    values: Mapping[str, float]
    """Metrics by name."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self | None:
        """Return the metrics in a record of a training journal; None if it has none.

        Evaluations give nDCG@5 on validation in percent, progress reports all other metrics.
        """
        if evaluation := record.get("scoring"):
            step, values = evaluation["step"], {"valid_nDCG@5": evaluation["nDCG@5"]}
        elif "step" in record:
            step, values = record["step"], {name: record[name] for name in PROGRESS if record.get(name) is not None}
        else:
            return None
        return cls(tree=record["tree"], level=record["level"], step=step, time=record["time"], values=values)

    @property
    def group(self) -> str:
        """The metrics' place, with the tree counted from 1 as in log lines: `tree-1/level-2`."""
        return f"tree-{self.tree + 1}/level-{self.level}"


PROGRESS = ("loss", "documents_per_second", "memory_gib", "seconds_left")
"""Keys of a progress report that are metrics."""


class Tracker(ABC):
    """A run in a tracking system. Creating one starts the tracked run, or continues it.

    Any method may raise any exception, for example because a server cannot be reached; callers must expect that.

    Attributes:
        id: the tracking system's id of the run, under which another start continues it.
        address: where a person finds the run.
    """

    id: str
    address: str

    @abstractmethod
    def __init__(self, identity: RunIdentity, settings: TrackingSettings): ...

    @abstractmethod
    def log_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Log settings by their paths, such as `tree.height`; values are as in JSON, without objects."""

    @abstractmethod
    def log_level(self, metrics: LevelMetrics) -> None:
        """Log the metrics of a level."""

    @abstractmethod
    def log_scores(self, scores: Mapping[str, float]) -> None:
        """Log the final metrics of the run by name."""

    def log_artifact(self, kind: Artifact, path: Path) -> None:  # noqa: B027
        """Upload a file; by default nothing is."""

    def close(self, outcome: Outcome) -> None:  # noqa: B027
        """Wait until everything is logged, and end the tracked run; by default nothing is to be done."""

    @classmethod
    def default_uri(cls, runs: Path) -> str | None:
        """Return the address to use if the settings have none; None leaves it to the tracking system."""
        return None
