"""Events of progress, and the reporter that shows them: as log lines here, as bars in `live_progress.py`.

Code that works for a while reports three kinds of events, and does not know how they are shown:

- a *phase* of a command, such as "predict", begins and ends (`heartbeat.phase`);
- an *activity* within a phase begins, counts its units, and ends (`heartbeat.Heartbeat`);
- a *record* of the training of a label tree's networks is read from its journal (`training/progress.py`).
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger(__name__)

SECONDS = 10.0
"""Seconds between two lines of an activity at first."""
SHARE = 0.1
"""Later, the seconds between two lines are this share of the elapsed time."""


@dataclass(eq=False)
class Activity:
    """Work that takes a while."""

    what: str
    """Name of the activity, such as "predict"."""
    total: int | None = None
    """Number of units to do, if known."""
    unit: str | None = None
    """Name of the units, in the plural; None if nothing is counted."""
    done: int = field(default=0, init=False)
    done_before: int = field(default=0, init=False)
    """Number of units that were done when it began."""
    began: float = field(default_factory=time.monotonic, init=False)
    """Time of the beginning, by `time.monotonic`."""

    @property
    def rate(self) -> float:
        """Return the units done per second since the beginning."""
        return (self.done - self.done_before) / max(time.monotonic() - self.began, 1e-9)


class Reporter:
    """Shows events of progress as log lines: one for each record, and one about every ten seconds of an activity, fewer
    if it is long. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._ends: dict[Activity, threading.Event] = {}

    def begin_phase(self, name: str) -> None:
        """Show that a phase of the command begins; phases may be nested. Callers log how much it has to do."""

    def end_phase(self, name: str, seconds: float) -> None:
        """Show that a phase ended, by success or by an exception, after some seconds."""

    def begin(self, activity: Activity) -> None:
        """Show an activity until it ends; its `done` increases meanwhile."""

        def log_lines() -> None:
            pause = SECONDS
            while not end.wait(pause):
                log.info("%s", format_activity(activity))
                pause = max(SECONDS, SHARE * (time.monotonic() - activity.began))

        self._ends[activity] = end = threading.Event()
        threading.Thread(target=log_lines, name=f"progress: {activity.what}", daemon=True).start()

    def end(self, activity: Activity) -> None:
        """Stop showing an activity."""
        self._ends.pop(activity).set()

    def training(self, record: Mapping[str, Any]) -> None:
        """Show a record of a journal, with the number of its label tree as `tree`.

        A validation score is no line of its own, as the other records repeat it.
        """
        if "scoring" not in record:
            log.info("%s", format_record(record))


_current = Reporter()


def current_reporter() -> Reporter:
    """Return the reporter of this process; by default it logs lines."""
    return _current


@contextmanager
def report_to(reporter: Reporter) -> Iterator[None]:
    """Make a reporter the current one of this process within the block."""
    global _current
    before, _current = _current, reporter
    try:
        yield
    finally:
        _current = before


def format_activity(activity: Activity) -> str:
    """Return the progress of an activity as a log line."""
    seconds = time.monotonic() - activity.began
    if activity.unit is None:
        return f"{activity.what} · {seconds:,.0f} s"
    pace = f"{activity.rate:,.0f} a second" if activity.rate >= 1 else f"{seconds:,.0f} s"
    return f"{activity.what} · {format_done(activity)} · {pace}"


def format_done(activity: Activity) -> str:
    """Return the number of units done, of how many, and their name."""
    of = "" if activity.total is None else f" of {activity.total:,}"
    return f"{activity.done:,}{of} {activity.unit}"


def format_record(record: Mapping[str, Any]) -> str:
    """Return a journal's record as a log line."""
    where = f"tree {record['tree'] + 1} · level {record['level']}/{record['levels']}"
    if "opened" in record:
        return f"{where} · already trained, loaded"
    if "begun" in record:
        return f"{where} ({record['begun']:,} nodes) · training starts"
    for verb in ("read", "scored"):
        if f"{verb}_so_far" in record:
            done, total, rate = (record[name] for name in (f"{verb}_so_far", "documents", "documents_per_second"))
            return f"{where} · {verb} {done:,} of {total:,} training documents · {rate:,.0f} docs/s"
    if "scored" in record:
        return f"{where} · scored {record['scored']:,} training documents in {record['seconds']:.0f} s"
    score = record["valid_nDCG@5"]
    shown = "–" if score is None else f"{score:.2f}"
    return (
        f"{where} ({record['nodes']:,} nodes) · epoch {record['epoch']}/{record['epochs']} · "
        f"loss {record['loss']:.4f} · best valid nDCG@5 {shown} · {record['documents_per_second']:,.0f} docs/s · "
        f"{record['memory_gib']:.1f} GiB · {format_clock(record['seconds_left'])} left"
    )


def format_clock(seconds: float | None) -> str:
    """Return seconds as h:mm:ss or m:ss, or a dash for None."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
