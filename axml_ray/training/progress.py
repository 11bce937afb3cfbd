"""What a person follows while trees train: records appended by workers, read by the driver, shown as lines.

Workers and driver share the run's directory and nothing else, so the same lines come from a laptop, from a cluster
and from a job whose terminal is gone; the records stay beside the model, as JSON lines and as TensorBoard events.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from axml_ray.memory import peak_gib

JOURNAL = "training.jsonl"
EVENTS = "tensorboard"
SCALARS = ("loss", "valid_nDCG@5", "documents_per_second", "memory_gib", "seconds_left")
"""Of a record of a level's training, what TensorBoard shows."""


class Journal:
    """A file of JSON lines that one process appends to; a level's training also becomes TensorBoard events."""

    def __init__(self, directory: Path, **about: Any):
        self.path = directory / JOURNAL
        self.about = about
        self._events: Events | None = None

    def write(self, record: dict[str, Any]) -> None:
        """Append a record, with the time and what the journal is about."""
        words = json.dumps({"time": time.time(), **self.about, **record}) + "\n"
        with self.path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                cut_short = file.read() != b"\n"  # by what ended whoever wrote it
                words = "\n" + words if cut_short else words
            file.write(words.encode())
        if "step" not in record:
            return
        directory = self.path.parent / EVENTS / f"level-{record['level']}"
        if self._events is None or self._events.directory != directory:
            self._events = Events(directory, record["step"])
        self._events.write({name: record[name] for name in SCALARS if record.get(name) is not None}, record["step"])


class Events:
    """A file of TensorBoard events, of which a directory may have several: one for each time that a job was started.

    Args:
        directory: of a run as TensorBoard knows it.
        step: the first one. What earlier files say of it and of later ones was lost with the job that wrote them;
            TensorBoard is told to leave that out.
    """

    def __init__(self, directory: Path, step: int):
        # slow to import, and the driver, which only reads, has no need of it
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._writer = EventsWriter(str(directory / "events"), f".{time.time_ns()}")
        start = SessionLog(status=SessionLog.START)
        self._writer.write_event(Event(wall_time=time.time(), step=step, session_log=start))

    def write(self, scalars: dict[str, float], step: int) -> None:
        """Append some numbers; they are in the file when this returns."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._writer.write_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._writer.flush()


class Follower:
    """Reads what was appended to some journals since it last looked."""

    def __init__(self, directories: list[Path]):
        paths = [directory / JOURNAL for directory in directories]
        # What an earlier job wrote stays in the file but isn't news.
        self._read = {path: path.stat().st_size if path.exists() else 0 for path in paths}

    def news(self) -> Iterator[dict[str, Any]]:
        """Records written since the last call."""
        for path, start in self._read.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(start)
                content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            self._read[path] = start + len(whole)
            for line in whole.splitlines():
                try:
                    yield json.loads(line)
                except ValueError:  # a worker's last words, cut short by what ended it
                    continue


def line(record: dict[str, Any]) -> str:
    """A record as a person reads it."""
    where = f"tree {record['tree'] + 1} · level {record['level']}/{record['levels']}"
    if "opened" in record:
        return f"{where} · already finished, opened"
    if "begun" in record:
        return f"{where} ({record['begun']:,} nodes) · begins"
    if "scored_so_far" in record:
        done, every, rate = (record[name] for name in ("scored_so_far", "documents", "documents_per_second"))
        return f"{where} · scored {done:,} of {every:,} training documents · {rate:,.0f} docs/s"
    if "scored" in record:
        return f"{where} · scored {record['scored']:,} training documents in {record['seconds']:.0f} s"
    score = record["valid_nDCG@5"]
    shown = "–" if score is None else f"{score:.2f}"
    return (
        f"{where} ({record['nodes']:,} nodes) · epoch {record['epoch']}/{record['epochs']} · "
        f"loss {record['loss']:.4f} · valid nDCG@5 {shown} · {record['documents_per_second']:,.0f} docs/s · "
        f"{record['memory_gib']:.1f} GiB · {_clock(record['seconds_left'])} left"
    )


def _clock(seconds: float | None) -> str:
    if seconds is None:  # nothing was trained since the job was started
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def memory_gib(device: torch.device) -> float:
    """The most memory that this process has held so far, GiB: on the accelerator, or else in main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return peak_gib()
