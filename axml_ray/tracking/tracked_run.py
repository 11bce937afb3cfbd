"""A run that is tracked: its driver calls a tracker in a thread of its own, whose failures never end the run."""

import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from axml_ray.core import storage
from axml_ray.core.files import check_fences, read_json, write_json
from axml_ray.core.run_layout import RunLayout
from axml_ray.settings import Experiment, TrackingSettings, stored
from axml_ray.settings.configuration import by_path
from axml_ray.tracking.kinds import CLIENTS, tracker_class, with_address
from axml_ray.tracking.tracker import Artifact, LevelMetrics, Outcome, RunIdentity, Tracker

log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
"""After a failure, calls are left out for this long."""
CLOSE_SECONDS = 30.0
"""Longest wait for the tracker of a run that did not finish, or whose tracker failed."""
NOTICE_SECONDS = 5.0
NOT_PARAMETERS = {"name", "runs", "corpora", "tracking"}


@dataclass(frozen=True)
class Call:
    """A call of a tracker; if it `is_needed`, it is made later if the tracker fails now."""

    make: Callable[[Tracker], None]
    is_needed: bool


class TrackedRun:
    """A context in which a run is tracked, from the first call on; it continues the tracked run of an earlier start.

    The methods return at once: a thread does the logging in order, so that a slow server delays nothing. If the tracker
    fails, one warning is logged, and after `RETRY_SECONDS` it is tried again. Metrics of levels are left out meanwhile;
    scores and files wait, at most until the end of the run.

    The directory of the run keeps the tracker's id of it, `parameters` are what it is started with, and `sweep` is the
    directory of the sweep, for a sweep and its trials. An exception of `stops` means that the run was stopped, another
    one that it failed.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        settings: TrackingSettings,
        parameters: Mapping[str, Any],
        *,
        sweep: Path | None = None,
        stops: tuple[type[BaseException], ...] = (),
    ):
        self.settings, self.parameters = settings, parameters
        self._name, self._directory, self._sweep = name, directory, sweep
        self._stops: tuple[type[BaseException], ...] = (KeyboardInterrupt, *stops)
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._opened = threading.Event()
        self._tracker: Tracker | None = None
        self._outcome: Outcome = "finished"
        self._failed_at: float | None = None
        self._has_warned = False
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)

    def __enter__(self) -> Self:
        return self

    def open(self, seconds: float = 0.0) -> None:
        """Start or continue the tracked run now, and wait up to some seconds until that is done or has failed."""
        self._call(lambda tracker: None)
        if self._thread.is_alive():
            self._opened.wait(seconds)

    def record(self, record: Mapping[str, Any]) -> None:
        """Log the metrics in a record of a training journal, if it has any."""
        if metrics := LevelMetrics.of(record):
            self._call(lambda tracker: tracker.log_level(metrics), is_needed=False)

    def scores(self, scores: Mapping[str, float]) -> None:
        """Log the final metrics of the run by name."""
        copy = dict(scores)
        self._call(lambda tracker: tracker.log_scores(copy))

    def artifact(self, kind: Artifact, path: Path) -> None:
        """Upload a file, which has no texts of documents, if the tracker takes files."""
        if self.settings.tracker in CLIENTS:
            self._call(lambda tracker: tracker.log_artifact(kind, path))

    def _call(self, make: Callable[[Tracker], None], *, is_needed: bool = True) -> None:
        """Let the thread make a call; the first one starts it."""
        if self.settings.tracker == "none":
            return
        if not self._thread.ident:
            self._thread.start()
        self._calls.put(Call(make, is_needed))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._thread.is_alive():
            return
        if error is not None:
            self._outcome = "stopped" if isinstance(error, self._stops) else "failed"
        self._calls.put(None)
        self._thread.join(NOTICE_SECONDS)
        if not self._thread.is_alive():
            return
        log.info("tracking: %s gets the last metrics and artifacts", self.settings.tracker)
        self._thread.join(CLOSE_SECONDS if error is not None or self._failed_at is not None else None)

    def _work(self) -> None:
        """Make the calls, one after the other, and then close the tracker."""
        waiting: list[Call] = []
        while (call := self._calls.get()) is not None:
            if self._failed_at is None or time.monotonic() >= self._failed_at + RETRY_SECONDS:
                waiting = self._make([*waiting, call])
            elif call.is_needed:
                waiting.append(call)
        self._make(waiting)
        try:
            if self._tracker is not None:
                self._tracker.close(self._outcome)
        except Exception as error:
            self._warn(error)

    def _make(self, calls: Sequence[Call]) -> list[Call]:
        """Make calls up to the first that fails, and return those that are to be made again."""
        for number, call in enumerate(calls):
            try:
                check_fences(self._directory)  # trackers write there, too
                if self._tracker is None:
                    self._tracker = self._open()
                call.make(self._tracker)
                self._failed_at = None
            except Exception as error:  # whatever a library or a server does must not end the run
                self._failed_at = time.monotonic()
                self._warn(error)
                return [each for each in calls[number:] if each.is_needed]
            finally:
                self._opened.set()
        return []

    def _open(self) -> Tracker:
        """Start the tracked run, or continue it, and log its parameters."""
        kind = self.settings.tracker
        known = tracked_ids(self._directory)
        identity = RunIdentity(name=self._name, directory=self._directory, known_id=known.get(kind))
        if self._sweep == self._directory:
            identity = replace(identity, job="sweep", sweep=self._name)
        elif self._sweep is not None:
            sweep_id = tracked_ids(self._sweep).get(kind)
            identity = replace(identity, job="trial", sweep=self._sweep.name, sweep_id=sweep_id)
        tracker = tracker_class(kind)(identity, self.settings)
        if known.get(kind) != tracker.id:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_json(RunLayout(self._directory).tracking, {**known, kind: tracker.id})
        log.info("tracking: %s", tracker.address)
        tracker.log_parameters(self.parameters)
        return tracker

    def _warn(self, error: Exception) -> None:
        """Log the first failure."""
        if self._has_warned:
            return
        self._has_warned = True
        reason = re.sub(r"//[^/\s]*@", "//…@", " ".join(f"{error}".split())) or type(error).__name__
        log.warning(
            "WARNING: %s could not be written (%s); the run goes on, and its own files have everything",
            self.settings.tracker, reason,
        )  # fmt: skip


def track(
    settings: Experiment, *, sweep: Path | None = None, stops: tuple[type[BaseException], ...] = ()
) -> TrackedRun:
    """Return the context in which a run of the main job, or a trial of the sweep in a directory, is tracked."""
    name = settings.name if sweep is None else f"{sweep.name}-{settings.name}"
    tracking = with_address(settings.tracking, settings.runs)
    return TrackedRun(name, settings.run_directory, tracking, parameters_of(settings), sweep=sweep, stops=stops)


def tracked_ids(directory: Path) -> dict[str, str]:
    """Return the trackers' ids of the run in a directory, by kind of tracker."""
    path = RunLayout(directory).tracking
    storage.fetch(path)
    try:
        return dict(read_json(path))
    except (OSError, ValueError, TypeError):
        return {}


def parameters_of(settings: Experiment) -> dict[str, Any]:
    """Return settings by their paths, such as `tree.height`, without names, paths of directories, and tracking."""
    return dict(by_path(stored(settings, exclude=NOT_PARAMETERS)))


def scores_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the final metrics in the content of `metrics.json` by name, such as `test/ensemble/nDCG@5`.

    They are the measures of the ensemble and its members in percent, and the seconds of each phase.
    """
    rankings = {"ensemble": metrics["ensemble"], **metrics["members"]}
    scores = {
        f"{metrics['split']}/{ranking}/{measure}": float(value)
        for ranking, measures in rankings.items()
        for measure, value in measures.items()
    }
    return scores | {f"seconds/{phase}": float(spent) for phase, spent in metrics.get("seconds", {}).items()}
