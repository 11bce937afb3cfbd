"""Ragged rows of int32: one flat array and the offsets between its rows.

Texts have as many tokens, and documents as many labels, as they have; this is how both travel through the house,
in the layout that Arrow gives and PyTorch takes without a copy.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows `values[offsets[i]:offsets[i + 1]]`.

    Attributes:
        values: int32 [nnz].
        offsets: int64 [rows + 1], from 0 to nnz.
    """

    values: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """int64 [rows]: values in each row."""
        return np.diff(self.offsets)

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """int64 [n]: values in each of the rows `rows` (int [n]), without a look at the others."""
        return self.offsets[1:][rows] - self.offsets[:-1][rows]

    def take(self, rows: np.ndarray) -> "Ragged":
        """The rows at `rows` (int [n]), in that order, copied."""
        lengths = self.lengths_of(rows)
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        positions = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths)
        return Ragged(self.values[positions], offsets)

    def padded(self, fill: int = 0, width: int | None = None) -> np.ndarray:
        """int32 [rows, width]: rows filled up on the right (and cut) to `width`, by default the longest."""
        lengths = self.lengths
        width = int(lengths.max(initial=0)) if width is None else width
        table = np.full((len(self), width), fill, dtype=np.int32)
        inside = np.arange(width) < lengths[:, None]
        kept = self if lengths.max(initial=0) <= width else self.cut(width)
        table[inside] = kept.values
        return table

    def cut(self, width: int) -> "Ragged":
        """Rows of at most `width` first values."""
        lengths = np.minimum(self.lengths, width)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        positions = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1] - offsets[:-1], lengths)
        return Ragged(self.values[positions], offsets)

    def to_arrow(self) -> pa.ListArray:
        """A `list<int32>` column."""
        return pa.ListArray.from_arrays(pa.array(self.offsets.astype(np.int32)), pa.array(self.values, pa.int32()))

    @classmethod
    def from_arrow(cls, column: pa.ChunkedArray | pa.Array) -> "Ragged":
        """Rows of a list column; a null is an empty row."""
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return cls.concatenate(cls._from_chunk(chunk) for chunk in chunks)

    @classmethod
    def _from_chunk(cls, chunk: Any) -> "Ragged":
        lengths = chunk.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        values = chunk.flatten().to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
        return cls(values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int] | np.ndarray]) -> "Ragged":
        """Rows of Python or numpy sequences."""
        arrays = [np.asarray(row, dtype=np.int32) for row in rows]
        offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        return cls(np.concatenate(arrays) if arrays else np.empty(0, np.int32), offsets)

    @classmethod
    def concatenate(cls, parts: Iterable["Ragged"]) -> "Ragged":
        """All rows of `parts`, in order."""
        whole = list(parts)
        values = np.concatenate([part.values for part in whole] or [np.empty(0, np.int32)])
        lengths = np.concatenate([part.lengths for part in whole] or [np.empty(0, np.int64)])
        return cls(values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def is_ragged(rows: Ragged) -> bool:
    """Whether these are rows of numbers from 0 on."""
    values, offsets = rows.values, rows.offsets
    if (values.dtype, offsets.dtype, values.ndim, offsets.ndim) != (np.int32, np.int64, 1, 1) or not len(offsets):
        return False
    ends = not offsets[0] and offsets[-1] == len(values) and not (rows.lengths < 0).any()
    return bool(ends and values.min(initial=0) >= 0)
