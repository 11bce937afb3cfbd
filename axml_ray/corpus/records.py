"""What a record of a source becomes: a document, or a rejection with file, line and reason.

- **One bad record costs one record.** It comes back as a `Rejection`, in the same stream and order as the documents
  around it.
- **What neither Parquet nor a tokenizer can hold becomes a blank**: NUL, and halves of surrogate pairs, which escapes
  in JSON and Python can smuggle into a string although UTF-8 has no bytes for them.
- Title and body are joined by the paper's separator.
"""

import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from axml_ray.corpus.tokenizer import SEPARATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text and the names of its labels."""

    text: str
    labels: tuple[str, ...]
    """Distinct, stripped, none empty; in the order of the source. May be empty."""
    file: str
    line: int
    """Counted from 1; in a table, the row."""
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A record that could not be read, and why."""

    file: str
    line: int
    """Counted from 1; in a table, the row."""
    reason: str


class Shard(Protocol):
    """A part of a source that one task reads; a small value that travels to the task."""

    @property
    def path(self) -> Path | str:
        """Where the shard lies: a local path, or a URL."""

    def read(self) -> Iterator[Document | Rejection]:
        """Streams the shard's documents in the order of the files.

        Raises:
            OSError: the file cannot be opened or read.
            ValueError: it isn't of the shard's format at all; the message is the plain reason.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some consecutive records of a shard, by column.

    Attributes:
        ids: string [documents].
        texts: string [documents], storable.
        labels: list<string> [documents], each storable and stripped, none empty; one may stand twice in a document.
        rejections: the records that could not be read.
    """

    ids: pa.Array
    texts: pa.Array
    labels: pa.Array
    rejections: tuple[Rejection, ...] = ()

    @classmethod
    def of(cls, records: Sequence[Document | Rejection]) -> "Block":
        """The block of `records`."""
        documents = [record for record in records if isinstance(record, Document)]
        return cls(
            ids=pa.array([document.id for document in documents], pa.string()),
            texts=pa.array([document.text for document in documents], pa.string()),
            labels=pa.array([document.labels for document in documents], pa.list_(pa.string())),
            rejections=tuple(record for record in records if isinstance(record, Rejection)),
        )


def blocks(shard: Shard, size: int) -> Iterator[Block]:
    """The documents of a shard by columns, in blocks of about `size` bytes of text; raises what `read` raises."""
    if isinstance(shard, Columnar):
        yield from shard.blocks(size)
        return
    records: list[Document | Rejection] = []
    held = 0
    for record in shard.read():
        records.append(record)
        held += len(record.text) + 100 if isinstance(record, Document) else 100
        if held >= size:
            yield Block.of(records)
            records, held = [], 0
    if records:
        yield Block.of(records)


@runtime_checkable
class Columnar(Protocol):
    """A shard that reads faster by columns."""

    def blocks(self, size: int) -> Iterator[Block]:
        """The same documents and rejections as `read`, in the same order, in blocks of about `size` bytes."""


UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def storable(text: str) -> str:
    r"""`text` with NULs and lone surrogates as blanks: `"a\0b"` becomes `"a b"`."""
    return UNSTORABLE.sub(" ", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Which fields of a record hold what."""

    text: str = "text"
    """The text, or the body where there is a title."""
    title: str | None = None
    """The title; a record without one has an empty title."""
    labels: str = "labels"
    """A list of label names."""
    id: str = "id"
    """A string or an integer; other records are named by file and line."""
    numbers: bool = False
    """Labels may be integers: `7` is the label `"7"`."""
    separator: str | None = None
    """Splits labels that are one string; None takes lists only."""
    names: tuple[str, ...] = ()
    """What integer labels stand for, by number; where empty, they stand for themselves."""
    labelled: bool = True
    """False where a record may come without labels, or with bad ones: it has none then."""

    def columns(self) -> list[str]:
        """The fields that are read, without the id."""
        return [*([self.title] if self.title else []), self.text, *([self.labels] if self.labelled else [])]

    def read(self, record: Mapping[str, Any]) -> tuple[str, tuple[str, ...], str | None]:
        """Text, labels and id, if it has one, of a record.

        Example: `{"text": "A cat.", "labels": ["pets", " cats", "pets"], "id": 7}` gives
        `("A cat.", ("pets", "cats"), "7")`.

        Raises:
            ValueError: a field is missing or of another kind; the message is the plain reason.
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
        given = record.get(self.id)
        given_id = storable(str(given)) if isinstance(given, str | int) and not isinstance(given, bool) else None
        return text, labels, given_id or None

    def _labels(self, record: Mapping[str, Any]) -> tuple[str, ...]:
        if self.labels not in record:
            raise ValueError(f"{self.labels!r} is missing")
        given = record[self.labels]
        if self.separator is not None and isinstance(given, str):
            given = [part for part in given.split(self.separator) if part.strip()]
        if not isinstance(given, list):
            raise ValueError(f"{self.labels!r} is {kind(given)}, not a list")
        return tuple(dict.fromkeys(self._label(label, place) for place, label in enumerate(given, start=1)))

    def _label(self, label: object, place: int) -> str:
        if self.numbers and isinstance(label, int) and not isinstance(label, bool):
            if not self.names:
                return str(label)
            if not 0 <= label < len(self.names):
                raise ValueError(f"label {place} is {label}; the names are of 0 to {len(self.names) - 1}")
            label = self.names[label]
        if not isinstance(label, str):
            raise ValueError(f"label {place} is {kind(label)}, not a string: {reprlib.repr(label)}")
        label = storable(label).strip()
        if not label:
            raise ValueError(f"label {place} is empty")
        return label


def _string(record: Mapping[str, Any], key: str) -> str:
    if key not in record:
        raise ValueError(f"{key!r} is missing")
    if not isinstance(record[key], str):
        raise ValueError(f"{key!r} is {kind(record[key])}, not a string")
    return str(record[key])


_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def kind(value: object) -> str:
    """What JSON would call `value`, e.g. `a list`."""
    return _KINDS.get(type(value), f"a {type(value).__name__}")


def name_of(place: Path | str) -> str:
    """The last part of a path or URL."""
    return storable(place.name if isinstance(place, Path) else place.partition("?")[0].rpartition("/")[2])
