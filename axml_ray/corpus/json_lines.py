"""JSON lines: one object a line, in files that are plain, gzip or zstd.

- Lines are read as bytes and parsed one by one, by a fast parser; what that refuses goes to Python's, which knows more
  (NaN, halves of surrogate pairs) and says what is wrong.
- **A block whose lines are all as they should be becomes columns at once**; any other goes line by line, so that both
  ways give the same.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from axml_ray.corpus.places import Damage, Place, line_blocks, line_ranges
from axml_ray.corpus.records import Block, Document, Fields, Rejection, kind, name_of, storable

BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class JsonLines:
    """A file, or a range of its bytes, with one JSON object on each line, such as `{"text": str, "labels": [str, …]}`.

    A string or integer under `id` becomes the document's id; without one it is `<file name>:<line>`. Other keys are
    ignored and blank lines are skipped.
    """

    path: Place
    fields: Fields = field(default_factory=Fields)
    begin: int = 0
    """Lines that begin before this byte are another shard's."""
    end: int = -1
    """So are those that begin here or later; -1 is the end of the file."""
    lines_before: int = 0
    """Lines that begin before `begin`."""

    def read(self) -> Iterator[Document | Rejection]:
        """Streams the lines of the file.

        A truncated or corrupt compressed file ends in a rejection at the line where it broke. Truncation costs that
        line and what follows it; corruption also costs what was inflated in the same step, 128 KiB at most.

        Yields:
            A `Document` or a `Rejection` for each line that is not blank, in order.

        Raises:
            OSError: The file cannot be opened or read.
        """
        for first, content in self._line_blocks(BLOCK_BYTES):
            if isinstance(content, Damage):
                yield self._rejection(first, content.reason)
            else:
                yield from self._records(first, content)

    def blocks(self, size: int) -> Iterator[Block]:
        """The same by columns; a block is of at most `BLOCK_BYTES` or one line."""
        for first, content in self._line_blocks(min(size, BLOCK_BYTES)):
            if isinstance(content, Damage):
                yield Block.of([self._rejection(first, content.reason)])
            else:
                yield self._columns(first, content) or Block.of(list(self._records(first, content)))

    def split(self, size: int) -> list["JsonLines"]:
        """Shards of about `size` bytes each that together read what this one reads."""
        if self.begin or self.end >= 0:
            return [self]
        return [
            replace(self, begin=begin, end=end, lines_before=lines)
            for begin, end, lines in line_ranges(self.path, size)
        ]

    def _line_blocks(self, size: int) -> Iterator[tuple[int, bytes | Damage]]:
        """Blocks and the number of their first line."""
        line = self.lines_before + 1
        for content in line_blocks(self.path, size, self.begin, self.end if self.end >= 0 else None):
            if isinstance(content, Damage):
                yield line, content
                line += content.lines
            else:
                yield line, content
                line += content.count(b"\n")

    def _records(self, first: int, content: bytes) -> Iterator[Document | Rejection]:
        for number, line in enumerate(content.split(b"\n"), start=first):
            if not line.strip():
                continue
            try:
                text, labels, given_id = self.fields.read(parse_object(line, self.fields.id))
            except ValueError as error:
                yield self._rejection(number, str(error))
                continue
            document_id = given_id or f"{name_of(self.path)}:{number}"
            yield Document(text=text, labels=labels, file=storable(str(self.path)), line=number, id=document_id)

    def _rejection(self, line: int, reason: str) -> Rejection:
        return Rejection(file=storable(str(self.path)), line=line, reason=reason)

    def _columns(self, first: int, content: bytes) -> Block | None:
        """The block, where nothing in it asks for a closer look."""
        fields = self.fields
        if fields.title or fields.separator or fields.names or not fields.labelled:
            return None
        lines = content.split(b"\n")
        if not lines[-1]:
            lines.pop()
        try:
            records = [orjson.loads(line) for line in lines]
            texts = pa.array([record[fields.text] for record in records], pa.string())
            lists = [record[fields.labels] for record in records]
            given = [record.get(fields.id) for record in records]
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowInvalid):
            return None
        if not {*map(type, lists)} <= {list} or not {*map(type, given)} <= {str, int, type(None)}:
            return None
        try:
            labels = pa.array(chain.from_iterable(lists), pa.string())
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            return None
        if texts.null_count or labels.null_count or not isinstance(labels, pa.Array) or _has_nul(texts):
            return None
        distinct = pc.unique(labels).to_pylist()
        if any(not label or label != label.strip() or "\0" in label for label in distinct):
            return None
        names = [storable(str(name)) if name is not None else "" for name in given]
        ids = [name or f"{name_of(self.path)}:{number}" for number, name in enumerate(names, start=first)]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int32)
        return Block(
            ids=pa.array(ids, pa.string()),
            texts=texts,
            labels=pa.ListArray.from_arrays(pa.array(offsets), labels),
        )


def _has_nul(texts: pa.Array) -> bool:
    data = texts.buffers()[2]
    return data is not None and b"\0" in data.to_pybytes()


def parse_object(line: bytes, id_field: str = "id") -> dict[str, Any]:
    """The object on a line.

    Raises:
        ValueError: there is none; the message is the plain reason.
    """
    try:
        record = orjson.loads(line)
        # A number too long for 64 bits comes as a float; as an id it is to be kept.
        if type(record) is dict and type(record.get(id_field)) is not float:
            return record
    except orjson.JSONDecodeError:
        pass
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object but {kind(record)}")
    return record


def first_object(path: Place) -> dict[str, Any]:
    """The object on the first line that isn't blank; empty where there is none.

    Raises:
        OSError: The file cannot be opened or read.
    """
    for content in line_blocks(path, 1 << 16):
        if isinstance(content, Damage):
            break
        for line in content.split(b"\n"):
            if line.strip():
                try:
                    return parse_object(line)
                except ValueError:
                    return {}
    return {}


def is_repository_json(path: Place) -> bool:
    """Whether the file is `trn.json` or `tst.json` of the Extreme Classification Repository's newer data sets."""
    try:
        return {"title", "target_ind"} <= first_object(path).keys()
    except OSError:
        return False  # whoever reads it will say so
