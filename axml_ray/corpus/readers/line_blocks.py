"""Reads text files, plain or compressed, as blocks of whole lines.

- Memory is bounded: neither a whole file nor a line longer than `LONGEST_LINE` is ever held.
- Several tasks can read byte ranges of a large uncompressed file: a line belongs to the range in which it begins.
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Self

from axml_ray.corpus.readers.source_files import SourceFile, open_raw
from axml_ray.corpus.readers.text_streams import is_stored_as_read, open_text, read_bytes
from axml_ray.corpus.records.records import Fields

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
    """The lines of a file, or of a byte range of it, which a reader reads."""

    path: SourceFile
    fields: Fields = field(default_factory=Fields)
    begin: int = 0
    """First byte of the range; lines that begin before it belong to another reader."""
    end: int | None = None
    """End of the range; lines that begin here or later belong to another reader. None is the end of the file."""
    lines_before: int = 0
    """Number of lines that begin before `begin`."""

    def lines(self) -> Iterator[tuple[int, bytes | Damage]]:
        """Stream the lines; see `read_lines`."""
        return read_lines(self.path, self.begin, self.end, self.lines_before)

    def split(self, size: int) -> list[Self]:
        """Return readers of about `size` bytes each that together read the same documents."""
        ranges = line_ranges(self.path, size)
        return [replace(self, begin=begin, end=end, lines_before=lines) for begin, end, lines in ranges]


def read_line_blocks(file: SourceFile, size: int, begin: int = 0, end: int | None = None) -> Iterator[bytes | Damage]:
    """Stream a text file as blocks of about `size` bytes (decompressed) of whole lines, and `Damage`, in order.

    Only lines that begin at or after the byte `begin`, and before `end`, are read; a compressed file can only be read
    from beginning to end. The last line may lack its line feed. A byte order mark at the beginning is removed.

    Raises:
        OSError: the file cannot be opened or read.
    """
    with open_text(file) as stream:
        byte_order_mark = b"" if begin else codecs.BOM_UTF8
        if begin:
            # From one byte earlier: if that byte is a line feed, the line at `begin` belongs to this range.
            stream.seek(begin - 1)
            begin += _skip_line(stream)[0] - 1
        remaining = end - begin if end is not None else float("inf")
        while remaining > 0:
            content, damage = read_bytes(stream, int(min(size, remaining)))
            if not content and not damage:
                return
            too_long = 0  # bytes skipped of a line that is too long, plus 1
            if not damage and not content.endswith(b"\n"):
                tail, damage = _read_line(stream, LONGEST_LINE)
                content += tail
                if len(tail) >= LONGEST_LINE and not tail.endswith(b"\n"):
                    skipped, damage = _skip_line(stream)
                    too_long = 1 + skipped
            remaining -= len(content) + too_long
            whole = content.rfind(b"\n") + 1 if damage or too_long else len(content)
            if whole:
                yield content[:whole].removeprefix(byte_order_mark)
                byte_order_mark = b""
            if too_long:
                yield Damage(f"longer than {LONGEST_LINE >> 20} MiB", 1)
            if damage:
                yield Damage(f"the file is truncated or corrupt from here on: {damage}", 0)
                return


def read_lines(
    file: SourceFile, begin: int = 0, end: int | None = None, lines_before: int = 0
) -> Iterator[tuple[int, bytes | Damage]]:
    """Stream number, from 1, and line (or `Damage`) of a text file or a byte range of it, as `read_line_blocks` does.

    `lines_before` is the number of lines that begin before `begin`. A line has no line feed.
    """
    number = lines_before + 1
    for content in read_line_blocks(file, BLOCK_BYTES, begin, end):
        if isinstance(content, Damage):
            yield number, content
            number += content.lines
            continue
        lines = content.split(b"\n")
        if not lines[-1]:
            lines.pop()
        yield from enumerate(lines, number)
        number += len(lines)


def decode_line(line: bytes | Damage) -> str:
    """Decode UTF-8; a ValueError gives the reason if it is none."""
    if isinstance(line, Damage):
        raise ValueError(line.reason)
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1}; if the file is in Windows-1252, "
            "convert it: iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW-FILE"
        ) from None


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


def _skip_line(stream: BinaryIO) -> tuple[int, str]:
    """Skip the rest of a line; return its length in bytes, and an error message if reading failed after it."""
    skipped, piece, damage = 0, b" ", ""
    while piece and not piece.endswith(b"\n") and not damage:
        piece, damage = _read_line(stream, _READ_BYTES)
        skipped += len(piece)
    return skipped, damage


def line_ranges(file: SourceFile, size: int) -> list[tuple[int, int | None, int]]:
    """Cut a text file into byte ranges of about `size` bytes: begin, end, and the number of lines that begin before it.

    A compressed or remote file is one range `(0, None, 0)`, because counting its lines would mean reading all of it.
    """
    total = file.stat().st_size if isinstance(file, Path) and file.is_file() else 0
    if total <= size or not is_stored_as_read(file):
        return [(0, None, 0)]
    ranges: list[tuple[int, int | None, int]] = []
    lines, last = 0, b"\n"
    with open_raw(file) as stream:
        for begin in range(0, total, size):
            end = min(begin + size, total)
            # If the byte before `begin` is no line feed, the line that contains `begin` began in an earlier range.
            ranges.append((begin, end, lines + (last != b"\n")))
            for position in range(begin, end, 1 << 20):
                piece = stream.read(min(1 << 20, end - position))
                lines, last = lines + piece.count(b"\n"), piece[-1:]
    return ranges
