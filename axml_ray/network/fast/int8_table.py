"""A table stored as int8, which a network that only predicts reads in place.

Prediction gathers few rows of the word and label tables of a large network. They are converted as they are gathered, so
that the table can stay memory-mapped and shared by all processes of a machine.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

aten = torch.ops.aten


class Int8Table(Tensor):
    """A float32 tensor whose values are int8 times the scale of their group; a group is a part of a row.

    Gathered rows, and blocks of rows, are converted alone. Any other operation converts the whole table, and has the
    result that it would have with the float32 tensor.

    Attributes:
        packed: int8 [rows, ...].
        scales: float32 [groups], equally many for each row.
    """

    packed: Tensor
    scales: Tensor
    # PyTorch has no public names for these two; its guide to subclasses with `__torch_dispatch__` uses them.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, packed: Tensor, scales: Tensor) -> "Int8Table":
        """Make a tensor without memory of its own."""
        table: Int8Table = Tensor._make_wrapper_subclass(cls, packed.shape, dtype=scales.dtype, device=packed.device)
        table.packed, table.scales = packed, scales
        return table

    def unpacked(self) -> Tensor:
        """Return the whole table in float32."""
        return _unpacked(self.packed, self.scales)

    def rows(self, select: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Return the values and scales of some rows: [n, ...] and [n, groups of a row]."""
        return select(self.packed), select(self.scales.view(len(self.packed), -1))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[Any, Any] | None = None
    ) -> Any:
        """Compute an operation of PyTorch that has a table among its arguments."""
        table, *rest = args
        if isinstance(table, Int8Table) and not kwargs:
            if func is aten.detach.default:
                return Int8Table(table.packed, table.scales)
            if func is aten.embedding.default:
                index = rest[0]
                rows = _unpacked(*table.rows(lambda values: values.index_select(0, index.flatten())))
                return rows.view(*index.shape, *table.shape[1:])
            if func is aten.index_select.default and rest[0] == 0:
                return _unpacked(*table.rows(lambda values: values.index_select(0, rest[1])))
            if func is aten.slice.Tensor and (not rest or rest[0] == 0):
                with torch.inference_mode(False):  # PyTorch counts the versions of what it takes for a view
                    return _unpacked(*table.rows(lambda values: func(values, *rest)))
        args, kwargs = tree_map_only(Int8Table, Int8Table.unpacked, (args, kwargs or {}))
        return func(*args, **kwargs)


def _unpacked(packed: Tensor, scales: Tensor) -> Tensor:
    """Return int8 values [n, ...] times the scales of their groups, float32."""
    values = packed.to(scales.dtype)
    if values.numel():
        values.view(scales.numel(), -1).mul_(scales.reshape(-1, 1))
    return values
