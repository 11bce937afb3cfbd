"""Reads text and label files of the Extreme Classification Repository: two files with one document per line."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from axml_ray.corpus.readers.line_blocks import Damage, decode_line, read_lines
from axml_ray.corpus.readers.source_files import SourceFile, is_url, without_compression
from axml_ray.corpus.records.records import Document, Fields, Rejection, file_name, storable

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
        texts = (line for _, line in read_lines(self.path))
        labels_of_texts = (line for _, line in read_lines(self.labels_path)) if self.fields.labelled else iter(())
        for number, (text, labels) in enumerate(zip_longest(texts, labels_of_texts), start=1):
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
                record = {"text": decode_line(text).rstrip("\r"), "labels": decode_line(labels).split()}
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
    plain, mark, query = str(path).partition("?") if is_url(path) else (str(path), "", "")
    compression = plain[len(without_compression(plain)) :]
    for suffix in TEXT_SUFFIXES:
        if plain.endswith(suffix + compression):
            labels = f"{plain.removesuffix(suffix + compression)}_labels.txt{compression}{mark}{query}"
            return Path(labels) if isinstance(path, Path) else labels
    raise ValueError(f"{path}: expected a name that ends in {' or '.join(TEXT_SUFFIXES)}, compressed or not")
