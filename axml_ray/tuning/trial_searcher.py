"""The link between Ray Tune and the search: supplies drawn trials to Tune, and records their evaluations and ends."""

import logging
import time
from dataclasses import replace
from typing import Any

from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from axml_ray.tuning.early_stopping import LevelwiseASHA
from axml_ray.tuning.records import Scoring, Trial, read_trials, trial_directory
from axml_ray.tuning.search import Direction, Search
from axml_ray.tuning.sweep import Sweep
from axml_ray.tuning.trial import TrialRunner, drop_weights

log = logging.getLogger(__name__)

LINE_SECONDS = 15.0
"""Least time between two log lines of a trial."""


class TrialSearcher(Searcher):
    """Supplies trials to Tune, and records their results."""

    def __init__(self, sweep: Sweep, runner: TrialRunner, scheduler: TrialScheduler):
        super().__init__()
        self.sweep, self.runner = sweep, runner
        directions: tuple[Direction, ...] = ("maximize", "minimize") if sweep.has_cost else ("maximize",)
        self.search = Search(sweep.space, sweep.search, sweep.settings.seed, directions, sweep.settings)
        self.trials = read_trials(runner.directory)
        for trial in self.trials:
            self.search.replay(trial.parameters)
            if trial.state != "running":
                self._tell(trial)
                if isinstance(scheduler, LevelwiseASHA):
                    scheduler.remember(trial)
        self._waiting = [trial.number for trial in self.trials if trial.state == "running"]
        self._numbers: dict[str, int] = {}
        self._shown: dict[int, float] = {}

    @property
    def left(self) -> int:
        """The number of trials that are still to be run."""
        return max(0, self.sweep.trials - len(self.trials)) + len(self._waiting)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Return the next trial; Tune calls this."""
        if self._waiting:
            number = self._waiting.pop(0)
            # The trial reports its earlier evaluations again, from its journals.
            self.trials[number] = Trial(number=number, parameters=self.trials[number].parameters)
            log.info("trial %d · resumed", number)
        else:
            parameters = self.search.draw()
            if parameters is None:
                log.info("the search space is exhausted; %d trials were drawn", len(self.trials))
                return str(Searcher.FINISHED)
            number = len(self.trials)
            self.trials.append(Trial(number=number, parameters=parameters))
            self.trials[number].write(self.runner.directory)
            log.info("trial %d · %s", number, shown_parameters(parameters))
        self._numbers[trial_id] = number
        self._shown[number] = time.monotonic()
        return {"number": number, "parameters": self.trials[number].parameters}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Record an evaluation of a trial; Tune calls this."""
        number = self._numbers[trial_id]
        scoring = _scoring(result)
        self.trials[number] = self.trials[number].with_scoring(scoring)
        if time.monotonic() - self._shown[number] > LINE_SECONDS:
            self._shown[number] = time.monotonic()
            log.info("trial %d · %s", number, shown_scoring(scoring))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Record the end of a trial: finished, stopped or failed. Tune calls this."""
        number = self._numbers[trial_id]
        trial, end = self.trials[number], result or {}
        if "group" in end and not error:
            trial = trial.with_scoring(
                _scoring(end)
            )  # Tune reports the evaluation at which a trial is stopped only here
        if end.get("finished"):
            trial = replace(
                trial, state="finished", score=end["score"], milliseconds=end["milliseconds"], seconds=end["seconds"]
            )
        elif "failed" in end or error or not trial.curve:
            reason = end.get("failed", "its process died: out of memory, or killed from outside")
            trial = replace(trial, state="failed", reason=reason, score=None, seconds=end.get("seconds"))
        else:
            seconds = end.get("time_total_s")
            reason = f"ASHA, {shown_scoring(trial.curve[-1])}"
            trial = replace(trial, state="stopped", reason=reason, seconds=seconds)
        self.trials[number] = trial
        trial.write(self.runner.directory)
        self.drop_weights(except_number=number)  # its workers may still be writing
        self._tell(trial)
        outcome = trial.reason if trial.score is None or trial.reason else f"valid nDCG@5 {trial.score:.2f}"
        log.info("trial %d · %s · %s", number, trial.state, outcome)

    def drop_weights(self, except_number: int | None = None) -> None:
        """Remove the weights of all trials that have ended, with the exception of one."""
        for trial in self.trials:
            if trial.state != "running" and trial.number != except_number:
                drop_weights(trial_directory(self.runner.directory, trial.number))

    def _tell(self, trial: Trial) -> None:
        """Report the result of a trial to the search."""
        if trial.state == "finished" and trial.score is not None:
            cost = [] if trial.milliseconds is None else [trial.milliseconds]
            self.search.tell(trial.number, [trial.score, *cost])
        elif trial.state == "stopped":
            labels = [scoring for scoring in trial.curve if scoring.is_of_labels]
            documents = labels[-1].documents if labels else 0
            self.search.tell_stopped(trial.number, documents, trial.score)
        else:
            self.search.tell_failed(trial.number)

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the records of trials are the only state."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing, as nothing was saved."""


def _scoring(result: dict[str, Any]) -> Scoring:
    """Return the evaluation in a result of Tune, which adds keys of its own."""
    return Scoring(**{name: result[name] for name in Scoring.__dataclass_fields__})


def shown_parameters(parameters: dict[str, Any]) -> str:
    """Return the parameters of a trial on one line."""
    values = {path: f"{value:.3g}" if isinstance(value, float) else value for path, value in parameters.items()}
    return " ".join(f"{path}={value}" for path, value in values.items())


def shown_scoring(scoring: Scoring) -> str:
    """Return an evaluation on one line."""
    return (
        f"level {scoring.level}/{scoring.levels} · {scoring.documents:,} documents · valid nDCG@5 {scoring.score:.2f}"
    )
