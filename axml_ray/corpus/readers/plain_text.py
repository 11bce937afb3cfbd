"""Reads plain text files, one text per line, which have no labels: input of predictions, not of training."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from axml_ray.corpus.readers.line_blocks import Damage, decode_line, line_ranges, read_lines
from axml_ray.corpus.readers.source_files import SourceFile
from axml_ray.corpus.records.records import Document, Fields, Rejection, storable


@dataclass(frozen=True, slots=True)
class PlainText:
    """Reads a file, or a byte range of it, with one text per line; blank lines are skipped.

    A document's id is `<file name>:<line>`.
    """

    path: SourceFile
    fields: Fields = field(default_factory=lambda: Fields(labelled=False))
    begin: int = 0
    """First byte of the range; lines that begin before it belong to another reader."""
    end: int = -1
    """End of the range; lines that begin here or later belong to another reader. -1 is the end of the file."""
    lines_before: int = 0
    """Number of lines that begin before `begin`."""

    def read(self) -> Iterator[Document | Rejection]:
        """Stream a `Document` or a `Rejection` for each line that is not blank, in order; see `Reader.read`."""
        file = storable(str(self.path))
        end = self.end if self.end >= 0 else None
        for number, line in read_lines(self.path, self.begin, end, self.lines_before):
            try:
                if isinstance(line, Damage):
                    raise ValueError(line.reason)
                text = storable(decode_line(line)).strip()
            except ValueError as error:
                yield Rejection(file=file, line=number, reason=str(error))
                continue
            if text:
                document_id = f"{self.fields.file_name(self.path)}:{number}"
                yield Document(text=text, labels=(), file=file, line=number, id=document_id)

    def split(self, size: int) -> list["PlainText"]:
        """Return readers of about `size` bytes each that together read the same documents."""
        if self.begin or self.end >= 0:
            return [self]
        return [
            replace(self, begin=begin, end=end, lines_before=lines)
            for begin, end, lines in line_ranges(self.path, size)
        ]
