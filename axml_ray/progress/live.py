"""Progress as live bars in a terminal, which end in a short summary.

The bars are a table that is drawn again four times a second below the log lines: a row for each running activity and
for each label tree whose networks are being trained. Columns that no row fills are left out.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from axml_ray.core.memory import peak_gib
from axml_ray.progress.reporter import Activity, Reporter, format_clock, format_done, format_record, report_to

log = logging.getLogger(__name__)

BAR = 10
"""Width of a bar in characters."""
GAP, TITLE = 2, 18
"""Width of the gap between two columns, and least width of the first one: that of a tree and a level."""
COLUMNS = ("docs/s", "loss", "nDCG@5", "left", "GiB")
"""Headings of the columns of numbers: documents per second, mean loss of the last steps, best score on validation, time
left, and peak memory of a worker."""

Row = tuple[str, float | None, str, list[str]]
"""A row of the table: its name, the share that is done (None if unknown), what is done in words, and the numbers."""


@dataclass
class TreeProgress:
    """The progress of the networks of one label tree, numbered from 0; what is not known is None."""

    tree: int
    place: tuple[int, int] = (0, 0)
    """The level and the number of levels."""
    state: str = ""
    """What is being done, such as an epoch of how many."""
    share: float | None = None
    """Share of the level that is done, 0 to 1; like `seconds` of this level and seconds `left`, at the last record."""
    seconds: float = 0.0
    left: float | None = None
    read: float = 0.0
    """Time of the last record by `time.monotonic`."""
    rate: float | None = None
    """Documents per second."""
    loss: float | None = None
    score: float | None = None
    """Best nDCG@5 of the level's nodes on validation, in percent."""
    memory: float = 0.0
    """Peak memory of the first worker, in GiB."""
    is_training: bool = True

    def update(self, record: Mapping[str, Any]) -> None:
        """Take over the values of a record of the tree's journal."""
        self.is_training, self.read = True, time.monotonic()
        place = record["level"], record["levels"]
        if place != self.place:
            self.place, self.share, self.left, self.rate, self.loss, self.score = place, None, None, None, None, None
        if "opened" in record:
            self.state, self.share = "loaded", 1.0
        elif "begun" in record:
            self.state, self.share = "starts", 0.0
        elif "scoring" in record:
            self.score = max(self.score or 0.0, record["scoring"]["nDCG@5"])
        elif "scored_so_far" in record:
            self.state, self.share = "scoring texts", record["scored_so_far"] / record["documents"]
            self.rate, self.left = record["documents_per_second"], None
        elif "read_so_far" in record:
            self.state, self.share = "reading texts", record["read_so_far"] / record["documents"]
            self.rate, self.left = record["documents_per_second"], None
        elif "scored" in record:
            self.state, self.share, self.left = "texts scored", 1.0, None
        else:
            self.state = f"epoch {record['epoch']}/{record['epochs']}"
            self.seconds, self.left = record["seconds"], record["seconds_left"]
            self.share = None if self.left is None else self.seconds / max(self.seconds + self.left, 1e-9)
            self.rate, self.loss = record["documents_per_second"], record["loss"]
            self.score = record["valid_nDCG@5"] if record["valid_nDCG@5"] is not None else self.score
            self.memory = max(self.memory, record["memory_gib"])

    def row(self) -> Row:
        """Return the row of the table."""
        share, left = self.now()
        numbers = [
            "" if self.rate is None else f"{self.rate:,.0f}",
            "" if self.loss is None else f"{self.loss:.4f}",
            "" if self.score is None else f"{self.score:.2f}",
            "" if left is None else format_clock(left),
            f"{self.memory:.1f}" if self.memory else "",
        ]
        return f"tree {self.tree + 1} · level {self.place[0]}/{self.place[1]}", share, self.state, numbers

    def now(self) -> tuple[float | None, float | None]:
        """Return the share that is done and the seconds left.

        Both are extrapolated from the last record, as records are many seconds apart.
        """
        if self.left is None:
            return self.share, None
        since = min(time.monotonic() - self.read, self.left)
        return (self.seconds + since) / max(self.seconds + self.left, 1e-9), self.left - since


class LiveReporter(Reporter):
    """Shows progress as bars while a phase or an activity lasts, on the console of a terminal.

    If it is also that of standard output (`owns_stdout`), what is printed must appear above the bars.
    """

    def __init__(self, console: Console, owns_stdout: bool = False):
        super().__init__()
        self.console, self.owns_stdout = console, owns_stdout
        self.began = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.trees: dict[int, TreeProgress] = {}
        self._phases: list[tuple[str, float]] = []
        self._activities: list[Activity] = []
        self._live: Live | None = None
        self._lock = threading.RLock()

    def begin_phase(self, name: str) -> None:
        """Show the name of the phase above the bars."""
        self._phases.append((name, time.monotonic()))
        self._start_or_stop()

    def end_phase(self, name: str, seconds: float) -> None:
        """Remember the seconds of the phase for the summary, and remove the rows of the trees."""
        self._phases.pop()
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        for tree in self.trees.values():
            tree.is_training = False
        self._start_or_stop()

    def begin(self, activity: Activity) -> None:
        """Add a row."""
        self._activities.append(activity)
        self._start_or_stop()

    def end(self, activity: Activity) -> None:
        """Remove the row."""
        self._activities.remove(activity)
        self._start_or_stop()

    def training(self, record: Mapping[str, Any]) -> None:
        """Update the row of a tree; also log a line if the record is one of few."""
        self.trees.setdefault(record["tree"], TreeProgress(record["tree"])).update(record)
        if not {"step", "read_so_far", "scored_so_far", "scoring"} & record.keys():
            log.info("%s", format_record(record))

    def close(self) -> None:
        """Remove the bars."""
        self._phases.clear()
        self._activities.clear()
        self._start_or_stop()

    def _start_or_stop(self) -> None:
        """Draw the bars now; start or stop drawing them in a thread."""
        with self._lock:
            is_busy = bool(self._phases or self._activities)
            if is_busy and self._live is None:
                self._live = Live(
                    console=self.console, get_renderable=self.bars, transient=True, redirect_stdout=self.owns_stdout
                )
                self._live.start()
            if self._live is not None:
                self._live.refresh()
            if not is_busy and self._live is not None:
                self._live.stop()
                self._live = None

    def bars(self) -> RenderableType:
        """Return the table of the bars as of now."""
        rows = [_activity_row(activity) for activity in list(self._activities)]
        rows += [tree.row() for _, tree in sorted(self.trees.items()) if tree.is_training]
        used = [number for number in range(len(COLUMNS)) if any(numbers[number] for *_, numbers in rows)]
        widths = {number: max(len(COLUMNS[number]), *(len(numbers[number]) for *_, numbers in rows)) for number in used}
        done_width = max((len(done) for _, _, done, _ in rows), default=0)
        taken = sum(width + GAP for width in (BAR, done_width, *widths.values()))
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
        # A long name is shortened, so that the numbers keep their places.
        phase = Text()
        if self._phases:
            name, began = self._phases[-1]
            phase = Text(f"{name} {format_clock(time.monotonic() - began)}", style="not dim bold")
        table.add_column(phase, no_wrap=True, overflow="ellipsis", max_width=max(TITLE, self.console.width - taken))
        table.add_column(width=BAR)
        table.add_column(width=done_width, no_wrap=True)
        for number, width in widths.items():
            table.add_column(COLUMNS[number], justify="right", no_wrap=True, width=width)
        for title, share, done, numbers in rows:
            bar = ProgressBar(total=None if share is None else 1.0, completed=share or 0.0, width=BAR)
            table.add_row(Text(title), bar, done, *(numbers[number] for number in used))
        return table

    def summary(self) -> RenderableType | None:
        """Return the seconds of each phase, the best score of each tree, and peak memory; None before any phase."""
        if not self.seconds:
            return None
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        phases = " · ".join(f"{name} {_seconds(seconds)}" for name, seconds in self.seconds.items())
        table.add_row("time", f"{_seconds(time.monotonic() - self.began)} in all · {phases}")
        leaf = {number: tree.score for number, tree in sorted(self.trees.items()) if tree.place[0] == tree.place[1]}
        scores = [f"tree {number + 1} {score:.2f}" for number, score in leaf.items() if score is not None]
        if scores:
            table.add_row("best valid nDCG@5", " · ".join(scores))
        memory = f"{peak_gib():.1f} GiB"
        if worker := max((tree.memory for tree in self.trees.values()), default=0.0):
            memory += f" · a worker {worker:.1f} GiB"
        table.add_row("peak memory", memory)
        return table


def _activity_row(activity: Activity) -> Row:
    share, done, rate = None, "", activity.rate
    if activity.unit is not None:
        done = format_done(activity) + (f" · {rate:,.0f}/s" if rate >= 1 else "")
    left = ""
    if activity.total:
        share = activity.done / activity.total
        left = format_clock((activity.total - activity.done) / rate) if rate else ""
    return activity.what, share, done, ["", "", "", left, ""]


def _seconds(seconds: float) -> str:
    """Return a duration: seconds, or from a minute on as m:ss."""
    return f"{seconds:.1f} s" if seconds < 60 else format_clock(seconds)


class ConsoleHandler(logging.Handler):
    """Prints log lines on the console of the bars, above them."""

    def __init__(self, console: Console):
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; long lines are left to the terminal to wrap."""
        self.console.print(Text(self.format(record)), soft_wrap=True)


def terminal_console() -> Console | None:
    """Return a console on the terminal of standard error; None if that is no terminal that can move its cursor.

    It has a file descriptor of its own, because `cluster.connect` redirects that of standard error for a while.
    """
    if not sys.stderr.isatty():
        return None
    encoding, errors = sys.stderr.encoding, sys.stderr.errors
    console = Console(file=os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding=encoding, errors=errors))
    return console if console.is_interactive else None


@contextmanager
def show_bars(console: Console) -> Iterator[None]:
    """Show the progress of the block as bars on a terminal, and a summary at its end unless it fails."""
    reporter = LiveReporter(console, owns_stdout=sys.stdout.isatty())
    try:
        with report_to(reporter):
            yield
    finally:
        reporter.close()
    if summary := reporter.summary():
        console.line()
        console.print(summary)
