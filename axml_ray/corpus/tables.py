"""Reads tables: Parquet, Arrow files as saved by Hugging Face `datasets`, CSV and TSV; a record is a row.

`Fields` names the columns. A file that lacks one of them is an error; a row with an invalid value is a rejection, and
so is the row at which a file turns out to be damaged.

`datasets` stores class labels as integers, and their names separately: in `dataset_info.json`, and as JSON in the
metadata of each Arrow or Parquet file. It need not be installed.
"""

import csv
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from axml_ray.corpus.line_blocks import LONGEST_LINE, Damage, read_line_blocks
from axml_ray.corpus.records import Document, Fields, Rejection, storable
from axml_ray.corpus.source_files import SourceFile, format_suffix, is_unreachable, open_raw

ROWS, BATCH_BYTES = 1000, 32 << 20
"""Largest number of rows that are converted at a time, and approximately of their bytes."""
STATE, INFO = "state.json", "dataset_info.json"
DATASETS_METADATA = b"huggingface"
"""Key of a schema's metadata under which `datasets` stores the features of a data set, as JSON."""
DAMAGE_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError)
"""The exceptions that reading a damaged table raises; a damaged size may exceed the memory."""


class MissingColumn(ValueError):
    """Raised if a table lacks a required column."""


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """Reads a Parquet file, or consecutive row groups of it."""

    path: SourceFile
    fields: Fields = field(default_factory=Fields)
    groups: tuple[int, ...] | None = None
    """The row groups to read; by default all."""
    rows_before: int = 0
    """Number of rows in the file before these row groups."""

    def read(self) -> Iterator[Document | Rejection]:
        """Stream the rows; see `Reader.read`."""
        with open_raw(self.path) as raw:
            row = self.rows_before
            try:
                file = pq.ParquetFile(raw)
                fields = _with_class_names(self.fields, file.schema_arrow)
                columns = _columns_to_read(fields, file.schema_arrow.names)
                groups = range(file.num_row_groups) if self.groups is None else self.groups
                size = sum(file.metadata.row_group(group).total_byte_size for group in groups)
                count = sum(file.metadata.row_group(group).num_rows for group in groups)
                rows = _rows_at_a_time(size, count)
                for batch in file.iter_batches(rows, row_groups=list(groups), columns=columns):
                    yield from _documents(batch, self.path, fields, row)
                    row += len(batch)
            except DAMAGE_ERRORS as error:
                if is_unreachable(error, self.path):
                    raise
                yield _damaged(self.path, row, "Parquet", error)

    def split(self, size: int) -> list["ParquetRows"]:
        """Return readers of consecutive row groups, each of about `size` bytes or one group."""
        try:
            with open_raw(self.path) as raw:
                metadata = pq.read_metadata(raw)
        except DAMAGE_ERRORS:
            return [self]
        parts: list[ParquetRows] = []
        groups: list[int] = []
        size_so_far = rows = rows_before = 0
        for group in range(metadata.num_row_groups):
            groups.append(group)
            size_so_far += metadata.row_group(group).total_byte_size
            rows += metadata.row_group(group).num_rows
            if size_so_far >= size:
                parts.append(replace(self, groups=tuple(groups), rows_before=rows_before))
                groups, size_so_far, rows_before = [], 0, rows
        if groups:
            parts.append(replace(self, groups=tuple(groups), rows_before=rows_before))
        return parts or [self]


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Reads a file in Arrow's stream or file format, such as `data-00000-of-00001.arrow`."""

    path: SourceFile
    fields: Fields = field(default_factory=Fields)

    def read(self) -> Iterator[Document | Rejection]:
        """Stream the rows; see `Reader.read`."""
        with open_raw(self.path) as raw:
            row = 0
            try:
                magic = raw.peek(6)[:6]  # type: ignore[attr-defined]
                if magic == b"ARROW1":
                    table = pa.ipc.open_file(raw)
                    schema, batches = table.schema, map(table.get_batch, range(table.num_record_batches))
                else:
                    stream = pa.ipc.open_stream(raw)
                    schema, batches = stream.schema, iter(stream)
                fields = _with_class_names(self.fields, schema)
                columns = _columns_to_read(fields, schema.names)
                for batch in batches:
                    rows = _rows_at_a_time(batch.nbytes, len(batch))
                    for begin in range(0, len(batch), rows):
                        part = batch.select(columns).slice(begin, rows)
                        part.validate(full=True)
                        yield from _documents(part, self.path, fields, row)
                        row += len(part)
            except DAMAGE_ERRORS as error:
                if is_unreachable(error, self.path):
                    raise
                yield _damaged(self.path, row, "Arrow", error)


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
    return [ArrowRows(file, replace(fields, numbers=True, names=names)) for file in files]


def _with_class_names(fields: Fields, schema: pa.Schema) -> Fields:
    """Return the fields with the names of class labels that a file's metadata contains, unless they have names."""
    if fields.names:
        return fields
    try:
        info = json.loads((schema.metadata or {}).get(DATASETS_METADATA, b"{}"))
        return replace(fields, names=_class_names(info.get("info", {}).get("features"), fields.labels))
    except (ValueError, AttributeError):  # metadata of something else
        return fields


def _class_names(features: Mapping[str, Any] | None, column: str) -> tuple[str, ...]:
    """Return the names of a column's class labels, by number; empty if it does not hold class labels.

    Args:
        features: features of a data set by column: `{"names": […], "_type": "ClassLabel"}`, or a list of these, which
            is written `{"feature": {…}}` or `[{…}]`, depending on the version of `datasets`.
        column: name of the column.
    """
    feature = (features or {}).get(column)
    if isinstance(feature, dict):
        feature = feature.get("feature", feature)
    if isinstance(feature, list):
        feature = feature[0] if feature else None
    names = feature.get("names") if isinstance(feature, dict) else None
    return tuple(map(str, names or ()))


def _columns_to_read(fields: Fields, names: list[str]) -> list[str]:
    """Return those of a table's columns `names` that hold fields of a record.

    Raises:
        MissingColumn: a required column is missing.
    """
    for column in fields.columns():
        if column not in names:
            raise MissingColumn(f"has no column {column!r}; its columns are {', '.join(names)}")
    return [name for name in dict.fromkeys([*fields.columns(), fields.labels, fields.id]) if name in names]


def _documents(batch: pa.RecordBatch, path: SourceFile, fields: Fields, row: int) -> Iterator[Document | Rejection]:
    fields = replace(fields, numbers=True)
    for number, record in enumerate(batch.to_pylist(), start=row + 1):
        yield _document(record, path, fields, number)


def _document(record: dict[str, object], path: SourceFile, fields: Fields, number: int) -> Document | Rejection:
    file = storable(str(path))
    try:
        text, labels, record_id = fields.read(record)
    except ValueError as error:
        return Rejection(file=file, line=number, reason=str(error))
    return Document(
        text=text, labels=labels, file=file, line=number, id=record_id or f"{fields.file_name(path)}:{number}"
    )


def _damaged(path: SourceFile, row: int, form: str, error: Exception) -> Rejection:
    reason = f"not a {form} file, or damaged from here on: {' '.join(str(error).split())}"
    return Rejection(file=storable(str(path)), line=row + 1, reason=reason)


@dataclass(frozen=True, slots=True)
class SeparatedValues:
    """Reads a CSV or TSV file with a header line; labels are one cell, split at a separator."""

    path: SourceFile
    fields: Fields = field(default_factory=lambda: Fields(separator=";"))
    delimiter: str | None = None
    """Delimiter of cells; by default a tab in .tsv and .tab files, else a comma."""

    def read(self) -> Iterator[Document | Rejection]:
        """Stream the rows, each numbered by the line on which it begins; see `Reader.read`."""
        csv.field_size_limit(min(LONGEST_LINE, sys.maxsize))
        lines = _LineStream(self.path)
        file = storable(str(self.path))
        delimiter = self.delimiter or ("\t" if format_suffix(self.path) in (".tsv", ".tab") else ",")
        # Strict, because otherwise a cell that begins with a stray quote would swallow the rows after it.
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        names: list[str] | None = None
        while True:
            line = lines.count + 1
            try:
                row = next(rows)
            except StopIteration:
                break
            except csv.Error as error:
                reason = f"not a row: {error}"
                if any(words in reason for words in ("'\"'", "end of data")):
                    reason += "; a cell with a quote in it must be quoted, and the quote doubled"
                if names is None:
                    raise ValueError(f"line {line}: {reason}") from None
                yield Rejection(file=file, line=line, reason=reason)
                # The lines that an unclosed quote swallowed may have been rows, so they are rejections too.
                for swallowed in range(line + 1, lines.count + 1):
                    yield Rejection(file=file, line=swallowed, reason=f"held by what isn't a row: from line {line} on")
                continue
            if not row:
                continue
            if names is None:
                names = row
                try:
                    _columns_to_read(self.fields, names)
                except MissingColumn as error:
                    if len(names) > 1 or not any(delimiter in names[0] for delimiter in "\t;,|"):
                        raise
                    raise MissingColumn(
                        f"{error}; if {names[0]!r} is several, set corpus.csv_delimiter (--csv-delimiter in prediction)"
                    ) from None
                continue
            if len(row) != len(names):
                yield Rejection(file=file, line=line, reason=f"has {len(row)} cells, the first line has {len(names)}")
            elif bad := next((cell for cell in row if not _is_utf8(cell)), None):
                yield Rejection(file=file, line=line, reason=f"not UTF-8: {bad[:20].encode(errors='replace')!r}")
            else:
                yield _document(dict(zip(names, row, strict=True)), self.path, self.fields, line)
        for damaged_line, reason in lines.damage:
            yield Rejection(file=file, line=damaged_line, reason=reason)


class _LineStream:
    """Iterates over the lines of a file as text; a byte that is not UTF-8 becomes a lone surrogate.

    Attributes:
        count: number of lines read so far.
        damage: line number and reason of each unreadable part.
    """

    def __init__(self, path: SourceFile):
        self._path = path
        self.count = 0
        self.damage: list[tuple[int, str]] = []
        self._stream = self._lines()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._stream)
        self.count += 1
        return line

    def _lines(self) -> Iterator[str]:
        for content in read_line_blocks(self._path, 1 << 20):
            if isinstance(content, Damage):
                self.damage.append((self.count + 1, content.reason))
                self.count += content.lines
                continue
            lines = content.split(b"\n")
            last = lines.pop()
            for line in lines:
                yield line.decode("utf-8", "surrogateescape") + "\n"
            if last:
                yield last.decode("utf-8", "surrogateescape")


def _is_utf8(cell: str) -> bool:
    return cell.isascii() or not any("\udc80" <= letter <= "\udcff" for letter in cell)
