"""A sequence of strings in one Arrow array: bytes and offsets, where Python objects take some fifty bytes more each."""

from collections.abc import Iterator, Sequence
from typing import overload

import pyarrow as pa

BLOCK_STRINGS = 1 << 16
"""Number of strings that are Python objects at a time while all are iterated over."""


class Strings(Sequence[str]):
    """An immutable sequence of strings, equal to any other with the same strings in the same order, such as a tuple.

    `pyarrow.array(strings)` takes no copy.
    """

    def __init__(self, values: pa.Array | pa.ChunkedArray):
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        self._array = values.cast(pa.large_string())

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> "Strings": ...

    def __getitem__(self, index: "int | slice") -> "str | Strings":
        # Ids may be NumPy's integers.
        return Strings(self._array[index]) if isinstance(index, slice) else self._array[int(index)].as_py()

    def __iter__(self) -> Iterator[str]:
        for begin in range(0, len(self), BLOCK_STRINGS):
            yield from self._array.slice(begin, BLOCK_STRINGS).to_pylist()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Strings):
            return bool(self._array.equals(other._array))
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]  # as of other sequences that are compared by content

    def __repr__(self) -> str:
        return f"Strings({len(self):,}: {', '.join(map(repr, self[:3]))}{', …' if len(self) > 3 else ''})"

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:
        return self._array if type is None else self._array.cast(type)
