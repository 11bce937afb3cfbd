"""The records of a source: each becomes a document, or a rejection with file, line and reason.

- One bad record costs one record: it is yielded as a `Rejection`, in the same stream and order as the documents.
- Characters that neither Parquet nor a tokenizer can hold become blanks: NUL, and lone surrogates, which escapes in
  JSON and Python can put into a string although UTF-8 cannot encode them.
- Title and body are joined by the paper's separator, `/SEP/`.
"""

import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from axml_ray.corpus.composition import composed_strings
from axml_ray.corpus.tokenizer import SEPARATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text and its labels."""

    text: str
    labels: tuple[str, ...]
    """Labels, distinct, stripped and not empty, in the order of the source. There may be none."""
    file: str
    line: int
    """Line number, or row number in a table, from 1."""
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A record that could not be read, and the reason."""

    file: str
    line: int
    """Line number, or row number in a table, from 1."""
    reason: str


class Reader(Protocol):
    """Reads a source file, or a part of one; a small value that is sent to the task that runs it."""

    @property
    def path(self) -> Path | str:
        """The file: a local path, or a URL."""

    def read(self) -> Iterator[Document | Rejection]:
        """Stream the documents in the order of the file.

        Raises:
            OSError: the file cannot be opened or read.
            ValueError: the file does not have the reader's format; the message is the reason, without the file's name.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive records of a file, as columns.

    Attributes:
        ids: string [documents].
        texts: string [documents], without unstorable characters.
        labels: list<string> [documents], without unstorable characters, stripped, not empty; a document may repeat one.
        rejections: the records that could not be read.
    """

    ids: pa.Array
    texts: pa.Array
    labels: pa.Array
    rejections: tuple[Rejection, ...] = ()

    @classmethod
    def from_records(cls, records: Sequence[Document | Rejection]) -> "Block":
        """Convert records to columns."""
        documents = [record for record in records if isinstance(record, Document)]
        return cls(
            ids=pa.array([document.id for document in documents], pa.string()),
            texts=pa.array([document.text for document in documents], pa.string()),
            labels=pa.array([document.labels for document in documents], pa.list_(pa.string())),
            rejections=tuple(record for record in records if isinstance(record, Rejection)),
        )

    def composed(self) -> "Block":
        """Return the block with its texts and labels in Unicode's composed form."""
        labels = pa.ListArray.from_arrays(self.labels.offsets, composed_strings(self.labels.values))
        return replace(self, texts=composed_strings(self.texts), labels=labels)


def read_blocks(reader: Reader, size: int) -> Iterator[Block]:
    """Read the documents of a reader as blocks of about `size` bytes of text; raises what `Reader.read` raises."""
    if isinstance(reader, ColumnarReader):
        yield from reader.read_blocks(size)
        return
    records: list[Document | Rejection] = []
    total = 0
    for record in reader.read():
        records.append(record)
        total += len(record.text) + 100 if isinstance(record, Document) else 100
        if total >= size:
            yield Block.from_records(records)
            records, total = [], 0
    if records:
        yield Block.from_records(records)


@runtime_checkable
class ColumnarReader(Protocol):
    """A reader that can produce columns faster than documents."""

    def read_blocks(self, size: int) -> Iterator[Block]:
        """Read the documents and rejections of `Reader.read`, in the same order, as blocks of about `size` bytes."""


UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def storable(text: str) -> str:
    r"""Return `text` with NULs and lone surrogates replaced by blanks: `"a\0b"` becomes `"a b"`."""
    return UNSTORABLE.sub(" ", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The names of a record's fields, and how labels are written.

    Its `repr` is part of the identity of a prediction job (`inference/predict_files.py`): changing the name or the
    order of an attribute makes unfinished jobs start anew.
    """

    text: str = "text"
    """Field of the text, or of the body if there is a title."""
    title: str | None = None
    """Field of the title; a record without this field has an empty title."""
    labels: str = "labels"
    """Field of the list of labels."""
    id: str = "id"
    """Field of the id, a string or an integer; other records are identified by file name and line."""
    numbers: bool = False
    """Whether labels may be integers: `7` is the label `"7"`."""
    separator: str | None = None
    """Separator at which a string of labels is split; None accepts only lists."""
    names: tuple[str, ...] = ()
    """Names of integer labels, by number; if empty, the number itself is the name."""
    labelled: bool = True
    """Whether a record must have labels; if False, missing or invalid labels are read as none."""
    file: str = field(default="", repr=False)
    """Name of the file in the ids of records without one; by default the last part of its path."""

    def file_name(self, path: Path | str) -> str:
        """Return the name of a file in the ids of its records."""
        return self.file or file_name(path)

    def columns(self) -> list[str]:
        """Return the required fields."""
        return [*([self.title] if self.title else []), self.text, *([self.labels] if self.labelled else [])]

    def read(self, record: Mapping[str, Any]) -> tuple[str, tuple[str, ...], str | None]:
        """Return text, labels and id of a record; the id is None if it has none.

        Example: `{"text": "A cat.", "labels": ["pets", " cats", "pets"], "id": 7}` gives
        `("A cat.", ("pets", "cats"), "7")`.

        Raises:
            ValueError: a field is missing or has the wrong type; the message is the reason.
        """
        text = storable(_string(record, self.text))
        if self.title:
            title = "" if record.get(self.title) is None else storable(_string(record, self.title))
            text = f"{title} {SEPARATOR} {text}"
        try:
            labels = self._labels(record)
        except ValueError:
            if self.labelled:
                raise
            labels = ()
        value = record.get(self.id)
        record_id = storable(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else None
        return text, labels, record_id or None

    def _labels(self, record: Mapping[str, Any]) -> tuple[str, ...]:
        if self.labels not in record:
            raise ValueError(f"{self.labels!r} is missing")
        labels = record[self.labels]
        if self.separator is not None and isinstance(labels, str):
            labels = [part for part in labels.split(self.separator) if part.strip()]
        if self.names and isinstance(labels, int):  # a column of one class label per text
            labels = [labels]
        if not isinstance(labels, list):
            raise ValueError(f"{self.labels!r} is {json_type(labels)}, not a list")
        return tuple(dict.fromkeys(self._label(label, number) for number, label in enumerate(labels, start=1)))

    def _label(self, label: object, number: int) -> str:
        """Return the name of a label; `number` is its position in the record, from 1, for error messages."""
        if self.numbers and isinstance(label, int) and not isinstance(label, bool):
            if not self.names:
                return str(label)
            if not 0 <= label < len(self.names):
                raise ValueError(f"label {number} is {label}; the names are of 0 to {len(self.names) - 1}")
            label = self.names[label]
        if not isinstance(label, str):
            raise ValueError(f"label {number} is {json_type(label)}, not a string: {reprlib.repr(label)}")
        label = storable(label).strip()
        if not label:
            raise ValueError(f"label {number} is empty")
        return label


def _string(record: Mapping[str, Any], key: str) -> str:
    if key not in record:
        raise ValueError(f"{key!r} is missing")
    if not isinstance(record[key], str):
        raise ValueError(f"{key!r} is {json_type(record[key])}, not a string")
    return str(record[key])


_JSON_TYPES = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def json_type(value: object) -> str:
    """Return JSON's name of the type of `value`, with an article: `a list`."""
    return _JSON_TYPES.get(type(value), f"a {type(value).__name__}")


def file_name(file: Path | str) -> str:
    """Return the last part of a path or URL."""
    return storable(file.name if isinstance(file, Path) else file.partition("?")[0].rpartition("/")[2])
