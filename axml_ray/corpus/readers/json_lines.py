"""Reads JSON lines, one object per line.

- Lines are parsed by orjson. A line that it refuses is parsed by Python's `json`, which accepts more (NaN, lone
  surrogates) and gives the reason for an error.
- Fast path: a block without any irregular line is converted to columns at once. Any other block is read line by line;
  both give the same documents.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from axml_ray.corpus.readers.line_blocks import Damage, LineRange, decode_line, read_line_blocks
from axml_ray.corpus.readers.source_files import SourceFile
from axml_ray.corpus.records.records import Block, Document, Rejection, read_document, storable
from axml_ray.corpus.records.values import json_type

BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class JsonLines(LineRange):
    """Reads a file, or a byte range of it, with one JSON object per line, such as `{"text": str, "labels": [str, …]}`.

    A string or integer under `id` becomes the document's id; without one it is `<file name>:<line>`. Other keys are
    ignored and blank lines are skipped.
    """

    def read(self) -> Iterator[Document | Rejection]:
        """Stream a `Document` or a `Rejection` for each line that is not blank, in order.

        A truncated or corrupt compressed file ends with a rejection at the line where the damage begins. Truncation
        loses that line and all that follow; corruption also loses up to 128 KiB decompressed in the same step.

        Raises:
            OSError: the file cannot be opened or read.
        """
        for first, content in self._line_blocks(BLOCK_BYTES):
            if isinstance(content, Damage):
                yield self._rejection(first, content.reason)
            else:
                yield from self._records(first, content)

    def read_blocks(self, size: int) -> Iterator[Block]:
        """Read the same documents and rejections as columns, in blocks of at most `BLOCK_BYTES` or one line."""
        for first, content in self._line_blocks(min(size, BLOCK_BYTES)):
            if isinstance(content, Damage):
                yield Block.from_records([self._rejection(first, content.reason)])
            else:
                yield self._columns(first, content) or Block.from_records(list(self._records(first, content)))

    def _line_blocks(self, size: int) -> Iterator[tuple[int, bytes | Damage]]:
        """Yield the number of the first line of each block, and the block."""
        line = self.lines_before + 1
        for content in read_line_blocks(self.path, size, self.begin, self.end if self.end >= 0 else None):
            yield line, content
            line += content.lines if isinstance(content, Damage) else content.count(b"\n")

    def _records(self, first: int, content: bytes) -> Iterator[Document | Rejection]:
        exact = (self.fields.id, *self.fields.label_fields)
        for number, line in enumerate(content.split(b"\n"), start=first):
            if line.strip():
                yield read_document(self.fields, self.path, number, partial(parse_object, line, exact))

    def _rejection(self, line: int, reason: str) -> Rejection:
        return Rejection(file=storable(str(self.path)), line=line, reason=reason)

    def _columns(self, first: int, content: bytes) -> Block | None:
        """Convert a block of lines to columns at once, or return None if any line needs to be read on its own."""
        fields = self.fields
        if fields.title or fields.names or not fields.labelled:
            return None
        if isinstance(fields.labels, tuple) or "." in fields.text + fields.labels:
            return None
        lines = content.split(b"\n")
        if not lines[-1]:
            lines.pop()
        try:
            records = [orjson.loads(line) for line in lines]
            texts = pa.array([record[fields.text] for record in records], pa.string())
            lists = [record[fields.labels] for record in records]
            record_ids = [record.get(fields.id) for record in records]
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowInvalid):
            return None
        if not {*map(type, lists)} <= {list} or not {*map(type, record_ids)} <= {str, int, type(None)}:
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
        names = [storable(str(name)) if name is not None else "" for name in record_ids]
        file = fields.file_name(self.path)
        ids = [name or f"{file}:{number}" for number, name in enumerate(names, start=first)]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int32)
        return Block(
            ids=pa.array(ids, pa.string()),
            texts=texts,
            labels=pa.ListArray.from_arrays(pa.array(offsets), labels),
        )


def _has_nul(texts: pa.Array) -> bool:
    data = texts.buffers()[2]
    return data is not None and b"\0" in data.to_pybytes()


def parse_object(line: bytes, exact: Sequence[str] = ("id",)) -> dict[str, Any]:
    """Parse a JSON object; integers of the fields `exact` of more than 64 bits must not become floats, as orjson reads
    them.

    Raises:
        ValueError: the line is not a JSON object; the message is the reason.
    """
    try:
        record = orjson.loads(line)
        if type(record) is dict and not any(_has_float(record.get(name)) for name in exact):
            return record
    except orjson.JSONDecodeError:
        pass
    try:
        record = json.loads(decode_line(line))
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object but {json_type(record)}")
    return record


def _has_float(value: object) -> bool:
    return type(value) is float or (type(value) is list and float in map(type, value))


def first_object(path: SourceFile) -> dict[str, Any]:
    """Return the object on the first line that is not blank, or an empty one if that line is no object."""
    for content in read_line_blocks(path, 1 << 16):
        if isinstance(content, Damage):
            break
        for line in content.split(b"\n"):
            if line.strip():
                try:
                    return parse_object(line)
                except ValueError:
                    return {}
    return {}


def is_repository_json(path: SourceFile) -> bool:
    """Return whether a file has the fields of the Extreme Classification Repository's `trn.json` and `tst.json`."""
    try:
        return {"title", "target_ind"} <= first_object(path).keys()
    except (OSError, ValueError):
        return False  # the reader will report the error
