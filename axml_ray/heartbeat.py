"""Progress lines in the log during long work: its name, the units done, and the speed."""

import logging
import threading
import time
from types import TracebackType
from typing import Self

log = logging.getLogger(__name__)

SECONDS = 10.0
"""Seconds between two lines at first."""
SHARE = 0.1
"""Later, the seconds between two lines are this share of the elapsed time."""


class Heartbeat:
    """A context manager that logs a line about every ten seconds while its block runs, less often if it runs long.

    Args:
        what: name of the work, such as "predict".
        total: number of units to do, if known.
        unit: name of the units that `add` counts, in the plural; None if nothing is counted.
    """

    def __init__(self, what: str, total: int | None = None, unit: str | None = None):
        self.what, self.total, self.unit = what, total, unit
        self.done = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()

    def add(self, count: int = 1) -> None:
        """Count units as done."""
        self.done += count

    def line(self) -> str:
        """Return the progress as one line."""
        seconds = time.monotonic() - self._began
        if self.unit is None:
            return f"{self.what} · {seconds:,.0f} s"
        of = "" if self.total is None else f" of {self.total:,}"
        rate = self.done / max(seconds, 1e-9)
        pace = f"{rate:,.0f} a second" if rate >= 1 else f"{seconds:,.0f} s"
        return f"{self.what} · {self.done:,}{of} {self.unit} · {pace}"

    def _beat(self) -> None:
        pause = SECONDS
        while not self._end.wait(pause):
            log.info("%s", self.line())
            pause = max(SECONDS, SHARE * (time.monotonic() - self._began))
