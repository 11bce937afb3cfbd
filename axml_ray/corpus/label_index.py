"""Label names to ids, with how often each was given in training.

Ids are ranked by training frequency, equals by name: labels `[0, trained)` have training documents and are what
trees and networks are built over; the others occur in validation or test only. They can't be predicted, but they
are true labels, and metrics count them as misses.
"""

import gzip
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from axml_ray.corpus.records import storable
from axml_ray.ragged import Ragged
from axml_ray.settings import SettingsError


@dataclass(frozen=True)
class LabelIndex:
    """Labels by id.

    Attributes:
        labels: the label as the corpus writes it, by id.
        names: what a person reads; the label itself where no name is given.
        counts: int64 [L], training documents of each label, falling.
    """

    labels: tuple[str, ...]
    names: tuple[str, ...]
    counts: np.ndarray

    @classmethod
    def build(
        cls,
        train_counts: Mapping[str, int],
        others: Sequence[str] = (),
        names: Mapping[str, str] | None = None,
    ) -> "LabelIndex":
        """An index over the labels of train and those that occur in `others` only."""
        counts = {**dict.fromkeys(others, 0), **train_counts}
        labels = sorted(counts, key=lambda label: (-counts[label], label))
        shown = tuple((names or {}).get(label, label) for label in labels)
        return cls(tuple(labels), shown, np.array([counts[label] for label in labels], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def trained(self) -> int:
        """Labels with at least one training document; their ids come first."""
        return int(np.count_nonzero(self.counts))

    def encode(self, rows: Sequence[Sequence[str]]) -> Ragged:
        """Sorted label ids of each document, int32; labels that the index doesn't know are left out."""
        ids = {label: i for i, label in enumerate(self.labels)}
        return Ragged.from_rows(sorted({ids[label] for label in row if label in ids}) for row in rows)

    def save(self, path: Path) -> None:
        """Write `labels.parquet`: id, label, name, count."""
        _write(path, pa.array(self.labels, pa.string()), pa.array(self.names, pa.string()), self.counts)

    @classmethod
    def load(cls, path: Path) -> "LabelIndex":
        """The index that `save` wrote."""
        table = pq.read_table(path)
        return cls(
            tuple(table["label"].to_pylist()),
            tuple(table["name"].to_pylist()),
            table["count"].to_numpy().copy(),
        )


def _write(path: Path, labels: pa.Array, names: pa.Array, counts: np.ndarray) -> None:
    columns = {
        "id": pa.array(np.arange(len(labels), dtype=np.int32)),
        "label": labels,
        "name": names,
        "count": pa.array(counts, pa.int64()),
    }
    pq.write_table(pa.table(columns), path)


def write_labels(path: Path, labels: pa.Array, counts: np.ndarray, names: Path | None) -> None:
    """Write `labels.parquet` of columns that are ranked already, without a Python object a label.

    Args:
        path: of the file.
        labels: string [L].
        counts: int64 [L].
        names: file of readable names, see `read_names`.
    """
    shown = labels
    if names is not None:
        known = read_names(names)
        given = pa.array(known.keys(), pa.string()), pa.array(known.values(), pa.string())
        found = pc.index_in(labels, given[0])
        shown = pc.if_else(pc.is_null(found), labels, given[1].take(found))
    _write(path, labels, shown, counts)


def read_names(path: str | os.PathLike[str]) -> dict[str, str]:
    """Readable names from lines of `label<TAB>name`.

    A file without any tab names labels by number: its first line is the name of label `0`. So does the repository's
    `lbl.json`, whose lines are JSON objects with a `title`. Either may be gzip.

    Raises:
        SettingsError: the file is missing, holds no names, or has a line without a tab beside others with one.
    """
    names = {}
    try:
        content = Path(path).read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        at = 1 + error.object.count(b"\n", 0, error.start)
        raise SettingsError(f"corpus.label_names: {path}:{at}: not UTF-8 ({error.reason})") from None
    except (OSError, EOFError, zlib.error) as error:
        raise SettingsError(f"corpus.label_names: {path} cannot be read: {error}") from None
    if "\t" not in "".join(lines) and any(line.strip() for line in lines):
        return _numbered_names(lines, path)
    for number, line in enumerate(lines, 1):
        label, tab, name = line.partition("\t")
        if line.strip() and not tab:
            raise SettingsError(f"corpus.label_names: {path}:{number}: expected label, tab, name; found no tab")
        if tab:
            names[label.strip()] = name.strip() or label.strip()
    if not names:
        raise SettingsError(f"corpus.label_names: {path} holds no labels; expected lines of label, tab, name")
    return names


def _numbered_names(lines: list[str], path: str | os.PathLike[str]) -> dict[str, str]:
    if not lines[-1].strip():
        lines.pop()
    if not lines[0].lstrip().startswith("{"):
        return {str(number): line.strip() or str(number) for number, line in enumerate(lines)}
    names = {}
    for number, line in enumerate(lines):
        try:
            title = json.loads(line)["title"]
        except (ValueError, KeyError, TypeError):
            title = None
        if not isinstance(title, str):
            raise SettingsError(f"corpus.label_names: {path}:{number + 1}: expected an object with a title, a string")
        names[str(number)] = storable(title).strip() or str(number)
    return names
