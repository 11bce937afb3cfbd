"""The Extreme Classification Repository's files of texts and labels: one document a line, in two files side by side."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from axml_ray.corpus.places import Damage, Place, is_url, line_blocks
from axml_ray.corpus.records import Document, Fields, Rejection, name_of, storable

TEXT_SUFFIXES = ("_raw_texts.txt", "_texts.txt")


@dataclass(frozen=True, slots=True)
class TextPairs:
    """`train_raw_texts.txt` and `train_labels.txt`: line i of one is the text, of the other its labels with blanks.

    A line of text may be empty, a line without labels is a document without labels.
    """

    path: Place
    labels_path: Place
    fields: Fields = field(default_factory=Fields)

    def read(self) -> Iterator[Document | Rejection]:
        """Streams the documents; lines that only one of the files has are rejections."""
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
                    missing = name_of(self.path if text is None else self.labels_path)
                    raise ValueError(f"{missing} has no such line")
                record = {"text": _decoded(text), "labels": _decoded(labels).split()}
                content, names, _ = Fields(labelled=self.fields.labelled).read(record)
            except ValueError as error:
                yield Rejection(file=file, line=number, reason=str(error))
                continue
            yield Document(text=content, labels=names, file=file, line=number, id=f"{name_of(self.path)}:{number}")


def labels_beside(path: Place) -> Place:
    """The file of labels that belongs to a file of texts.

    Raises:
        ValueError: the name of `path` says no such thing.
    """
    for suffix in TEXT_SUFFIXES:
        if name_of(path).endswith(suffix):
            whole, mark, query = str(path).partition("?") if is_url(path) else (str(path), "", "")
            beside = f"{whole.removesuffix(suffix)}_labels.txt{mark}{query}"
            return Path(beside) if isinstance(path, Path) else beside
    raise ValueError(f"{path}: expected a name that ends in {' or '.join(TEXT_SUFFIXES)}")


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1}") from None


def _lines(place: Place) -> Iterator[bytes | Damage]:
    for content in line_blocks(place, 1 << 20):
        if isinstance(content, Damage):
            yield content
        else:
            lines = content.split(b"\n")
            if not lines[-1]:
                lines.pop()
            yield from lines
