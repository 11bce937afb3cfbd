"""Maps labels to ids and holds their readable names and training frequencies.

Ids are ranked by training frequency, then by label; in a corpus that continues another one, the labels of that come
first, with their old ids. The labels `[0, trained)` have training documents; trees and networks are built over them.
The others cannot be predicted, but they are true labels, and metrics count them as missed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from axml_ray.core.strings import Strings


@dataclass(frozen=True)
class LabelIndex:
    """The labels of a corpus, by id.

    Attributes:
        labels: the label as written in the corpus.
        names: readable name; the label itself if it has none.
        counts: int64 [L], number of training documents of each label; no zero is before a positive number.
    """

    labels: Sequence[str]
    names: Sequence[str]
    counts: np.ndarray

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

    def save(self, path: Path) -> None:
        """Write `labels.parquet` with the columns id, label, name and count."""
        write_labels(path, pa.array(self.labels, pa.string()), pa.array(self.names, pa.string()), self.counts)

    @classmethod
    def load(cls, path: Path) -> "LabelIndex":
        """Load an index that `save` wrote."""
        # Of pyarrow, `read_table` and the conversion of chunked arrays import pandas, which takes 0.2 s.
        with pq.ParquetFile(path) as file:
            table = file.read(columns=["label", "name", "count"], use_threads=False)
        labels, counts = Strings(table["label"]), np.from_dlpack(table["count"].combine_chunks()).copy()
        index = cls(labels, labels if table["name"].equals(table["label"]) else Strings(table["name"]), counts)
        del table
        pa.default_memory_pool().release_unused()  # what decoding took, several times the size of the columns
        return index


def write_labels(path: Path, labels: pa.Array, names: pa.Array, counts: np.ndarray) -> None:
    """Write `labels.parquet` from ranked labels and their names (string [L]), and counts, without Python objects."""
    columns = {
        "id": pa.array(np.arange(len(labels), dtype=np.int32)),
        "label": labels,
        "name": names,
        "count": pa.array(counts, pa.int64()),
    }
    pq.write_table(pa.table(columns), path)
