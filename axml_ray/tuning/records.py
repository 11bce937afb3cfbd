"""What is known of each trial: one JSON file a trial, from which a sweep goes on and its outcome is told."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from axml_ray.files import read_json, write_json
from axml_ray.settings import SettingsError

TRIAL = "trial.json"
State = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """One scoring of a level on the validation documents."""

    tree: int
    """Which tree of the trial, from 0."""
    level: int
    """From 1."""
    levels: int
    """Of the tree; the last one scores labels, those above it score clusters."""
    group: str
    """Scores of the same group may be compared: they are of the same nodes."""
    step: int
    """Training steps of this level so far."""
    documents: int
    """Training documents that this level has seen so far, each as often as it was seen."""
    score: float
    """The level's best nDCG@5 so far, percent."""

    @property
    def is_of_labels(self) -> bool:
        """Whether labels were scored, not clusters."""
        return self.level == self.levels


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial of a sweep."""

    number: int
    """From 0, in the order of drawing."""
    parameters: dict[str, Any]
    """Drawn values by the paths of their settings."""
    state: State = "running"
    """A trial that a killed sweep left running goes on with the sweep."""
    reason: str | None = None
    """Why it was stopped, or failed."""
    score: float | None = None
    """nDCG@5 of labels on the validation documents, percent: at its end, or the best when it was stopped."""
    milliseconds: float | None = None
    """Cost of prediction, CPU milliseconds a text, where it was asked for."""
    seconds: float | None = None
    """From start to end, of its last start."""
    curve: tuple[Scoring, ...] = ()
    """Its scorings in the order in which they came."""

    @property
    def steps(self) -> int:
        """Training steps over all levels and trees, up to the last scoring of each."""
        return sum(self._ends("step"))

    @property
    def documents(self) -> int:
        """Training documents seen over all levels and trees, up to the last scoring of each."""
        return sum(self._ends("documents"))

    def _ends(self, name: str) -> Iterable[int]:
        ends: dict[tuple[int, int], int] = defaultdict(int)
        for scoring in self.curve:
            place = scoring.tree, scoring.level
            ends[place] = max(ends[place], getattr(scoring, name))
        return ends.values()

    def with_scoring(self, scoring: Scoring) -> "Trial":
        """With one more scoring; a trial that wasn't stopped has no score of its own until its end."""
        score = max(self.score or 0.0, scoring.score) if scoring.is_of_labels else self.score
        return replace(self, curve=(*self.curve, scoring), score=score)

    def as_json(self) -> dict[str, Any]:
        """All of it, and the steps and documents it took."""
        return {**asdict(self), "steps": self.steps, "documents": self.documents}

    def write(self, trials: Path) -> None:
        """Keep it below the directory of all trials."""
        directory = trial_directory(trials, self.number)
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / TRIAL, asdict(self))


def trial_directory(trials: Path, number: int) -> Path:
    """Where trial `number` (from 0) lies."""
    return trials / f"{number:03d}"


def read_trials(trials: Path) -> list[Trial]:
    """The trials of a sweep, by number; none where it hasn't begun.

    Raises:
        SettingsError: a trial is missing, or its file isn't one.
    """
    found = []
    paths = sorted(trials.glob(f"*/{TRIAL}"), key=lambda path: (len(path.parent.name), path))  # 999, then 1000
    for number, path in enumerate(paths):
        mend = "remove it and the trials after it"
        try:
            content = read_json(path)
            trial = Trial(**{**content, "curve": tuple(Scoring(**one) for one in content["curve"])})
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise SettingsError(f"{path}: not the record of a trial ({error}); {mend}") from None
        if trial.number != number or path.parent != trial_directory(trials, number):
            raise SettingsError(f"{path}: expected trial {number}, found {trial.number}; {mend}")
        found.append(trial)
    return found
