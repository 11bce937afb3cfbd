"""Reads CSV and TSV files; a record is a row.

`Fields` names the columns. A file that lacks one of them is an error; a row with an invalid value is a rejection.
"""

import csv
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from axml_ray.corpus.readers.columns import MissingColumn, columns_to_read
from axml_ray.corpus.readers.line_blocks import BLOCK_BYTES, CUT_SHORT, decode_line, read_line_blocks
from axml_ray.corpus.readers.separated_rows import LineStream, read_rows
from axml_ray.corpus.readers.source_files import SourceFile, format_suffix
from axml_ray.corpus.records.records import Document, Fields, Rejection, read_document, storable
from axml_ray.corpus.records.values import URI

NULL = r"\N"
"""Null in files that MySQL, PostgreSQL and Hive export."""


@dataclass(frozen=True, slots=True)
class SeparatedValues:
    """Reads a CSV or TSV file; labels are one cell, split at a separator.

    The file begins with a header line, which may follow Excel's line `sep=;`. A tab-separated file of texts and labels
    may lack it, if its first row has URIs or a label of a later row. A cell of URIs alone, such as
    `<http://x/1> <http://x/2>`, is a list of labels whatever the separator.
    """

    path: SourceFile
    fields: Fields = field(default_factory=Fields)
    delimiter: str | None = None
    """Delimiter of cells; by default the one that gives the columns: a tab in .tsv and .tab files, a comma, or else a
    tab, a semicolon or a vertical bar."""

    def read(self) -> Iterator[Document | Rejection]:
        """Stream the rows, each numbered by the line on which it begins; see `Reader.read`."""
        lines = LineStream(read_line_blocks(self.path, BLOCK_BYTES))
        file = storable(str(self.path))
        delimiter = self.delimiter
        if stated := re.fullmatch(r'(?i)"?sep=(.)"?\s*', lines.peek()):
            next(lines)
            delimiter = delimiter or stated[1]
        header_line = lines.peek()
        if not header_line.strip():
            header_line = next(filter(str.strip, lines.ahead()[0]), "")
        delimiter = delimiter or self._delimiter_of(header_line)
        names: list[str] | None = None
        header: list[str] = []
        for line, row in read_rows(lines, delimiter):
            if not isinstance(row, str):
                row = next(filter(None, map(_why_not_utf8, row)), row)
            if names is None:
                if isinstance(row, str):
                    raise ValueError(f"line {line}: {row}")
                names = [name.strip() for name in row]
                try:
                    columns_to_read(self.fields, names)
                    header = row
                    continue
                except MissingColumn as error:
                    if not self._lacks_header(names, delimiter, lines):
                        advice = "; if that is no header line, put one before it" if " " in "".join(names) else ""
                        raise MissingColumn(f"{str(error)[:500]}{advice}") from None  # a text may be long
                    names = [self.fields.text, *self.fields.label_fields]
            if isinstance(row, str):
                yield Rejection(file=file, line=line, reason=row, ends_file=row.endswith(CUT_SHORT))
                continue
            if row == header:  # of another file that was appended to this one
                continue
            if header and (order := _reordered(names, row)) is not None:  # whose columns may have another order
                names = order
                continue
            cells = (None if cell == NULL else cell for cell in row)
            yield read_document(self.fields, self.path, line, dict(zip(names, cells, strict=True)))
        for line, damage in lines.damage:
            yield Rejection(file=file, line=line, reason=damage.reason, ends_file=not damage.lines)

    def _delimiter_of(self, header: str) -> str:
        """Return the delimiter with which a header line names the required columns, or else the likeliest."""
        usual = "\t" if format_suffix(self.path) in (".tsv", ".tab") else ","
        candidates = dict.fromkeys([usual, *"\t;,|"])
        for candidate in candidates:
            with suppress(MissingColumn, csv.Error):
                columns_to_read(self.fields, [*map(str.strip, next(csv.reader([header], delimiter=candidate), []))])
                return candidate
        return next((likely for likely in ("\t", usual) if likely in header), max(candidates, key=header.count))

    def _lacks_header(self, first: list[str], delimiter: str, lines: LineStream) -> bool:
        """Return whether the first row of a file is data: its second cell has URIs, or a label of a later row."""
        fields = self.fields
        if delimiter != "\t" or len(first) != 2 or fields.title or not isinstance(fields.labels, str):
            return False
        if re.match(rf"\s*{URI}", first[1]):
            return True
        if {fields.text, fields.labels} & {*first}:
            return False
        labels = {label.strip() for label in first[1].split(fields.separator)} - {""}
        later = (line.partition("\t")[2].split(fields.separator) for line in lines.ahead()[0])
        return any(label.strip() in labels for row in later for label in row)


def _reordered(names: list[str], row: list[str]) -> list[str] | None:
    """Return the names of the columns in the order of another header; None if a row is no header."""
    by_folded = {name.casefold(): name for name in names}
    folded = [cell.strip().casefold() for cell in row]
    named = [name.casefold() for name in names if name]  # Excel writes empty columns without a name
    is_header = len({*named}) == len(named) > 1 and sorted(folded) == sorted(map(str.casefold, names))
    return [by_folded[name] for name in folded] if is_header else None


def _why_not_utf8(cell: str) -> str:
    """Return why a cell with lone surrogates in place of bytes is not UTF-8; an empty string if it is."""
    if cell.isascii() or not any("\udc80" <= letter <= "\udcff" for letter in cell):
        return ""
    try:
        decode_line(cell.encode("utf-8", "surrogateescape"))
    except ValueError as error:
        return str(error)
    return ""
