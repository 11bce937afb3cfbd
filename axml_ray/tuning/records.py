"""Records of trials, as read from the files that Ray Tune writes of each: `params.json` and `result.json`."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from axml_ray.core import storage
from axml_ray.core.files import read_json, whole_records

log = logging.getLogger(__name__)

PARAMETERS, RESULTS, ERROR = "params.json", "result.json", "error.txt"
DIED = "its process died: out of memory, or killed from outside"
ORDER = {"finished": 0, "stopped": 1, "running": 2, "failed": 3}
"""Order of the states in tables."""
State = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """One evaluation of a level on the validation documents; trees are counted from 0, levels from 1."""

    tree: int
    level: int
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

    def __str__(self) -> str:
        return f"level {self.level}/{self.levels} · {self.documents:,} documents · valid nDCG@5 {self.score:.2f}"


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
    seconds: float | None = None
    """Duration since its last start, in seconds."""
    curve: tuple[Scoring, ...] = ()
    """Its evaluations in temporal order."""

    @property
    def steps(self) -> int:
        """Training steps over all levels and trees, up to the last evaluation of each."""
        return sum(evaluation.step for evaluation in self._last_evaluations)

    @property
    def documents(self) -> int:
        """Training documents seen over all levels and trees, up to the last evaluation of each."""
        return sum(evaluation.documents for evaluation in self._last_evaluations)

    @property
    def _last_evaluations(self) -> Sequence[Scoring]:
        by_step = sorted(self.curve, key=lambda evaluation: evaluation.step)
        return list({(evaluation.tree, evaluation.level): evaluation for evaluation in by_step}.values())

    def as_json(self) -> dict[str, Any]:
        """Return the trial as plain values, with its numbers of steps and documents."""
        return {**asdict(self), "steps": self.steps, "documents": self.documents}


def by_rank(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials in the order of tables: finished ones first, and the best of them."""
    return sorted(trials, key=lambda trial: (ORDER[trial.state], -(trial.score or 0), trial.number))


def read_trials(directory: Path) -> list[Trial]:
    """Return the trials whose directories are in that of Tune's experiment, by number."""
    trials = []
    for path in storage.children(directory):
        for name in (PARAMETERS, RESULTS, ERROR):
            storage.fetch(path / name)
        if not (path / PARAMETERS).is_file():
            continue
        try:
            trials.append(read_trial(path))
        except (ValueError, KeyError) as error:  # what a full disk left of its parameters
            log.warning("WARNING: %s cannot be read (%s); the trial is left out", path, error)
    return sorted(trials, key=lambda trial: trial.number)


def read_trial(directory: Path) -> Trial:
    """Return the trial in a directory of Tune, with each evaluation once: a resumed trial reports some again."""
    config = read_json(directory / PARAMETERS)
    path = directory / RESULTS
    results = list(whole_records(path.read_bytes() if path.is_file() else b""))
    evaluations = [
        Scoring(**{name: result[name] for name in Scoring.__dataclass_fields__})
        for result in results
        if "group" in result
    ]
    curve = tuple(
        {(evaluation.tree, evaluation.level, evaluation.step): evaluation for evaluation in evaluations}.values()
    )
    score = max((evaluation.score for evaluation in curve if evaluation.is_of_labels), default=None)
    end = results[-1] if results else {}
    state: State = "running"
    reason = None
    if end.get("finished"):
        state, score = "finished", end["nDCG@5"]
    elif "failed" in end or (directory / ERROR).is_file():
        state, score, reason = "failed", None, end.get("failed", DIED)
    elif end.get("done"):
        state, reason = "stopped", f"ASHA, {curve[-1]}"
    seconds = end.get("seconds", end.get("time_total_s"))
    return Trial(
        number=config["number"], parameters=config["parameters"], state=state, reason=reason, score=score,
        seconds=seconds, curve=curve,
    )  # fmt: skip
