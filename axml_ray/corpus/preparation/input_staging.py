"""The first pass of preparation: reads every record once, into staged blocks and a list of rejections."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from axml_ray.cluster.connection import connect
from axml_ray.core.errors import SettingsError
from axml_ray.corpus.preparation import tasks
from axml_ray.corpus.preparation.passes import stage_inputs
from axml_ray.corpus.preparation.staging import StagedBlock
from axml_ray.corpus.preparation.tasks import Workspace, group_by_size
from axml_ray.corpus.readers.source_files import file_size
from axml_ray.corpus.records.records import Reader
from axml_ray.settings import SPLITS


@dataclass
class StagedInput:
    """The staged input.

    Attributes:
        paths: the staged blocks, in the order of the input.
        splits: for each block, int8 [documents], the split for which each document was given; `assign_splits`
            overwrites it.
        facts: for each block, `staging.DOCUMENT_FACTS` [documents].
        rejections: number of rejected records by reason.
        readers: the readers, by the number with which the names of their blocks begin.
    """

    paths: list[str]
    splits: list[np.ndarray]
    facts: list[np.ndarray]
    rejections: dict[str, int]
    readers: list[Reader]

    @property
    def documents(self) -> int:
        """The number of documents that were read."""
        return sum(map(len, self.splits))


def stage_sources(workspace: Workspace, readers: list[tuple[str, Reader]]) -> StagedInput:
    """Read all sources into staged blocks, and list the rejected records in `rejected.jsonl`.

    Ray is started or joined if the input is large.

    Args:
        workspace: where to write; its `in_process` is set according to the size of the input.
        readers: split and reader of each source; the split is empty for a source that has no splits.

    Raises:
        SettingsError: a file cannot be read, or too many records were rejected.
    """
    settings = workspace.settings
    parts = [
        (split, part, file_size(part.path))
        for split, reader in readers
        for part in (reader.split(settings.block_bytes) if hasattr(reader, "split") else [reader])
    ]
    workspace.in_process = sum(size for _, _, size in parts) < tasks.SMALL_BYTES
    if not workspace.in_process:
        connect()
    groups = group_by_size(
        [(number, part) for number, (_, part, _) in enumerate(parts)],
        [min(size, settings.block_bytes) for _, _, size in parts],
        min(settings.block_bytes, tasks.SMALL_BYTES),
    )
    rows = workspace.run(groups, stage_inputs, "reading the texts", stage=workspace.stage, settings=settings)
    if failures := sorted((row["path"], row["failure"]) for row in rows if row["failure"]):
        raise SettingsError(f"corpus: {failures[0][0]} {failures[0][1]}")
    rejections = _collect_rejections(workspace, sum(row["rows"] for row in rows))
    staged = StagedInput(sorted(row["path"] for row in rows), [], [], rejections, [part for _, part, _ in parts])
    for path in staged.paths:
        split = parts[reader_number(path)][0]
        facts = np.array(StagedBlock(Path(path)).array("facts"))
        staged.facts.append(facts)
        staged.splits.append(np.full(len(facts), SPLITS.index(split) if split else 0, dtype=np.int8))
    return staged


def reader_number(path: str) -> int:
    """Return the number of the reader of a staged block."""
    return int(Path(path).name[:6])


def _collect_rejections(workspace: Workspace, documents: int) -> dict[str, int]:
    """Write `rejected.jsonl` and return the number of rejected records by reason.

    Raises:
        SettingsError: their share is larger than `max_rejected_share`.
    """
    reasons: dict[str, int] = {}
    first: dict[str, Any] = {}
    with (workspace.directory / "rejected.jsonl").open("w", encoding="utf-8") as output:
        for path in sorted(workspace.stage.glob("*.rejected.jsonl")):
            with path.open(encoding="utf-8") as file:
                for line in file:
                    output.write(line)
                    record = json.loads(line)
                    first = first or record
                    reason = _general_reason(record["reason"])
                    reasons[reason] = reasons.get(reason, 0) + 1
    rejected = sum(reasons.values())
    if rejected > workspace.settings.max_rejected_share * (documents + rejected):
        more = f" (and {rejected - 1} more)" if rejected > 1 else ""
        raise SettingsError(
            f"{first['file']}:{first['line']}: {first['reason']}{more}; fix the line, or allow bad records "
            "with corpus.max_rejected_share"
        )
    return reasons


def _general_reason(reason: str) -> str:
    """Return a reason without the details that differ between records, to count by."""
    return reason.partition(":")[0].partition(" at ")[0]
