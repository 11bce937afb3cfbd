"""Progress of training: rank 0 appends records to a journal, and the driver reads them and shows them (`reporter.py`).

Workers and driver share only the run's directory, so this works alike on a laptop, on a cluster and for a job that was
started from another terminal. The records remain in the run as JSON lines.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from axml_ray.core import storage
from axml_ray.core.files import check_fences, whole_records

log = logging.getLogger(__name__)

Report = Callable[[dict[str, Any]], None]
JOURNAL = "training.jsonl"
REPORT_SECONDS = 15.0
"""Time between two records of a pass or of training."""


class Journal:
    """A file of JSON lines that one process appends to.

    Args:
        directory: where the file is written.
        common: keys and values that every record has, such as the number of the tree.
    """

    def __init__(self, directory: Path, **common: Any):
        self.path = directory / JOURNAL
        self.common = common
        self._has_warned = False

    def write(self, record: dict[str, Any]) -> None:
        """Append a record with the current time (`time`, seconds since the epoch) and the common keys.

        A record that cannot be written, for example on a full disk, is left out, with a warning for the first.
        """
        text = json.dumps({"time": time.time(), **self.common, **record}) + "\n"
        try:
            check_fences(self.path)
            storage.fetch(self.path)
            with self.path.open("ab+") as file:
                if file.tell():
                    # A process that was killed while it wrote may have left a line without its end.
                    file.seek(-1, os.SEEK_END)
                    text = text if file.read() == b"\n" else "\n" + text
                file.write(text.encode())
            storage.publish(self.path, self.path)
        except (OSError, storage.StoreError) as error:
            if not self._has_warned:
                reason = getattr(error, "strerror", None) or error
                log.warning("WARNING: %s cannot be written (%s); training goes on", self.path, reason)
            self._has_warned = True


class Follower:
    """Reads the records that are appended to some journals.

    Args:
        directories: directories of the journals, which need not exist yet. Records that are already there are skipped.
    """

    def __init__(self, directories: list[Path]):
        paths = [directory / JOURNAL for directory in directories]
        for path in paths:
            storage.fetch(path)
        self._offsets = {path: path.stat().st_size if path.exists() else 0 for path in paths}

    def new_records(self) -> Iterator[dict[str, Any]]:
        """Yield the records written since the last call."""
        for path, start in self._offsets.items():
            try:
                storage.fetch(path)
                with path.open("rb") as file:
                    file.seek(start)
                    content = file.read()
            # There is none yet, or its file system does not answer; the next call reads on.
            except (OSError, storage.StoreError):
                continue
            complete = content[: content.rfind(b"\n") + 1]  # the last line may still be being written
            self._offsets[path] = start + len(complete)
            yield from whole_records(complete)


class PassProgress:
    """Reports how far a pass over the training documents is.

    Args:
        report: takes the records.
        level: number of the level.
        what: key of the number of documents so far: `read_so_far` or `scored_so_far`.
        documents: number of documents of the pass.
    """

    def __init__(self, report: Report, level: int, what: str, documents: int):
        self.report, self.level, self.what, self.documents = report, level, what, documents
        self.done = 0
        self._began = self._reported = time.monotonic()

    def add(self, documents: int) -> None:
        """Count further documents."""
        self.done += documents
        now = time.monotonic()
        if now - self._reported > REPORT_SECONDS:
            self._reported, rate = now, self.done / max(now - self._began, 1e-9)
            progress = {self.what: self.done, "documents": self.documents, "documents_per_second": rate}
            self.report({"level": self.level, **progress})
