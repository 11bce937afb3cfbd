"""The parts of a benchmark within a time limit, with all that was measured written at once.

A part is a generator: whatever it yields is in the file before it goes on, so a run that is interrupted, or whose time
is over, leaves a complete JSON file of what it has measured.
"""

import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import results_file
from results_file import Result
from rich.console import Console

from axml_ray.core.errors import SettingsError

Part = Callable[[], Iterator[Result]]
"""Yields figures and rows as they are measured."""


class TimeOverError(Exception):
    """The time limit is reached."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeOverError in the block after some seconds.

    Without an alarm, which Python has in the main thread of Linux and macOS, the limit is not observed.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeOverError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def measure_within(parts: Mapping[str, Part], minutes: float, path: Path, *, threads: int) -> list[dict[str, Any]]:
    """Measure parts in their order until the time is over, and write figures and rows after each result.

    A part that raises SettingsError, or for which no time is left, has a row that says so.

    Args:
        parts: the parts by name, the most important first.
        minutes: time limit of all parts together.
        path: file to write or replace.
        threads: number of PyTorch threads, which the rows record.

    Returns:
        The rows.

    Raises:
        SettingsError: nothing could be measured; nothing is written.
    """
    console = Console()
    figures: dict[str, float] = {}
    rows: list[dict[str, Any]] = []

    def add(name: str, row: Mapping[str, Any]) -> None:
        rows.append({"part": name, **row, "threads": threads})
        console.print_json(json.dumps(rows[-1]), indent=None)

    waiting, running = list(parts), ""
    try:
        with time_limit(60 * minutes):
            while waiting:
                running = waiting.pop(0)
                try:
                    for measured, of_part in parts[running]():
                        for row in of_part:
                            add(running, row)
                        figures |= measured
                        if figures:
                            results_file.write(path, figures, rows)
                except SettingsError as error:
                    add(running, {"skipped": str(error)})
    except TimeOverError:
        for name in (running, *waiting):
            add(name, {"skipped": f"the {minutes:g} minutes were over; give more by --minutes"})
    if not figures:
        raise SettingsError(f"nothing was measured, {path} stays as it is: {rows[0]['skipped']}")
    results_file.write(path, figures, rows)
    for figure, value in figures.items():
        console.print(f"{figure}: {value:.3f}", highlight=False)
    console.print(f"written to {path}", highlight=False, markup=False)
    return rows
