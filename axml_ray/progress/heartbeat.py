"""Progress of long work: its name, the units done, and the phase of the command that it belongs to."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from axml_ray.progress.reporter import Activity, current_reporter


class Heartbeat(Activity):
    """A context manager that shows the progress of its block: a bar in a terminal, else a log line now and then."""

    def __enter__(self) -> Self:
        self.began = time.monotonic()
        self._reporter = current_reporter()
        self._reporter.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reporter.end(self)

    def add(self, count: int = 1) -> None:
        """Count units as done."""
        self.done += count


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Report the block as a phase of the command; as a decorator, each call of the function."""
    reporter, began = current_reporter(), time.monotonic()
    reporter.begin_phase(name)
    try:
        yield
    finally:
        reporter.end_phase(name, time.monotonic() - began)
