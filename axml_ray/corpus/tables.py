"""Tables: Parquet, Arrow files as Hugging Face `datasets` saves them, CSV and TSV; a record is a row.

Columns are those of `Fields`; a file without one of them is no input at all, while a row with a bad value is a
rejection, as is the place where a file turns out to be damaged.
"""

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from axml_ray.corpus.places import LONGEST_LINE, Damage, Place, format_suffix, line_blocks, open_file, out_of_reach
from axml_ray.corpus.records import Document, Fields, Rejection, name_of, storable

ROWS = 1000
STATE = "state.json"
DAMAGED = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError)
"""What reading a damaged table raises; sizes in it may ask for more memory than there is."""


class MissingColumn(ValueError):
    """A table has no column of a name that is asked for."""


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """A Parquet file, or some consecutive row groups of it."""

    path: Place
    fields: Fields = field(default_factory=Fields)
    groups: tuple[int, ...] | None = None
    """Row groups; by default all."""
    rows_before: int = 0
    """Rows of the file before these."""

    def read(self) -> Iterator[Document | Rejection]:
        """Streams the rows; see `Shard.read`."""
        with open_file(self.path) as raw:
            row = self.rows_before
            try:
                file = pq.ParquetFile(raw)
                columns = _present(self.fields, file.schema_arrow.names)
                groups = range(file.num_row_groups) if self.groups is None else self.groups
                for batch in file.iter_batches(ROWS, row_groups=list(groups), columns=columns):
                    yield from _documents(batch, self.path, self.fields, row)
                    row += len(batch)
            except DAMAGED as error:
                if out_of_reach(error, self.path):
                    raise
                yield _damaged(self.path, row, "Parquet", error)

    def split(self, size: int) -> list["ParquetRows"]:
        """Shards of whole row groups, each of about `size` bytes or one group."""
        try:
            with open_file(self.path) as raw:
                about = pq.read_metadata(raw)
        except DAMAGED:
            return [self]
        parts: list[ParquetRows] = []
        groups: list[int] = []
        held = rows = before = 0
        for group in range(about.num_row_groups):
            groups.append(group)
            held += about.row_group(group).total_byte_size
            rows += about.row_group(group).num_rows
            if held >= size:
                parts.append(replace(self, groups=tuple(groups), rows_before=before))
                groups, held, before = [], 0, rows
        if groups:
            parts.append(replace(self, groups=tuple(groups), rows_before=before))
        return parts or [self]


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """A file of record batches: Arrow's stream or file format, such as `data-00000-of-00001.arrow`."""

    path: Place
    fields: Fields = field(default_factory=Fields)

    def read(self) -> Iterator[Document | Rejection]:
        """Streams the rows; see `Shard.read`."""
        with open_file(self.path) as raw:
            row = 0
            try:
                magic = raw.peek(6)[:6]  # type: ignore[attr-defined]
                if magic == b"ARROW1":
                    table = pa.ipc.open_file(raw)
                    names, batches = table.schema.names, map(table.get_batch, range(table.num_record_batches))
                else:
                    stream = pa.ipc.open_stream(raw)
                    names, batches = stream.schema.names, iter(stream)
                columns = _present(self.fields, names)
                for batch in batches:
                    for begin in range(0, len(batch), ROWS):
                        part = batch.select(columns).slice(begin, ROWS)
                        part.validate(full=True)
                        yield from _documents(part, self.path, self.fields, row)
                        row += len(part)
            except DAMAGED as error:
                if out_of_reach(error, self.path):
                    raise
                yield _damaged(self.path, row, "Arrow", error)


def saved_dataset(directory: Path, fields: Fields) -> list[ArrowRows]:
    """The files of a data set that Hugging Face `datasets` saved with `save_to_disk`.

    Class labels that are kept as numbers are named by the data set's own list.

    Raises:
        ValueError: it isn't one, or it has an index of rows beside its files.
    """
    try:
        state = json.loads((directory / STATE).read_text(encoding="utf-8"))
        about = directory / "dataset_info.json"
        features = json.loads(about.read_text(encoding="utf-8")).get("features") or {} if about.is_file() else {}
        files = [directory / entry["filename"] for entry in state["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{directory / STATE}: not that of a saved data set: {error!r}") from None
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise ValueError(f"{directory}: has an index of rows beside its files; save it again after flatten_indices()")
    feature = features.get(fields.labels) or {}
    inner = feature.get("feature", feature) if isinstance(feature, dict) else feature[0] if feature else {}
    names = inner.get("names", ()) if isinstance(inner, dict) else ()
    return [ArrowRows(file, replace(fields, numbers=True, names=tuple(names))) for file in files]


def _present(fields: Fields, names: list[str]) -> list[str]:
    for wanted in fields.columns():
        if wanted not in names:
            raise MissingColumn(f"has no column {wanted!r}; its columns are {', '.join(names)}")
    return [name for name in dict.fromkeys([*fields.columns(), fields.labels, fields.id]) if name in names]


def _documents(batch: pa.RecordBatch, place: Place, fields: Fields, row: int) -> Iterator[Document | Rejection]:
    fields = replace(fields, numbers=True)
    for number, record in enumerate(batch.to_pylist(), start=row + 1):
        yield _document(record, place, fields, number)


def _document(record: dict[str, object], place: Place, fields: Fields, number: int) -> Document | Rejection:
    file = storable(str(place))
    try:
        text, labels, given_id = fields.read(record)
    except ValueError as error:
        return Rejection(file=file, line=number, reason=str(error))
    return Document(text=text, labels=labels, file=file, line=number, id=given_id or f"{name_of(place)}:{number}")


def _damaged(place: Place, row: int, kind: str, error: Exception) -> Rejection:
    reason = f"not a {kind} file, or damaged from here on: {' '.join(str(error).split())}"
    return Rejection(file=storable(str(place)), line=row + 1, reason=reason)


@dataclass(frozen=True, slots=True)
class SeparatedValues:
    """A CSV or TSV file with a line of column names; labels are one cell, split at a separator."""

    path: Place
    fields: Fields = field(default_factory=lambda: Fields(separator=";"))
    delimiter: str | None = None
    """Between cells; by default a comma, and a tab in .tsv and .tab."""

    def read(self) -> Iterator[Document | Rejection]:
        """Streams the rows, each with the line that it begins on; see `Shard.read`."""
        csv.field_size_limit(min(LONGEST_LINE, sys.maxsize))
        lines = _Lines(self.path)
        file = storable(str(self.path))
        delimiter = self.delimiter or ("\t" if format_suffix(self.path) in (".tsv", ".tab") else ",")
        # Strict, or a cell that begins with a stray quote would hold the rows behind it.
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        names: list[str] | None = None
        while True:
            line = lines.taken + 1
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
                # What a quote that isn't closed held counts too: these may well have been rows.
                for at in range(line + 1, lines.taken + 1):
                    yield Rejection(file=file, line=at, reason=f"held by what isn't a row: from line {line} on")
                continue
            if not row:
                continue
            if names is None:
                names = row
                try:
                    _present(self.fields, names)
                except MissingColumn as error:
                    if len(names) > 1 or not any(other in names[0] for other in "\t;,|"):
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
        for at, reason in lines.damage:
            yield Rejection(file=file, line=at, reason=reason)


class _Lines:
    """The lines of a file as text, counted; a broken byte becomes half a surrogate pair."""

    def __init__(self, place: Place):
        self._place = place
        self.taken = 0
        self.damage: list[tuple[int, str]] = []
        self._stream = self._lines()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._stream)
        self.taken += 1
        return line

    def _lines(self) -> Iterator[str]:
        for content in line_blocks(self._place, 1 << 20):
            if isinstance(content, Damage):
                self.damage.append((self.taken + 1, content.reason))
                self.taken += content.lines
                continue
            lines = content.split(b"\n")
            last = lines.pop()
            for line in lines:
                yield line.decode("utf-8", "surrogateescape") + "\n"
            if last:
                yield last.decode("utf-8", "surrogateescape")


def _is_utf8(cell: str) -> bool:
    return cell.isascii() or not any("\udc80" <= letter <= "\udcff" for letter in cell)
