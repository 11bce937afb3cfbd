"""Reads text files, plain or compressed, as blocks of whole lines.

- Memory is bounded: neither a whole file nor a line longer than `LONGEST_LINE` is ever held.
- One task can read the blocks of a file, and others its lines: see `LineRange.blocks`.
"""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Self

from axml_ray.corpus.readers.source_files import SourceFile
from axml_ray.corpus.readers.text_streams import open_text, read_bytes
from axml_ray.corpus.records.records import Fields, UnreadableRestError

LONGEST_LINE = 64 << 20
"""Maximum length of a line, in bytes."""
BLOCK_BYTES = 1 << 20
"""Bytes of lines that are read at a time."""
_READ_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class Damage:
    """An unreadable part of a file, yielded in place of a block of lines."""

    reason: str
    lines: int
    """Number of lost lines, as far as known: 1 for a line that is too long, 0 at the end of a damaged file."""


@dataclass(frozen=True, slots=True)
class LineRange:
    """The lines of a file, or a block of them, which a reader reads."""

    path: SourceFile
    fields: Fields = field(default_factory=Fields)
    held: bytes | Damage | None = field(default=None, repr=False)
    """A block of the file; None is the whole file."""
    lines_before: int = 0
    """Number of lines before the block."""

    def lines(self) -> Iterator[tuple[int, bytes | Damage]]:
        """Stream the lines; see `read_lines`."""
        return read_lines(self.path) if self.held is None else number_lines([self.held], self.lines_before)

    def blocks(self, size: int) -> Iterator[Self]:
        """Yield readers of blocks of about `size` bytes, which hold them, in order; see `read_line_blocks`."""
        lines = 0
        for held in read_line_blocks(self.path, size):
            yield replace(self, held=held, lines_before=lines)
            lines += held.lines if isinstance(held, Damage) else held.count(b"\n")


CUT_SHORT = "; the last line has no end, so the file may be cut short"


def read_line_blocks(file: SourceFile, size: int) -> Iterator[bytes | Damage]:
    """Stream a text file as blocks of about `size` bytes (decompressed) of whole lines, and `Damage`, in order.

    The last line may lack its line feed. Byte order marks before lines are removed: of the file, or of those in it.

    Raises:
        OSError: the file cannot be opened or read.
    """
    with open_text(file) as stream:
        while True:
            content, damage = read_bytes(stream, size)
            if not content and not damage:
                return
            too_long = False
            if not damage and not content.endswith(b"\n"):
                tail, damage = _read_line(stream, LONGEST_LINE)
                content += tail
                if len(tail) >= LONGEST_LINE and not tail.endswith(b"\n"):
                    too_long, damage = True, _skip_line(stream)
            whole = content.rfind(b"\n") + 1 if damage or too_long else len(content)
            if lines := content[:whole].removeprefix(codecs.BOM_UTF8):
                yield lines.replace(b"\n" + codecs.BOM_UTF8, b"\n")
            if too_long:
                yield Damage(f"longer than {LONGEST_LINE >> 20} MiB", 1)
            if damage:
                yield Damage(f"the file is truncated or corrupt from here on: {damage}", 0)
                return


def read_lines(file: SourceFile) -> Iterator[tuple[int, bytes | Damage]]:
    """Stream number, from 1, and line (or `Damage`) of a text file; see `read_line_blocks`. A line has no line feed."""
    return number_lines(read_line_blocks(file, BLOCK_BYTES))


class UnendedLine(bytes):
    """The last line of a file, if it has no line feed: the file may be cut short in it."""


def number_lines(blocks: Iterable[bytes | Damage], lines_before: int = 0) -> Iterator[tuple[int, bytes | Damage]]:
    """Stream number and line (or `Damage`) of consecutive blocks of a file after its first `lines_before` lines."""
    number = lines_before + 1
    for content in blocks:
        if isinstance(content, Damage):
            yield number, content
            number += content.lines
            continue
        lines = content.split(b"\n")
        if last := lines.pop():
            lines.append(UnendedLine(last))
        yield from enumerate(lines, number)
        number += len(lines)


def decode_line(line: bytes | Damage) -> str:
    """Decode UTF-8; a ValueError gives the reason if it is none, an `UnreadableRestError` if the file ends there."""
    if isinstance(line, Damage):
        raise (ValueError if line.lines else UnreadableRestError)(line.reason)
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = (
            f"not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1}; if the file is in Windows-1252, "
            "convert it: iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW-FILE"
        )
        if isinstance(line, UnendedLine) and error.reason == "unexpected end of data":
            raise UnreadableRestError(reason + CUT_SHORT) from None
        raise ValueError(reason) from None


def _read_line(stream: BinaryIO, limit: int) -> tuple[bytes, str]:
    """Return the rest of a line, at most about `limit` bytes, and an error message if reading failed after them."""
    pieces, length = [], 0
    try:
        while length < limit and (piece := stream.readline(min(_READ_BYTES, limit - length))):
            pieces.append(piece)
            length += len(piece)
            if piece.endswith(b"\n"):
                break
    except EOFError as error:
        return b"".join(pieces), str(error)
    return b"".join(pieces), ""


def _skip_line(stream: BinaryIO) -> str:
    """Skip the rest of a line; return an error message if reading failed after it."""
    piece, damage = b" ", ""
    while piece and not piece.endswith(b"\n") and not damage:
        piece, damage = _read_line(stream, _READ_BYTES)
    return damage
