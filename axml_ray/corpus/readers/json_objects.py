"""Reads JSON arrays of objects, and objects of several lines one after another, from plain or compressed files.

The file is cut into its objects without parsing it, so memory is bounded by the largest object, an object that is not
JSON costs one record, and each has a line.
"""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from axml_ray.corpus.readers.json_lines import parse_object
from axml_ray.corpus.readers.line_blocks import LONGEST_LINE
from axml_ray.corpus.readers.source_files import SourceFile
from axml_ray.corpus.readers.text_streams import open_text, read_bytes
from axml_ray.corpus.records.records import Document, Fields, Rejection, UnreadableRestError, read_document

READ_BYTES = 1 << 20
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[{}\[\]]|[^\s,{}\[\]"]+', re.DOTALL)
"""A string, which the end of the buffer may cut; a bracket; or anything else but blanks and commas."""

OPENING, CLOSING = (b"{", b"["), (b"}", b"]")


@dataclass(frozen=True, slots=True)
class JsonObjects:
    """Reads the objects of a JSON array, or objects that follow each other, with the fields of a JSON line."""

    path: SourceFile
    fields: Fields = field(default_factory=Fields)

    def read(self) -> Iterator[Document | Rejection]:
        """Stream a `Document` or a `Rejection`, with the line on which it begins, for each object or other value.

        A document without an id is `<file name>:<line>`, the k-th that begins on its line `<file name>:<line>.<k>`.

        Raises:
            OSError: the file cannot be opened or read.
        """
        last_line = count = 0

        def parse(content: bytes | str) -> dict[str, Any]:
            if isinstance(content, str):
                raise UnreadableRestError(content)
            return parse_object(content)

        for line, content in _read_values(self.path):
            count, last_line = (count + 1 if line == last_line else 1), line
            at = f"{line}.{count}" if count > 1 else str(line)
            record = read_document(self.fields, self.path, line, partial(parse, content), at)
            if isinstance(record, Rejection) and count > 1:
                record = replace(record, reason=f"{record.reason} at object {count} of the line")
            yield record


def is_json_document(path: SourceFile) -> bool:
    """Return whether a file begins with a JSON array, or with an object that its first line does not complete."""
    try:
        with open_text(path) as stream:
            head = stream.read(1 << 16)
    except (OSError, EOFError, ValueError):
        return False  # the reader will report the error
    head = head.removeprefix(codecs.BOM_UTF8).lstrip()
    first, line_feed, _ = head.partition(b"\n")
    return head.startswith(b"[") or (head.startswith(b"{") and line_feed != b"" and first.rstrip()[-1:] in b"{[,:")


def _read_values(path: SourceFile) -> Iterator[tuple[int, bytes | str]]:
    """Yield the values at the top of a file, of an array there its elements, each with the line on which it begins.

    Where reading has to end before the file does, the reason is yielded as a string in place of a value.
    """
    buffer, line, counted = b"", 1, 0  # `line` is the line at the position `counted` of the buffer
    place = depth = start = 0  # tokens before `place` are read; a value of `depth` began at `start`
    in_array = False
    problem, is_first, is_last = "", True, False
    with open_text(path) as stream:
        while not is_last:
            content, damage = read_bytes(stream, READ_BYTES)
            buffer += content.removeprefix(codecs.BOM_UTF8) if is_first else content
            is_first, is_last = False, not content or damage != ""
            for match in _TOKEN.finditer(buffer, place):
                token = match[0]
                if match.end() == len(buffer) and not is_last and token not in (*OPENING, *CLOSING):
                    break  # more of it may follow
                place = match.end()
                if not depth and token == (b"]" if in_array else b"["):
                    in_array = not in_array
                    continue
                if not depth:
                    start = match.start()
                depth += (token in OPENING) - (token in CLOSING and depth > 0)
                if not depth:
                    line, counted = line + buffer.count(b"\n", counted, start), start
                    yield line, buffer[start:place]
            kept = start if depth else place
            line, counted = line + buffer.count(b"\n", counted, kept), 0
            buffer, place, start = buffer[kept:], place - kept, 0
            if damage:
                problem = f"the file is truncated or corrupt from here on: {damage}"
            elif depth and len(buffer) > LONGEST_LINE:
                problem = f"longer than {LONGEST_LINE >> 20} MiB, or not closed; nothing after it is read"
                is_last = True
    if problem:
        yield line, problem
    elif depth:
        yield line, "is not closed; nothing after it is read"
    elif in_array:
        yield line, "the array does not end; the file may be cut short"
