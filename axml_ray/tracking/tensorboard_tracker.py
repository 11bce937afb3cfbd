"""TensorBoard: files of events in the run's directory, which `tensorboard --logdir` shows.

A level's metrics are below its label tree, in `tree-0/tensorboard/level-1`; parameters and final metrics are in
`tensorboard`, also for the HPARAMS tab, which compares runs and the trials of a sweep. Artifacts stay where they are.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from axml_ray.core import storage
from axml_ray.core.run_layout import RunLayout
from axml_ray.settings import TrackingSettings
from axml_ray.tracking.tracker import LevelMetrics, Outcome, RunIdentity, Tracker

EVENTS = "tensorboard"
"""Name of the directories of events."""


class TensorBoardTracker(Tracker):
    """A run as TensorBoard events."""

    def __init__(self, identity: RunIdentity, settings: TrackingSettings):
        self._layout = RunLayout(identity.directory)
        self.id, self.address = identity.name, f"tensorboard --logdir {identity.directory}"
        self._events = Events(self._layout.directory / EVENTS)
        self._levels: dict[tuple[int, int], Events] = {}
        self._parameters: dict[str, Any] = {}

    def log_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Log the parameters as a table of the TEXT tab, and keep them for the HPARAMS tab."""
        from tensorboardX.summary import text

        self._parameters = {  # TensorBoard takes lists and null as text
            key: value if isinstance(value, str | int | float | bool) else json.dumps(value)
            for key, value in parameters.items()
        }
        lines = [f"| {key} | {value} |" for key, value in self._parameters.items()]
        self._events.write_summaries(text("settings", "\n".join(["| setting | value |", "|---|---|", *lines])))

    def log_level(self, metrics: LevelMetrics) -> None:
        """Log the metrics of a level, in a new file if its training went back to a checkpoint."""
        place = metrics.tree, metrics.level
        events = self._levels.get(place)
        if events is None or metrics.step < events.last_step:
            if events is not None:
                events.close()
            directory = self._layout.tree(metrics.tree) / EVENTS / f"level-{metrics.level}"
            events = self._levels[place] = Events(directory, metrics.step)
        events.write(metrics.values, metrics.step, metrics.time)

    def log_scores(self, scores: Mapping[str, float]) -> None:
        """Log the final metrics as scalars of step 0, and with the parameters for the HPARAMS tab."""
        from tensorboardX.summary import hparams

        self._events.write_summaries(*hparams(self._parameters, dict(scores)))
        self._events.write(scores, 0, time.time())

    def close(self, outcome: Outcome) -> None:
        """Close all files."""
        for events in (self._events, *self._levels.values()):
            events.close()


class Events:
    """A file of TensorBoard events; a directory has one for each start of the job.

    Args:
        directory: directory of a TensorBoard run.
        step: the first step that will be written. Earlier files may contain this and later steps, from a job that was
            killed and resumed from a checkpoint; a session log makes TensorBoard discard them.
    """

    def __init__(self, directory: Path, step: int = 0):
        # Imported late, because runs with other trackers do not need it.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        directory.mkdir(parents=True, exist_ok=True)
        self.last_step = step
        self._directory, self._suffix = directory, f".{time.time_ns()}"
        self._writer = EventsWriter(str(directory / "events"), self._suffix)
        start = SessionLog(status=SessionLog.START)
        self._writer.write_event(Event(wall_time=time.time(), step=step, session_log=start))

    def write(self, scalars: Mapping[str, float], step: int, when: float) -> None:
        """Append the values of a step by name, measured at a time in seconds since the epoch, and flush the file."""
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self.write_summaries(Summary(value=values), step=step, when=when)

    def write_summaries(self, *summaries: Any, step: int = 0, when: float | None = None) -> None:
        """Append summaries of a step and flush the file."""
        from tensorboardX.proto.event_pb2 import Event

        for summary in summaries:
            self._writer.write_event(Event(wall_time=when or time.time(), step=step, summary=summary))
        self._writer.flush()
        for file in self._directory.glob(f"*{self._suffix}"):
            storage.publish(file, file)
        self.last_step = step

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
