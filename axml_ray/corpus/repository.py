"""Reads text and label files of the Extreme Classification Repository: two files with one document per line."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from axml_ray.corpus.line_blocks import Damage, read_line_blocks
from axml_ray.corpus.records import Document, Fields, Rejection, file_name, storable
from axml_ray.corpus.source_files import SourceFile, is_url

TEXT_SUFFIXES = ("_raw_texts.txt", "_texts.txt")


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
        file = storable(str(self.path))
        pairs = zip_longest(_lines(self.path), _lines(self.labels_path) if self.fields.labelled else iter(()))
        for number, (text, labels) in enumerate(pairs, start=1):
            if not self.fields.labelled:
                labels = b""
            try:
                if isinstance(text, Damage) or isinstance(labels, Damage):
                    broken = text if isinstance(text, Damage) else labels
                    assert isinstance(broken, Damage)
                    raise ValueError(broken.reason)
                if text is None or labels is None:
                    missing = file_name(self.path if text is None else self.labels_path)
                    raise ValueError(f"{missing} has no such line")
                record = {"text": _decoded(text), "labels": _decoded(labels).split()}
                content, names, _ = Fields(labelled=self.fields.labelled).read(record)
            except ValueError as error:
                yield Rejection(file=file, line=number, reason=str(error))
                continue
            yield Document(
                text=content, labels=names, file=file, line=number, id=f"{self.fields.file_name(self.path)}:{number}"
            )


def labels_file_of(path: SourceFile) -> SourceFile:
    """Return the label file that belongs to a text file.

    Raises:
        ValueError: the name of `path` does not have one of the suffixes `TEXT_SUFFIXES`.
    """
    for suffix in TEXT_SUFFIXES:
        if file_name(path).endswith(suffix):
            plain, mark, query = str(path).partition("?") if is_url(path) else (str(path), "", "")
            labels = f"{plain.removesuffix(suffix)}_labels.txt{mark}{query}"
            return Path(labels) if isinstance(path, Path) else labels
    raise ValueError(f"{path}: expected a name that ends in {' or '.join(TEXT_SUFFIXES)}")


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1}") from None


def _lines(file: SourceFile) -> Iterator[bytes | Damage]:
    for content in read_line_blocks(file, 1 << 20):
        if isinstance(content, Damage):
            yield content
        else:
            lines = content.split(b"\n")
            if not lines[-1]:
                lines.pop()
            yield from lines
