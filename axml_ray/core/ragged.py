"""Ragged rows of int32: one flat array and the offsets between its rows.

The tokens of texts and the labels of documents are passed through the program in this form, which is the layout that
Arrow gives and PyTorch takes without a copy.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

BLOCK_VALUES = 1 << 18
"""About the number of values that are copied together."""


@dataclass(frozen=True)
class Ragged:
    """A batch of rows of unequal lengths; row i is `values[offsets[i]:offsets[i + 1]]`.

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
        """Return the number of values in each row, int64 [rows]."""
        return np.diff(self.offsets)

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of values in each of the rows `rows` (int [n]), int64 [n], without reading the others."""
        return self.offsets[1:][rows] - self.offsets[:-1][rows]

    def take(self, rows: np.ndarray, width: int | None = None) -> "Ragged":
        """Return a copy of the rows `rows` (int [n]), in that order, or of their first `width` values."""
        lengths = self.lengths_of(rows)
        return self._gather(self.offsets[:-1][rows], lengths if width is None else np.minimum(lengths, width))

    def padded(self, fill: int = 0, width: int | None = None) -> np.ndarray:
        """Return int32 [rows, width]: rows padded on the right, or cut, to `width`, by default the longest row."""
        lengths = self.lengths
        width = int(lengths.max(initial=0)) if width is None else width
        table = np.full((len(self), width), fill, dtype=np.int32)
        inside = np.arange(width) < lengths[:, None]
        table[inside] = self.cut(width).values
        return table

    def cut(self, width: int) -> "Ragged":
        """Return the rows cut to their first `width` values; the rows themselves, not a copy, if none is longer."""
        lengths = self.lengths
        if lengths.max(initial=0) <= width:
            return self
        return self._gather(self.offsets[:-1], np.minimum(lengths, width))

    def _gather(self, starts: np.ndarray, lengths: np.ndarray) -> "Ragged":
        """Return a copy of the rows with `lengths` values from the positions `starts` on, both int64 [n]."""
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        values = np.empty(offsets[-1], self.values.dtype)
        # In blocks: the positions of all values would be several times as large as the tokens of a corpus.
        ends = np.searchsorted(offsets, np.arange(BLOCK_VALUES, offsets[-1], BLOCK_VALUES))
        for first, last in pairwise(np.unique([0, *ends, len(lengths)]).tolist()):
            place = np.repeat(starts[first:last] - offsets[first:last], lengths[first:last])
            place += np.arange(offsets[first], offsets[last])
            values[offsets[first] : offsets[last]] = self.values[place]
        return Ragged(values, offsets)

    def to_arrow(self) -> pa.ListArray:
        """Return the rows as a `list<int32>` column; a pyarrow.ArrowInvalid with 2³¹ values or more."""
        return pa.ListArray.from_arrays(pa.array(self.offsets, pa.int32()), pa.array(self.values, pa.int32()))

    @classmethod
    def from_arrow(cls, column: pa.ChunkedArray | pa.Array) -> "Ragged":
        """Return the rows of a list column; a null becomes an empty row."""
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return cls.concatenate(cls._from_chunk(chunk) for chunk in chunks)

    @classmethod
    def _from_chunk(cls, chunk: Any) -> "Ragged":
        lengths = chunk.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        values = chunk.flatten().to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
        return cls(values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int] | np.ndarray]) -> "Ragged":
        """Return rows of Python or numpy sequences."""
        arrays = [np.asarray(row, dtype=np.int32) for row in rows]
        offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        return cls(np.concatenate(arrays) if arrays else np.empty(0, np.int32), offsets)

    @classmethod
    def concatenate(cls, parts: Iterable["Ragged"]) -> "Ragged":
        """Return all rows of `parts`, in order."""
        batches = list(parts)
        values = np.concatenate([part.values for part in batches] or [np.empty(0, np.int32)])
        lengths = np.concatenate([part.lengths for part in batches] or [np.empty(0, np.int64)])
        return cls(values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


class RaggedView(Ragged):
    """Rows of a large batch, or their beginnings, which are copied only as they are taken.

    Attributes:
        source: the batch, which may be memory-mapped.
        rows: the rows of the batch, int64 [rows].
        width: number of first values of a row that are read; None for all.
    """

    def __init__(self, source: Ragged, rows: np.ndarray, width: int | None = None):
        self.source, self.rows, self.width = source, rows, width

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> np.ndarray:
        return self.take(np.array([row])).values

    @property
    def values(self) -> np.ndarray:
        """Return a copy of all values, int32 [nnz]."""
        return self.take(np.arange(len(self))).values

    @property
    def offsets(self) -> np.ndarray:
        """Return the offsets between the rows in `values`, int64 [rows + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def lengths(self) -> np.ndarray:
        """Return the number of values in each row, int64 [rows]."""
        return self.lengths_of(np.arange(len(self)))

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of values in each of the rows `rows` (int [n]), int64 [n]."""
        lengths = self.source.lengths_of(self.rows[rows])
        return lengths if self.width is None else np.minimum(lengths, self.width)

    def cut(self, width: int) -> Ragged:
        """Return a copy of the rows cut to their first `width` values."""
        return self.take(np.arange(len(self)), width)

    def take(self, rows: np.ndarray, width: int | None = None) -> Ragged:
        """Return a copy of the rows `rows` (int [n]), in that order, or of their first `width` values."""
        widths = [each for each in (self.width, width) if each is not None]
        return self.source.take(self.rows[rows], min(widths, default=None))


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the distinct values of an array, ascending, as `np.unique` does, which takes twenty times as long."""
    ordered = np.sort(values, axis=None)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]


def is_ragged(rows: Ragged) -> bool:
    """Return whether values and offsets have the right dtypes and shapes and no value is negative."""
    values, offsets = rows.values, rows.offsets
    if (values.dtype, offsets.dtype, values.ndim, offsets.ndim) != (np.int32, np.int64, 1, 1) or not len(offsets):
        return False
    ends = not offsets[0] and offsets[-1] == len(values) and not (rows.lengths < 0).any()
    return bool(ends and values.min(initial=0) >= 0)
