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
        fields = Fields(labelled=False, file=self.fields.file)
        for number, line in self.lines():
            record = read_document(fields, self.path, number, partial(self._record, line))
            if isinstance(record, Rejection) or record.text:
                yield record

    @staticmethod
    def _record(line: bytes | Damage) -> dict[str, str]:
        return {"text": storable(decode_line(line)).strip()}


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
            decoded = []
            for line, path in ((text, self.path), (labels, self.labels_path)):
                if line is None:
                    raise ValueError(f"{file_name(path)} has no such line")
                decoded.append(decode_line(line))
            return {"text": decoded[0].rstrip("\r"), "labels": decoded[1].split()}

        for number, (text, labels) in enumerate(zip_longest(texts, labels_of_texts), start=1):
            parse = partial(record, text, labels if fields.labelled else b"")
            yield read_document(fields, self.path, number, parse)


def labels_file_of(path: SourceFile) -> SourceFile:
    """Return the label file that belongs to a text file; a ValueError if its name has none of the `TEXT_SUFFIXES`."""
    plain, separator, query = str(path).partition("?") if is_url(path) else (str(path), "", "")
    compression = plain[len(without_compression(plain)) :]
    for suffix in TEXT_SUFFIXES:
        if plain.endswith(suffix + compression):
            labels = f"{plain.removesuffix(suffix + compression)}_labels.txt{compression}{separator}{query}"
            return Path(labels) if isinstance(path, Path) else labels
    raise ValueError(f"{path}: expected a name that ends in {' or '.join(TEXT_SUFFIXES)}, compressed or not")
