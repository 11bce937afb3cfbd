"""Tables of rows of which a step touches few: word vectors, and the attention vectors of a level.

- A step reads each row that it needs once, whatever number of places it stands at, and its gradient holds just those
  rows: a sparse tensor whose rows are distinct, which the optimizer takes as it is.
- A table may be one shard of a level's: of W workers, worker r holds the rows r, r + W, r + 2W, ...

Legend: U distinct rows, R places, X values of a row.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Rows drawn from one generator; so a shard draws what it would hold of the whole table.
_DRAWN = 1 << 12


@dataclass(frozen=True)
class Shard:
    """A worker's part of the rows of a table."""

    rank: int = 0
    count: int = 1

    def ids(self, rows: int) -> Tensor:
        """int64: which of a table's `rows` rows the shard holds, in the order in which it holds them."""
        return torch.arange(min(self.rank, rows), rows, self.count)


WHOLE = Shard()
"""All rows of a table."""


def uniform_rows(rows: int, width: int, bound: float, shard: Shard) -> Tensor:
    """A shard's rows of a table drawn uniformly from (-bound, bound), float32 [its rows, width].

    The same rows for every number of shards, if all workers have seeded PyTorch alike.
    """
    if torch.get_default_device().type == "meta":  # a network that is about to be filled
        return torch.empty(len(shard.ids(rows)), width)
    seed = int(torch.randint(2**62, ()))
    table = torch.empty(len(shard.ids(rows)), width)
    filled = 0
    for start in range(0, rows, _DRAWN):
        generator = torch.Generator().manual_seed(seed + start)
        drawn = torch.empty(min(_DRAWN, rows - start), width).uniform_(-bound, bound, generator=generator)
        mine = drawn[(shard.rank - start) % shard.count :: shard.count]
        table[filled : filled + len(mine)] = mine
        filled += len(mine)
    return table


def rows_gradient(rows_U: Tensor, values_UX: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of a table of which the distinct rows `rows_U` were read."""
    return torch.sparse_coo_tensor(rows_U[None], values_UX, shape, is_coalesced=True, check_invariants=False)


def pick(table: Tensor, rows_U: Tensor, places_R: Tensor, dtype: torch.dtype) -> Tensor:
    """`table[rows_U][places_R]` in `dtype`, [R, X]; differentiable, with a sparse gradient.

    Args:
        table: [rows, X].
        rows_U: int64, distinct.
        places_R: int64, which of `rows_U` stands at each place.
        dtype: of the result.
    """
    picked: Tensor = _Pick.apply(table, rows_U, places_R, dtype)
    return picked


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, table: Tensor, rows_U: Tensor, places_R: Tensor, dtype: torch.dtype) -> Tensor:
        context.save_for_backward(rows_U, places_R)
        context.shape, context.dtype = table.shape, table.dtype
        return table.index_select(0, rows_U).to(dtype).index_select(0, places_R)

    @staticmethod
    def backward(context: Any, gradient_RX: Tensor) -> tuple[Tensor, None, None, None]:
        rows_U, places_R = context.saved_tensors
        values = torch.ops.aten.embedding_dense_backward(
            gradient_RX.to(context.dtype), places_R, len(rows_U), -1, False
        )
        return rows_gradient(rows_U, values, context.shape), None, None, None
