"""What a person follows while trees train: records appended by workers, read by the driver, shown as lines.

Workers and driver share the run's directory and nothing else, so the same lines come from a laptop, from a cluster
and from a job whose terminal is gone; the records stay beside the model.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

JOURNAL = "training.jsonl"


class Journal:
    """A file of JSON lines that one process appends to."""

    def __init__(self, directory: Path, **about: Any):
        self.path = directory / JOURNAL
        self.about = about

    def write(self, record: dict[str, Any]) -> None:
        """Append a record, with the time and what the journal is about."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), **self.about, **record}) + "\n")


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
                yield json.loads(line)


def line(record: dict[str, Any]) -> str:
    """A record as a person reads it."""
    where = f"tree {record['tree'] + 1} · level {record['level']}/{record['levels']}"
    if "opened" in record:
        return f"{where} · already finished, opened"
    if "scored" in record:
        return f"{where} · scored {record['scored']:,} training documents in {record['seconds']:.0f} s"
    score = record["valid_nDCG@5"]
    shown = "–" if score is None else f"{score:.2f}"
    return (
        f"{where} ({record['nodes']:,} nodes) · epoch {record['epoch']}/{record['epochs']} · "
        f"loss {record['loss']:.4f} · valid nDCG@5 {shown} · {record['documents_per_second']:,.0f} docs/s · "
        f"{_clock(record['seconds_left'])} left"
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
