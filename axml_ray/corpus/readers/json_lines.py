"""Reads JSON lines, one object per line."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from axml_ray.corpus.readers.line_blocks import CUT_SHORT, Damage, LineRange, UnendedLine, decode_line, read_lines
from axml_ray.corpus.readers.source_files import SourceFile
from axml_ray.corpus.records.records import Document, Rejection, UnreadableRestError, read_document
from axml_ray.corpus.records.values import json_type


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
        """
        for number, line in self.lines():
            if isinstance(line, Damage) or line.strip():
                yield read_document(self.fields, self.path, number, partial(parse_object, line))


def parse_object(line: bytes | Damage) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: the line is not a JSON object; the message is the reason.
        UnreadableRestError: the same of a line in which the file may be cut short.
    """
    # Not by orjson, which makes floats of integers of more than 64 bits, so that two ids or labels could become one.
    try:
        record = json.loads(decode_line(line))
    except json.JSONDecodeError as error:
        reason = f"not JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}"
        if isinstance(line, UnendedLine):
            raise UnreadableRestError(f"{reason}{CUT_SHORT}") from None
        raise ValueError(reason) from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object but {json_type(record)}")
    return record


def is_repository_json(path: SourceFile, *, labelled: bool) -> bool:
    """Return whether a file has the fields of the Extreme Classification Repository's `trn.json` and `tst.json`.

    If it need not be labelled, it may lack those of the labels.
    """
    try:
        first = next(line for _, line in read_lines(path) if isinstance(line, Damage) or line.strip())
        fields = parse_object(first).keys()
        return {"title", "target_ind"} <= fields or (
            not labelled and {"title", "content"} <= fields and "text" not in fields
        )
    except (OSError, ValueError, StopIteration):
        return False  # the reader will report the error
