"""The records of a source: each becomes a document, or a rejection with file, line and reason, in order.

Characters that neither Parquet nor a tokenizer can hold become blanks: NUL, and lone surrogates, which escapes in JSON
and Python can put into a string. Title and body are joined by the paper's separator, `/SEP/`.
"""

import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from axml_ray.corpus.records.values import MISSING, id_of, is_positive, labels_of, storable, text_of, value_at
from axml_ray.corpus.text.tokenizer import SEPARATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text and its labels."""

    text: str
    labels: tuple[str, ...]
    """Labels, stripped and not empty, in the order of the source; one may be repeated. There may be none."""
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
    id: str = ""
    """The id of the document that it would be, if the record could be parsed."""
    ends_file: bool = False
    """Whether nothing after it can be read, as in a file that is cut short."""


class UnreadableRestError(ValueError):
    """A record and everything after it in its file cannot be read; the message is the reason."""


class Reader(Protocol):
    """Reads a source file, or a part of one; a value that is sent to the task that runs it."""

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
class Fields:
    """The names of a record's fields, and how labels are written.

    Its `repr` is part of the identity of a prediction job (`inference/predict_files.py`): changing the name or the
    order of an attribute makes unfinished jobs start anew.
    """

    text: str = "text"
    """Field of the text, or of the body if there is a title."""
    title: str | None = None
    """Field of the title; a record without this field has an empty title."""
    labels: str | tuple[str, ...] = "labels"
    """Field of the labels; or several fields of ones and zeros, one for each label, which has the field's name."""
    id: str = "id"
    """Field of the id, see `values.id_of`; records without one are identified by file name and line."""
    separator: str = ";"
    """Separator at which a string of labels is split; the strings of a list are not split."""
    names: tuple[str, ...] = ()
    """Names of the classes whose numbers are the labels; if empty, the number itself is the name."""
    labelled: bool = True
    """Whether a record must have labels; if False, missing or invalid labels are read as none."""
    file: str = field(default="", repr=False)
    """Name of the file in the ids of records without one; by default the last part of its path."""

    def file_name(self, path: Path | str) -> str:
        """Return the name of a file in the ids of its records."""
        return self.file or file_name(path)

    @property
    def label_fields(self) -> tuple[str, ...]:
        """The field of the labels, or the fields of ones and zeros."""
        return self.labels if isinstance(self.labels, tuple) else (self.labels,)

    def read(self, record: Mapping[str, Any]) -> tuple[str, tuple[str, ...], str | None]:
        """Return text, labels and id of a record; the id is None if it has none. A label may be repeated.

        Example: `{"text": "A cat.", "labels": ["pets", " cats", 4], "id": 7}` gives
        `("A cat.", ("pets", "cats", "4"), "7")`. A missing field, or one of a wrong type, is a ValueError with the
        reason.
        """
        text = text_of(self._value(record, self.text), self.text)
        title = text_of(value_at(record, self.title), self.title) if self.title else None
        if text is None and not title:
            raise ValueError(f"{self.text!r} is null, not a string")
        text = f"{title or ''} {SEPARATOR} {text or ''}" if self.title else text or ""
        try:
            labels = self._labels(record)
        except ValueError:
            if self.labelled:
                raise
            labels = ()
        return text, labels, self.id_in(record)

    def id_in(self, record: Mapping[str, Any]) -> str | None:
        """Return the id of a record, None if it has none; a wrong one is a ValueError with the reason."""
        return id_of(value_at(record, self.id), self.id)

    def _labels(self, record: Mapping[str, Any]) -> tuple[str, ...]:
        if isinstance(self.labels, tuple):
            return tuple(field for field in self.labels if is_positive(self._value(record, field), field))
        return labels_of(self._value(record, self.labels), self.labels, self.separator, self.names)

    def _value(self, record: Mapping[str, Any], field: str) -> Any:
        value = value_at(record, field)
        if value is MISSING:
            setting = {self.text: "text_field", self.title: "title_field"}.get(field, "labels_field")
            raise ValueError(
                f"{field!r} is missing: the fields are {reprlib.repr(list(record))[1:-1]}; set {setting} if it has "
                "another name"
            )
        return value


def read_document(
    fields: Fields,
    path: Path | str,
    line: int,
    record: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
    at: str = "",
) -> Document | Rejection:
    """Return the document of a record, or its rejection.

    `record` may be a function that parses it and raises a ValueError with the reason if it cannot. `line` is its line
    or row number, from 1, which is also in the id of a document without one, unless `at` gives another position.
    """
    file, position = storable(str(path)), f"{fields.file_name(path)}:{at or line}"
    content: Mapping[str, Any] = {}
    try:
        content = record() if callable(record) else record
        text, labels, record_id = fields.read(content)
    except (ValueError, OverflowError) as error:
        record_id = None
        with suppress(ValueError, OverflowError):
            record_id = fields.id_in(content)
        ends_file = isinstance(error, UnreadableRestError)
        return Rejection(file=file, line=line, reason=str(error), id=record_id or position, ends_file=ends_file)
    return Document(text=text, labels=labels, file=file, line=line, id=record_id or position)


def file_name(file: Path | str) -> str:
    """Return the last part of a path or URL."""
    return storable(file.name if isinstance(file, Path) else unquote(file.partition("?")[0].rpartition("/")[2]))
