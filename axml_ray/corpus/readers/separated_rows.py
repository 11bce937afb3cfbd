r"""Splits the lines of CSV and TSV files into rows of cells, as the programs that write them mean it.

| dialect | written by | used if |
|---|---|---|
| a cell may be quoted; a quote within it is doubled | Excel, pandas, Python's `csv` | nothing else is |
| the same, but `\"` is a quote and `\\` a backslash | Spark, MySQL | a row is valid only so; also for the next rows |
| a line is a row, a quote a character | Annif, PostgreSQL, `cut` | cells end at tabs, and more rows are valid so |
"""

import csv
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from axml_ray.corpus.readers.line_blocks import CUT_SHORT, LONGEST_LINE, Damage

_QUOTED_CELL = re.compile('"(?:[^"]|"")*"')


class LineStream:
    """Iterates over the lines of a file as text, and can go back to the first line of the current row.

    It takes what `line_blocks.read_line_blocks` yields. A byte that is not UTF-8 becomes a lone surrogate. `damage` has
    the line number of each unreadable part.
    """

    def __init__(self, blocks: Iterable[bytes | Damage]):
        self._blocks = iter(blocks)
        self._lines: list[tuple[int, str]] = []
        self._row = self._next = 0
        self._loaded = 0
        self.damage: list[tuple[int, Damage]] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._next == len(self._lines) and not self._load():
            raise StopIteration
        self._next += 1
        return self._lines[self._next - 1][1]

    def peek(self) -> str:
        """Return the next line, or an empty string at the end."""
        return self._lines[self._next][1] if self._next < len(self._lines) or self._load() else ""

    def ahead(self) -> tuple[list[str], bool]:
        """Return the next lines, of about one block more than was read, and whether these are all."""
        more = self._load()
        return [line for _, line in self._lines[self._next :]], not more

    @property
    def number(self) -> int:
        """Number of the line that `peek` returns."""
        return self._lines[self._next][0]

    @property
    def loaded(self) -> int:
        """Number of the last line that is in memory."""
        return self._loaded

    def begin_row(self) -> None:
        """Make the next line the first of the current row."""
        self._row = self._next

    def row(self) -> list[tuple[int, str]]:
        """Return number and text of each line that was read of the current row."""
        return self._lines[self._row : self._next]

    def go_to(self, number: int) -> None:
        """Go back or on, to where `number` lines of the current row have been read."""
        self._next = self._row + number

    def _load(self) -> bool:
        """Append the lines of the next block, if there is one."""
        del self._lines[: self._row]
        self._next -= self._row
        self._row = 0
        for content in self._blocks:
            if isinstance(content, Damage):
                self.damage.append((self._loaded + 1, content))
                self._loaded += content.lines
                continue
            lines = content.decode("utf-8", "surrogateescape").split("\n")
            last = lines.pop()
            lines = [f"{line}\n" for line in lines] + ([last] if last else [])
            self._lines += enumerate(lines, self._loaded + 1)
            self._loaded += len(lines)
            return True
        return False


def read_rows(
    lines: LineStream, delimiter: str, width: int | None = None, literal: bool | None = None
) -> Iterator[tuple[int, list[str] | str]]:
    """Yield for each row that is not blank the number of its first line, and its cells or why it is none.

    A last row that the file may have been cut short in ends with `CUT_SHORT`.
    `width` is the number of cells of a row, by default that of the first; `literal`, whether a quote is a character
    like others, is by default found out at the first quote.
    """
    csv.field_size_limit(min(LONGEST_LINE, sys.maxsize))
    # A quote opens a cell after a blank, too, if a blank follows each delimiter of the header: `text, "labels"`.
    is_padded = 0 < lines.peek().count(delimiter) == lines.peek().count(f"{delimiter} ")
    form: dict[str, Any] = {"delimiter": delimiter, "strict": True, "skipinitialspace": is_padded}
    escape = re.compile(rf'\\["{re.escape(delimiter)}]')
    # The module `csv` would drop the backslash of `C:\temp`, which escapes nothing, so it is doubled.
    backslash = re.compile(rf'(\\["\\{re.escape(delimiter)}])|\\')
    unescaped = map(lambda line: backslash.sub(lambda match: match[1] or r"\\", line), lines)
    # Strict, because otherwise a cell that begins with a stray quote would swallow the rows after it.
    reader: Iterator[list[str]] = csv.reader(lines, **form)
    other: Iterator[list[str]] = csv.reader(unescaped, **form, escapechar="\\")
    literal = literal if delimiter == "\t" else False
    undecided = 0  # the last line that was looked at, where all rows are valid in both dialects
    while True:
        lines.begin_row()
        if literal is None and '"' in lines.peek() and lines.number > undecided:
            literal, undecided = _has_literal_quotes(lines, width), lines.loaded
            reader = map(_split_literally, lines) if literal else reader
        row = _next_row(reader)
        if row and not literal and not _is_valid(row, width) and any(escape.search(line) for _, line in lines.row()):
            size = len(lines.row())
            lines.go_to(0)
            again = _next_row(other)
            if again and _is_valid(again, width):
                row, reader, other = again, other, reader
            else:
                lines.go_to(size)
        if row is None:
            return
        if not row:
            continue
        number = lines.row()[0][0]
        if isinstance(row, list):
            width = width or len(row)
            if len(row) == width:
                yield number, row
            else:
                why = f"has {len(row)} cells, the first line has {width}"
                yield number, why + _cut_short(lines) * (len(row) < width)
            continue
        yield number, row + _cut_short(lines) * ("end of data" in row)
        # The lines that an unclosed quote swallowed may have been rows, so they are errors too.
        yield from ((swallowed, f"held by what isn't a row: from line {number} on") for swallowed, _ in lines.row()[1:])


def _cut_short(lines: LineStream) -> str:
    """Return what a reason ends with if the file may have been cut in the row: its last line has no end."""
    return "" if lines.row()[-1][1].endswith("\n") else CUT_SHORT


def _next_row(reader: Iterator[list[str]]) -> list[str] | str | None:
    """Return the cells of the next row, or why it is none, or None at the end."""
    try:
        return next(reader, None)
    except csv.Error as error:
        reason = f"not a row: {error}"
        if "new-line" in reason:
            return "not a row: a carriage return is in a cell that isn't quoted"
        if any(words in reason for words in ("'\"'", "end of data")):
            reason += "; a cell with a quote in it must be quoted, and the quote doubled"
        return reason


def _is_valid(row: list[str] | str, width: int | None) -> bool:
    return isinstance(row, list) and len(row) == (width or len(row))


def _has_literal_quotes(lines: LineStream, width: int | None) -> bool | None:
    """Return whether more of the next lines are valid rows if a quote is a character like others; None at a tie."""
    ahead, are_all = lines.ahead()
    width = width or ahead[0].count("\t") + 1
    copy = LineStream(["".join(ahead).encode("utf-8", "surrogateescape")])
    quoted = [row for _, row in read_rows(copy, "\t", width, literal=False)]
    literal = sum(line.count("\t") + 1 == width for line in ahead)
    valid = sum(isinstance(row, list) for row in quoted)
    most = valid + (not are_all and isinstance(quoted[-1], str))  # the last row may be cut off
    return True if literal > most else False if literal < valid else None


def _split_literally(line: str) -> list[str]:
    """Return the cells of a line at whose tabs they end; a quote is dropped only if all of its cell is well quoted."""
    line = line.rstrip("\r\n")
    cells = (cell[1:-1].replace('""', '"') if _QUOTED_CELL.fullmatch(cell) else cell for cell in line.split("\t"))
    return list(cells) if line else []
