"""Maps labels to ids and holds their readable names and training frequencies.

Ids are ranked by training frequency, then by label; in a corpus that continues another one, the labels of that come
first, with their old ids. The labels `[0, trained)` have training documents; trees and
networks are built over them. The others occur only in validation or test documents. They cannot be predicted, but they
are true labels, and metrics count them as missed.
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
    """The labels of a corpus, by id.

    Attributes:
        labels: the label as written in the corpus.
        names: readable name; the label itself if it has none.
        counts: int64 [L], number of training documents of each label; no zero is before a positive number.
    """

    labels: tuple[str, ...]
    names: tuple[str, ...]
    counts: np.ndarray

    @classmethod
    def build(
        cls,
        train_counts: Mapping[str, int],
        unseen: Sequence[str] = (),
        names: Mapping[str, str] | None = None,
    ) -> "LabelIndex":
        """Build an index.

        Args:
            train_counts: number of training documents of each label.
            unseen: labels of validation and test documents, of which some may be in `train_counts`.
            names: readable names.
        """
        counts = {**dict.fromkeys(unseen, 0), **train_counts}
        labels = sorted(counts, key=lambda label: (-counts[label], label))
        readable_names = tuple((names or {}).get(label, label) for label in labels)
        return cls(tuple(labels), readable_names, np.array([counts[label] for label in labels], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def trained(self) -> int:
        """Number of labels with at least one training document; their ids come first."""
        return int(np.count_nonzero(self.counts))

    def by_frequency(self, labels: Sequence[int] | np.ndarray) -> list[int]:
        """Return label ids by decreasing number of training documents, then by id."""
        ids = np.sort(np.asarray(labels, dtype=np.int64))
        ranked: list[int] = ids[np.argsort(-self.counts[ids], kind="stable")].tolist()
        return ranked

    def encode(self, rows: Sequence[Sequence[str]]) -> Ragged:
        """Return the sorted label ids of each document, int32; labels that are not in the index are dropped."""
        ids = {label: i for i, label in enumerate(self.labels)}
        return Ragged.from_rows(sorted({ids[label] for label in row if label in ids}) for row in rows)

    def save(self, path: Path) -> None:
        """Write `labels.parquet` with the columns id, label, name and count."""
        _write(path, pa.array(self.labels, pa.string()), pa.array(self.names, pa.string()), self.counts)

    @classmethod
    def load(cls, path: Path) -> "LabelIndex":
        """Load an index that `save` wrote."""
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
    """Write `labels.parquet` from ranked columns, without a Python object per label.

    Args:
        path: path of the file.
        labels: string [L].
        counts: int64 [L], number of training documents.
        names: file of readable names, see `read_names`.
    """
    readable_names = labels
    if names is not None:
        name_of_label = read_names(names)
        keys, values = pa.array(name_of_label.keys(), pa.string()), pa.array(name_of_label.values(), pa.string())
        positions = pc.index_in(labels, keys)
        readable_names = pc.if_else(pc.is_null(positions), labels, values.take(positions))
    _write(path, labels, readable_names, counts)


def read_names(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read readable names from a file, plain or gzip.

    The lines are `label<TAB>name`. In a file without any tab, line i is the name of label `i`, counted from 0; the
    lines may be JSON objects with a `title`, as in the Extreme Classification Repository's `lbl.json`.

    Raises:
        SettingsError: the file is missing, holds no names, or only some of its lines have a tab.
    """
    names = {}
    try:
        content = Path(path).read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line_number = 1 + error.object.count(b"\n", 0, error.start)
        raise SettingsError(f"corpus.label_names: {path}:{line_number}: not UTF-8 ({error.reason})") from None
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
    """Return the names of labels `0`, `1`, … from lines of names or of JSON objects."""
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
