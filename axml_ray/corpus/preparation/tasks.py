"""Runs the passes of preparation: on Ray, or in this process if the input is small."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from axml_ray.cluster.failures import failure, root_cause
from axml_ray.cluster.shared_state import sharing_files
from axml_ray.cluster.tasks import map_in_tasks
from axml_ray.corpus.counts import PREPARING_BYTES
from axml_ray.corpus.preparation.source_stream import NumberedReaders, read_blocks, stage_in_stream, stage_source_block
from axml_ray.progress.heartbeat import Heartbeat
from axml_ray.settings import CorpusSettings

log = logging.getLogger(__name__)

SMALL_BYTES = 8 << 20
"""Inputs of fewer bytes are prepared in this process, because starting tasks would take longer."""


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

    @property
    def _options(self) -> Mapping[str, Any]:
        """The options of tasks, which read each other's files."""
        return sharing_files(self.directory)

    def stage_sources(self, groups: Sequence[NumberedReaders], size: int) -> list[dict[str, Any]]:
        """Run the first pass, which writes staged blocks of about `size` bytes; see `source_stream.stage_in_stream`.

        Returns what `stage_source_block` does, in any order.
        """
        rows: Iterable[dict[str, Any]]
        if self.in_process:
            blocks = (block for group in groups for block in read_blocks(group, size))
            rows = (row for block in blocks for row in stage_source_block(block, size, self.stage, self.settings))
        else:
            rows = stage_in_stream(groups, size, min(size, SMALL_BYTES), self.stage, self.settings, self._options)
        done = []
        with self._progress("reading the texts", None, "documents") as progress:
            for row in rows:
                done.append(row)
                progress.add(row["rows"])
        return done

    def run(
        self,
        parts: Sequence[Any],
        task: Callable[..., Any],
        description: str,
        memory: int = PREPARING_BYTES,
        **arguments: Any,
    ) -> list[Any]:
        """Run a later pass: call `task` with each part and `arguments`, in Ray tasks or in this process.

        A Ray task reserves `memory` bytes. Returns the results, small ones, in the order of the parts.

        Raises:
            RuntimeError: a task failed, for example because a disk is full.
        """
        results: Iterable[Any]
        if self.in_process:
            results = (task(part, **arguments) for part in parts)
        else:
            results = map_in_tasks(task, parts, memory, self._options, **arguments)
        done = []
        with self._progress(description, len(parts), "parts") as progress:
            for result in results:
                done.append(result)
                progress.add()
        return done

    @contextmanager
    def _progress(self, description: str, total: int | None, unit: str) -> Iterator[Heartbeat]:
        if not self.in_process:
            log.info("prepare: %s", description)
        try:
            with Heartbeat(f"prepare: {description}", total, unit) as progress:
                yield progress
        except ray.exceptions.RayError as error:
            raise failure(error, f"preparing the corpus failed: {root_cause(error)}") from error

    def describe_split(self, split: str) -> str:
        """Return the setting and the files of a split, for messages."""
        files = ", ".join(map(str, getattr(self.settings, split)))
        return f"corpus.{split}" + (f" ({files})" if files else "")
