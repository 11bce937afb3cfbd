"""Reads tables: Parquet, and Arrow files as saved by Hugging Face `datasets`; a record is a row.

`Fields` names the columns. A file that lacks one of them is an error; a row with an invalid value is a rejection, and
so is the row at which a file turns out to be damaged.

`datasets` stores class labels as integers, and their names separately: in `dataset_info.json`, and as JSON in the
metadata of each Arrow or Parquet file. It need not be installed.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from axml_ray.corpus.readers.columns import columns_to_read
from axml_ray.corpus.readers.source_files import SourceFile, is_unreachable, open_raw
from axml_ray.corpus.records.records import Document, Fields, Rejection, read_document, storable

ROWS, BATCH_BYTES = 1000, 32 << 20
"""Largest number of rows that are converted at a time, and approximately of their bytes."""
STATE, INFO = "state.json", "dataset_info.json"
DATASETS_METADATA = b"huggingface"
"""Key of a schema's metadata under which `datasets` stores the features of a data set, as JSON."""
DAMAGE_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError, OverflowError)
"""The exceptions that reading a damaged table raises; a damaged size may exceed the memory."""


@dataclass(frozen=True)
class _TableRows(ABC):
    """Reads the rows of a table, or the part after its first `rows_before` rows."""

    path: SourceFile
    fields: Fields = field(default_factory=Fields)
    rows_before: int = 0

    form: ClassVar[str]

    def read(self) -> Iterator[Document | Rejection]:
        """Stream the rows; see `Reader.read`."""
        with open_raw(self.path) as raw:
            row = self.rows_before
            try:
                for fields, batch in self._batches(raw):
                    for record in _in_doubles(batch).to_pylist(maps_as_pydicts="lossy"):
                        row += 1
                        yield read_document(fields, self.path, row, record)
            except DAMAGE_ERRORS as error:
                if is_unreachable(error, self.path):
                    raise
                reason = f"not in the {self.form} format, or damaged from here on: {' '.join(str(error).split())}"
                file = storable(str(self.path))
                yield Rejection(file=file, line=row + 1, reason=reason, ends_file=True)

    @abstractmethod
    def _batches(self, raw: BinaryIO) -> Iterator[tuple[Fields, pa.RecordBatch]]:
        """Yield batches of the columns that the fields name, and the fields with the names of class labels."""


@dataclass(frozen=True)
class ParquetRows(_TableRows):
    """Reads a Parquet file, or consecutive row groups of it."""

    groups: tuple[int, ...] | None = None
    """The row groups to read; by default all."""

    form: ClassVar[str] = "Parquet"

    def _batches(self, raw: BinaryIO) -> Iterator[tuple[Fields, pa.RecordBatch]]:
        file = pq.ParquetFile(raw)
        fields = _with_class_names(self.fields, file.schema_arrow)
        columns = columns_to_read(fields, file.schema_arrow.names)
        groups = list(range(file.num_row_groups) if self.groups is None else self.groups)
        row_groups = [file.metadata.row_group(group) for group in groups]
        rows = _rows_at_a_time(
            sum(group.total_byte_size for group in row_groups), sum(group.num_rows for group in row_groups)
        )
        for batch in file.iter_batches(rows, row_groups=groups, columns=columns):
            yield fields, batch

    def split(self, size: int) -> list["ParquetRows"]:
        """Return readers of consecutive row groups, each of about `size` bytes or one group."""
        try:
            with open_raw(self.path) as raw:
                metadata = pq.read_metadata(raw)
        except DAMAGE_ERRORS:
            return [self]
        parts: list[ParquetRows] = []
        size_of_part = rows = 0
        for number in range(metadata.num_row_groups):
            if not parts or size_of_part >= size:
                parts.append(replace(self, groups=(), rows_before=rows))
                size_of_part = 0
            parts[-1] = replace(parts[-1], groups=(*(parts[-1].groups or ()), number))
            size_of_part += metadata.row_group(number).total_byte_size
            rows += metadata.row_group(number).num_rows
        return parts or [self]


@dataclass(frozen=True)
class ArrowRows(_TableRows):
    """Reads a file in Arrow's stream or file format, such as `data-00000-of-00001.arrow`."""

    form: ClassVar[str] = "Arrow"

    def _batches(self, raw: BinaryIO) -> Iterator[tuple[Fields, pa.RecordBatch]]:
        if raw.peek(6)[:6] == b"ARROW1":  # type: ignore[attr-defined]
            table = pa.ipc.open_file(raw)
            schema, batches = table.schema, map(table.get_batch, range(table.num_record_batches))
        else:
            stream = pa.ipc.open_stream(raw)
            schema, batches = stream.schema, iter(stream)
        fields = _with_class_names(self.fields, schema)
        columns = columns_to_read(fields, schema.names)
        for whole in batches:
            batch = whole.select(columns)
            batch.validate(full=True)  # before anything reads it: damaged offsets would end the process
            rows = _rows_at_a_time(batch.nbytes, len(batch))
            for begin in range(0, len(batch), rows):
                yield fields, batch.slice(begin, rows)


def _in_doubles(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with the doubles of the same decimals for its floats: 510.7, not 510.70001220703125."""
    floats = batch.schema
    for of_float in (pa.string(), pa.float64()):  # Arrow writes the fewest digits that tell a float from others
        schema = pa.schema([field.with_type(_with_leaves(field.type, of_float)) for field in floats])
        batch = batch if schema == floats else batch.cast(schema)
    return batch


def _with_leaves(kind: pa.DataType, of_float: pa.DataType) -> pa.DataType:
    """Return a type with `of_float` for each float32, also within lists and structures."""
    if pa.types.is_float32(kind):
        return of_float
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_leaves(field.type, of_float)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_leaves(kind.value_type, of_float)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_with_leaves(kind.value_type, of_float)))
    return kind


def _rows_at_a_time(size: int, rows: int) -> int:
    """Return how many rows of a table with `size` bytes in `rows` rows are converted at a time."""
    return max(1, min(ROWS, rows * BATCH_BYTES // max(size, 1)))


def saved_dataset_readers(directory: Path, fields: Fields) -> list[ArrowRows]:
    """Return the readers of a data set that Hugging Face `datasets` saved with `save_to_disk`.

    Class labels stored as numbers are named by the data set's own list.

    Raises:
        ValueError: the directory holds no such data set, or the data set has a separate index of rows.
    """
    try:
        state = json.loads((directory / STATE).read_text(encoding="utf-8"))
        info = directory / INFO
        content = json.loads(info.read_text(encoding="utf-8")) if info.is_file() else {}
        names = _class_names(content.get("features"), fields.labels)
        files = [directory / entry["filename"] for entry in state["_data_files"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{directory / STATE}: not the state of a saved data set: {error!r}") from None
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise ValueError(f"{directory}: has an index of rows; call flatten_indices() and save it again")
    return [ArrowRows(file, replace(fields, names=names)) for file in files]


def _with_class_names(fields: Fields, schema: pa.Schema) -> Fields:
    """Return the fields with the names of class labels that a file's metadata contains, unless they have names."""
    if fields.names:
        return fields
    try:
        info = json.loads((schema.metadata or {}).get(DATASETS_METADATA, b"{}"))
        return replace(fields, names=_class_names(info.get("info", {}).get("features"), fields.labels))
    except (ValueError, AttributeError):  # metadata of something else
        return fields


def _class_names(features: Mapping[str, Any] | None, column: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a column's class labels, by number; empty if it does not hold class labels.

    The features of a data set by column are `{"names": […], "_type": "ClassLabel"}`, or a list of these, which is
    written `{"feature": {…}}` or `[{…}]`, depending on the version of `datasets`.
    """
    if not isinstance(column, str) or not features:
        return ()
    feature: Any = features
    for part in [column] if column in features else column.split("."):
        feature = _of_list(feature.get(part)) if isinstance(feature, dict) else None
    names = feature.get("names") if isinstance(feature, dict) else None
    return tuple(map(str, names or ()))


def _of_list(feature: Any) -> Any:
    """Return the feature of the values of a list, or one that is no list."""
    if isinstance(feature, dict) and "_type" in feature:
        feature = feature.get("feature", feature)
    return feature[0] if isinstance(feature, list) and feature else feature
