"""Reads texts that are one line each: plain text for predictions, and the Extreme Classification Repository's pairs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path

from axml_ray.corpus.readers.line_blocks import Damage, LineRange, decode_line, read_lines
from axml_ray.corpus.readers.source_files import SourceFile, is_url, without_compression
from axml_ray.corpus.records.records import Document, Fields, Rejection, file_name, read_document, storable

TEXT_SUFFIXES = ("_raw_texts.txt", "_texts.txt")


@dataclass(frozen=True, slots=True)
class PlainText(LineRange):
    """Reads a file, or a byte range of it, with one text per line and without labels; blank lines are skipped.

    A document's id is `<file name>:<line>`.
    """

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


@dataclass(frozen=True, slots=True)
class TextPairs:
    """Reads a pair of files such as `train_raw_texts.txt` and `train_labels.txt`.

    Line i of the first file is a text, line i of the second its labels, separated by blanks. Both lines may be empty.
    """

    path: SourceFile
    labels_path: SourceFile
    fields: Fields = field(default_factory=Fields)

    def read(self) -> Iterator[Document | Rejection]:
        """Stream the documents; a line that only one of the files has is a rejection."""
        fields = Fields(labelled=self.fields.labelled, file=self.fields.file)
        texts = (line for _, line in read_lines(self.path))
        labels_of_texts = (line for _, line in read_lines(self.labels_path)) if fields.labelled else iter(())

        def record(text: bytes | Damage | None, labels: bytes | Damage | None) -> Mapping[str, object]:
            for line, path in ((text, self.path), (labels, self.labels_path)):
                if isinstance(line, Damage):
                    raise ValueError(line.reason)
                if line is None:
                    raise ValueError(f"{file_name(path)} has no such line")
            assert isinstance(text, bytes) and isinstance(labels, bytes)
            return {"text": decode_line(text).rstrip("\r"), "labels": decode_line(labels).split()}

        for number, (text, labels) in enumerate(zip_longest(texts, labels_of_texts), start=1):
            parse = partial(record, text, labels if fields.labelled else b"")
            yield read_document(fields, self.path, number, parse)


def labels_file_of(path: SourceFile) -> SourceFile:
    """Return the label file that belongs to a text file; a ValueError if its name has none of the `TEXT_SUFFIXES`."""
    plain, mark, query = str(path).partition("?") if is_url(path) else (str(path), "", "")
    compression = plain[len(without_compression(plain)) :]
    for suffix in TEXT_SUFFIXES:
        if plain.endswith(suffix + compression):
            labels = f"{plain.removesuffix(suffix + compression)}_labels.txt{compression}{mark}{query}"
            return Path(labels) if isinstance(path, Path) else labels
    raise ValueError(f"{path}: expected a name that ends in {' or '.join(TEXT_SUFFIXES)}, compressed or not")
