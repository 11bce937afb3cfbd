"""The first pass of preparation: documents flow from their sources through Ray Data into staged blocks.

    sources ─ reading tasks ─▶ blocks of lines or records ─ tokenising tasks ─▶ staged blocks, files of rejections

A source is read from its beginning to its end by one task, which hardly does more than decompress the lines of a text
file, and all CPUs parse and tokenise its blocks. These are named by their place in the input, so tasks may end, or be
started again, in any order.
"""

import json
import pickle
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask

from axml_ray.cluster.connection import quiet_data
from axml_ray.corpus.preparation.staging import stage_block
from axml_ray.corpus.records.records import Document, Reader, Rejection, blocks_of
from axml_ray.settings import CorpusSettings

NumberedReaders = Sequence[tuple[int, Reader]]


@dataclass(frozen=True, slots=True)
class SourceBlock:
    """A block of a source.

    Attributes:
        name: number of the source, and of the block in it, such as `000012-000003`.
        reader: reads the records of the block, which it holds.
        failure: what is wrong if the source cannot be read; there is no reader then.
    """

    name: str
    reader: Reader | None = None
    failure: str = ""


def read_blocks(readers: NumberedReaders, size: int) -> Iterator[SourceBlock]:
    """Read numbered sources one after another, and yield their blocks, each of about `size` bytes."""
    for number, reader in readers:
        try:
            for block, held in enumerate(blocks_of(reader, size)):
                yield SourceBlock(f"{number:06d}-{block:06d}", held)
        # Yielded, because Ray hides the type of an exception that a task raises.
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            yield SourceBlock(f"{number:06d}", failure=f"{reader.path} cannot be read: {reason}")


def stage_source_block(block: SourceBlock, stage: Path, settings: CorpusSettings) -> dict[str, Any]:
    """Parse and tokenise the documents of a block, and write a staged block, and a file of rejections if there are any.

    Returns the path of the staged block, empty if there is none, the number of documents, and what failed.
    """
    if block.reader is None:
        return {"path": "", "rows": 0, "failure": block.failure}
    path = stage / block.name
    records = list(block.reader.read())
    documents = [record for record in records if isinstance(record, Document)]
    try:
        if path.exists():  # of a killed task, which Ray started again
            shutil.rmtree(path)
        if len(documents) < len(records):
            with path.with_suffix(".rejected.jsonl").open("w", encoding="utf-8") as file:
                for record in records:
                    if isinstance(record, Rejection):
                        rejected = {"file": record.file, "line": record.line, "reason": record.reason}
                        file.write(json.dumps(rejected, ensure_ascii=False) + "\n")
        if documents:
            stage_block(path, documents, settings)
    except OSError as error:
        return {"path": "", "rows": 0, "failure": f"{stage} cannot be written: {error.strerror or error}"}
    return {"path": str(path) if documents else "", "rows": len(documents), "failure": ""}


class Sources(ray.data.Datasource):
    """Sources as a Ray Data stream of their blocks; each group of readers is a reading task."""

    def __init__(self, groups: Sequence[NumberedReaders], size: int):
        super().__init__()
        self.groups, self.size = groups, size

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return the reading tasks, whose number and sizes are fixed."""
        unknown = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
        return [ReadTask(_read_task(group, self.size), unknown) for group in self.groups]

    def estimate_inmemory_data_size(self) -> int | None:
        """Return None, as the size of compressed files is unknown."""
        return None


def _read_task(readers: NumberedReaders, size: int) -> Any:
    def read() -> Iterator[pa.Table]:
        for block in read_blocks(readers, size):
            yield pa.table({"block": pa.array([pickle.dumps(block)], pa.large_binary())})

    return read


def stage_in_stream(
    groups: Sequence[NumberedReaders], size: int, row_bytes: int, stage: Path, settings: CorpusSettings
) -> Iterator[dict[str, Any]]:
    """Stage the sources of groups of readers by Ray Data, and yield what `stage_source_block` returns, in any order.

    Args:
        groups: the readers; those of a group are read one after another.
        size: approximate bytes of a block.
        row_bytes: bytes of blocks that a tokenising task gets at least, if a reading task has as many.
        stage: directory of the staged blocks.
        settings: settings of the corpus.
    """
    quiet_data()
    context = ray.data.DataContext.get_current().copy()
    context.target_max_block_size = row_bytes
    with ray.data.DataContext.current(context):
        blocks = ray.data.read_datasource(
            Sources(groups, size),
            num_cpus=0,  # those that tokenise hold all CPUs
            # Each task is a process: enough to keep the others busy, but not one for each of thousands of files.
            compute=ray.data.TaskPoolStrategy(size=max(1, int(ray.cluster_resources().get("CPU", 1)))),
            override_num_blocks=len(groups),
        )
        staged = blocks.map(_stage_row, fn_kwargs={"stage": stage, "settings": settings}, num_cpus=1)
    yield from staged.iter_rows()


def _stage_row(row: dict[str, Any], stage: Path, settings: CorpusSettings) -> dict[str, Any]:
    return stage_source_block(pickle.loads(row["block"]), stage, settings)
