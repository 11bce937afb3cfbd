"""Records of trials, one JSON file for each, from which a sweep is resumed and its outcome is written."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json, write_json

TRIAL = "trial.json"
State = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """One evaluation of a level on the validation documents."""

    tree: int
    """Number of the tree, from 0."""
    level: int
    """Number of the level, from 1."""
    levels: int
    """Number of levels of the tree; only the leaf level scores labels, the others score clusters."""
    group: str
    """Scores of the same group are of the same nodes, and can be compared."""
    step: int
    """Training steps of this level so far."""
    documents: int
    """Training documents that this level has seen so far, each counted as often as it was seen."""
    score: float
    """The level's best nDCG@5 so far, in percent."""

    @property
    def is_of_labels(self) -> bool:
        """Return whether the evaluation is of the leaf level."""
        return self.level == self.levels


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial of a sweep."""

    number: int
    """Number of the trial, from 0, in the order in which they were drawn."""
    parameters: dict[str, Any]
    """Drawn values by the paths of their settings."""
    state: State = "running"
    """State of the trial; one that a killed sweep left running is resumed with the sweep."""
    reason: str | None = None
    """Why it was stopped, or failed."""
    score: float | None = None
    """nDCG@5 of labels on the validation documents in percent: at its end, or the best when it was stopped."""
    milliseconds: float | None = None
    """Cost of prediction in CPU milliseconds per text, if it is an objective."""
    seconds: float | None = None
    """Duration since its last start, in seconds."""
    curve: tuple[Scoring, ...] = ()
    """Its evaluations in temporal order."""

    @property
    def steps(self) -> int:
        """Training steps over all levels and trees, up to the last evaluation of each."""
        return sum(self._ends("step"))

    @property
    def documents(self) -> int:
        """Training documents seen over all levels and trees, up to the last evaluation of each."""
        return sum(self._ends("documents"))

    def _ends(self, name: str) -> Iterable[int]:
        """Return the last value of a counter at each level of each tree."""
        ends: dict[tuple[int, int], int] = defaultdict(int)
        for scoring in self.curve:
            place = scoring.tree, scoring.level
            ends[place] = max(ends[place], getattr(scoring, name))
        return ends.values()

    def with_scoring(self, scoring: Scoring) -> "Trial":
        """Return the trial with one more evaluation; only those of the leaf level change its score."""
        score = max(self.score or 0.0, scoring.score) if scoring.is_of_labels else self.score
        return replace(self, curve=(*self.curve, scoring), score=score)

    def as_json(self) -> dict[str, Any]:
        """Return the trial as plain values, with its numbers of steps and documents."""
        return {**asdict(self), "steps": self.steps, "documents": self.documents}

    def write(self, trials: Path) -> None:
        """Write the record of the trial below the directory of all trials."""
        directory = trial_directory(trials, self.number)
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / TRIAL, asdict(self))


def trial_directory(trials: Path, number: int) -> Path:
    """Return the directory of trial `number` (from 0)."""
    return trials / f"{number:03d}"


def read_trials(trials: Path) -> list[Trial]:
    """Return the trials of a sweep by number; none if it has not been started.

    Raises:
        SettingsError: a record is missing or invalid.
    """
    trials_read = []
    paths = sorted(trials.glob(f"*/{TRIAL}"), key=lambda path: (len(path.parent.name), path))  # 999, then 1000
    for number, path in enumerate(paths):
        fix = "remove it and the trials after it"
        try:
            content = read_json(path)
            trial = Trial(**{**content, "curve": tuple(Scoring(**one) for one in content["curve"])})
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise SettingsError(f"{path}: not the record of a trial ({error}); {fix}") from None
        if trial.number != number or path.parent != trial_directory(trials, number):
            raise SettingsError(f"{path}: expected trial {number}, found {trial.number}; {fix}")
        trials_read.append(trial)
    return trials_read
