"""Runs the passes of preparation: as Ray Data tasks, or in this process if the input is small."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.data

from axml_ray.cluster.connection import quiet_data
from axml_ray.cluster.failures import failure, root_cause
from axml_ray.cluster.shared_state import sharing_files
from axml_ray.progress.heartbeat import Heartbeat
from axml_ray.settings import CorpusSettings

log = logging.getLogger(__name__)

SMALL_BYTES = 8 << 20
"""Inputs of fewer bytes are prepared in this process, because starting tasks would take longer."""

IS_LAST = "is_last_row_of_part"
"""Column that tells the driver when a part is done."""


def run_tasks(
    parts: Sequence[Any],
    task: Callable[..., Any],
    *,
    description: str,
    in_process: bool = False,
    options: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> list[Any]:
    """Run `task` for each of `parts`, as a Ray Data task of its own or, `in_process`, one after another.

    `task` takes a part and `arguments`, of which large ones are references into Ray's object store (`Workspace.share`).
    It returns rows, dictionaries of values that Arrow can hold; those of all tasks are returned, in any order.
    `options` are those of the Ray tasks.

    Raises:
        RuntimeError: a task failed, for example because a disk is full.
    """
    progress = Heartbeat(f"prepare: {description}", len(parts), "parts")
    if in_process or not parts:
        done: list[Any] = []
        with progress:
            for part in parts:
                done += task(part, **arguments)
                progress.add()
        return done
    log.info("prepare: %s", description)
    quiet_data()
    # The parts are stored once; each task gets the number of its part.
    shared_parts = ray.put(list(parts))
    numbers = ray.data.from_items([{"number": i} for i in range(len(parts))], override_num_blocks=len(parts))
    rows: Iterator[dict[str, Any]] = numbers.flat_map(
        _run_task, fn_kwargs={"parts": shared_parts, "task": task, "arguments": arguments}, **(options or {})
    ).iter_rows()
    try:
        with progress:
            return list(_count_parts(rows, progress))
    except ray.exceptions.RayError as error:
        raise failure(error, f"preparing the corpus failed: {root_cause(error)}") from error


def _run_task(row: dict[str, Any], parts: Any, task: Callable[..., Any], arguments: dict[str, Any]) -> list[Any]:
    rows: list[Any] = task(resolve(parts)[int(row["number"])], **arguments)
    return [{**result, IS_LAST: number == len(rows)} for number, result in enumerate(rows, start=1)]


def _count_parts(rows: Iterable[dict[str, Any]], progress: Heartbeat) -> Iterator[dict[str, Any]]:
    """Yield the rows of all tasks, and count a part as done with its last row."""
    for row in rows:
        progress.add(int(row.pop(IS_LAST)))
        yield row


def resolve(value: Any) -> Any:
    """Return the value of a reference into Ray's object store; any other value is returned as it is."""
    return ray.get(value) if isinstance(value, ray.ObjectRef) else value


def group_by_size(items: Sequence[Any], sizes: Sequence[int], limit: int) -> list[list[Any]]:
    """Group consecutive items whose sizes add up to at most `limit`; a larger item is a group of its own."""
    groups: list[list[Any]] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if not groups or total + size > limit:
            groups.append([])
            total = 0
        groups[-1].append(item)
        total += size
    return groups


@dataclass
class Workspace:
    """The directory in which a corpus is prepared, not yet visible under its final name, and how its passes run."""

    settings: CorpusSettings
    directory: Path
    in_process: bool = False

    def __post_init__(self) -> None:
        self.features.mkdir(parents=True)

    @property
    def stage(self) -> Path:
        """The directory of intermediate files."""
        return self.directory / "stage"

    @property
    def features(self) -> Path:
        """The directory of intermediate files of label features."""
        return self.stage / "features"

    def run(self, parts: Sequence[Any], task: Callable[..., Any], description: str, **arguments: Any) -> list[Any]:
        """Run a pass; see `run_tasks`."""
        options = None if self.in_process else sharing_files(self.directory)
        return run_tasks(parts, task, description=description, in_process=self.in_process, options=options, **arguments)

    def share(self, value: Any) -> Any:
        """Put an argument of a pass into Ray's object store, from which all tasks of a node read it."""
        return value if self.in_process else ray.put(value)

    def describe_split(self, split: str) -> str:
        """Return the setting and the files of a split, for messages."""
        files = ", ".join(map(str, getattr(self.settings, split)))
        return f"corpus.{split}" + (f" ({files})" if files else "")
