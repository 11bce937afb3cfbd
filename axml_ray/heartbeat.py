"""Log lines during work that would otherwise be silent: what is under way, how far it is and how fast it goes."""

import logging
import threading
import time
from types import TracebackType
from typing import Self

log = logging.getLogger(__name__)

SECONDS = 10.0
"""Between two lines in the first minutes."""
SHARE = 0.1
"""Later, a line comes when this share of the time so far has passed again."""


class Heartbeat:
    """Logs a line about every ten seconds while the work inside its `with` block lasts, less often when it is long.

    Args:
        what: is under way, such as "predict".
        total: number of units to do, if known.
        unit: what `add` counts, in the plural; None where nothing is counted.
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
        """So many units more are done."""
        self.done += count

    def line(self) -> str:
        """How far it is."""
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
