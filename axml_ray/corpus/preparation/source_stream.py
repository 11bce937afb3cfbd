"""The first pass of preparation: documents flow from their sources through Ray Data into staged blocks.

    sources ─ reading tasks ─▶ blocks of lines ─ tokenising tasks ─▶ staged blocks, files of rejections

A file of lines is decompressed by one task, and all CPUs parse and tokenise its blocks. In other formats, finding the
records takes most of the time, and sending them costs more than it saves: a table, or a part of one, is read by the
task that tokenises it. Blocks are named by their place in the input, so tasks may end, or start again, in any order.
"""

import json
import pickle
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask

from axml_ray.cluster.capacity import reservable_memory
from axml_ray.cluster.connection import quiet_data
from axml_ray.corpus.counts import PREPARING_BYTES
from axml_ray.corpus.preparation.staging import stage_block
from axml_ray.corpus.readers.line_blocks import LineRange
from axml_ray.corpus.records.records import Document, Reader, Rejection
from axml_ray.settings import CorpusSettings

NumberedReaders = Sequence[tuple[int, Reader]]


@dataclass(frozen=True, slots=True)
class SourceBlock:
    """A block of a source.

    Attributes:
        name: number of the source, and of the block in it, such as `000012-000003`.
        reader: reads the records of the block; it holds the lines if they are such.
        failure: what is wrong if the source cannot be read; there is no reader then.
    """

    name: str
    reader: Reader | None = None
    failure: str = ""


def blocks_of(reader: Reader, size: int) -> Iterator[Reader]:
    """Yield readers of the blocks of a source: lines of about `size` bytes, or if it has none, the source itself.

    Raises:
        OSError, ValueError: as `Reader.read`.
    """
    return reader.blocks(size) if isinstance(reader, LineRange) else iter([reader])


def _chunks(reader: Reader, size: int) -> Iterator[list[Document | Rejection]]:
    """Yield the records of a reader in lists of about `size` characters; a ValueError says why it cannot be read."""
    records: list[Document | Rejection] = []
    held = 0
    try:
        for record in reader.read():
            records.append(record)
            held += len(record.text if isinstance(record, Document) else record.reason)
            if held >= size:
                yield records
                records, held = [], 0
    except OSError as error:
        raise ValueError(error.strerror or error) from None
    if records:
        yield records


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


def stage_source_block(block: SourceBlock, size: int, stage: Path, settings: CorpusSettings) -> list[dict[str, Any]]:
    """Parse and tokenise the documents of a block, and write staged blocks of about `size` characters, mostly one.

    Rejections are written to files next to them. Returns a row for each staged block, with its path and number of
    documents, or for a failure, with its message.
    """
    if block.reader is None:
        return [{"path": "", "rows": 0, "failure": block.failure}]
    rows = []
    try:
        for leftover in stage.glob(f"{block.name}-*"):  # of a killed task, which Ray started again
            leftover.unlink() if leftover.is_file() else shutil.rmtree(leftover)
        for number, records in enumerate(_chunks(block.reader, size)):
            path = stage / f"{block.name}-{number:06d}"
            documents = [record for record in records if isinstance(record, Document)]
            if documents:
                stage_block(path, documents, settings)
                rows.append({"path": str(path), "rows": len(documents), "failure": ""})
            if len(documents) < len(records):
                with path.with_suffix(".rejected.jsonl").open("w", encoding="utf-8") as file:
                    for record in records:
                        if isinstance(record, Rejection):
                            file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")
    except OSError as error:
        rows.append({"path": "", "rows": 0, "failure": f"{stage} cannot be written: {error.strerror or error}"})
    except ValueError as error:
        rows.append({"path": "", "rows": 0, "failure": f"{block.reader.path} cannot be read: {error}"})
    return rows


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
    groups: Sequence[NumberedReaders],
    size: int,
    row_bytes: int,
    stage: Path,
    settings: CorpusSettings,
    options: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Stage the sources of groups of readers by Ray Data, and yield what `stage_source_block` returns, in any order.

    Args:
        groups: the readers; those of a group are read one after another.
        size: approximate bytes of a block.
        row_bytes: least bytes of blocks for a tokenising task; a reading task may end before it has read them.
        stage: directory of the staged blocks.
        settings: settings of the corpus.
        options: further options of the Ray tasks.
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
            ray_remote_args=dict(options),
        )
        arguments = {"size": size, "stage": stage, "settings": settings}
        memory = reservable_memory(PREPARING_BYTES)
        staged = blocks.flat_map(_stage_row, fn_kwargs=arguments, num_cpus=1, memory=memory, **options)
    yield from staged.iter_rows()


def _stage_row(row: dict[str, Any], **arguments: Any) -> list[dict[str, Any]]:
    return stage_source_block(pickle.loads(row["block"]), **arguments)
