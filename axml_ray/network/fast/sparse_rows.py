"""Reading a few rows of a large table, with a gradient for these rows only.

A step reads some thousand words of the vocabulary, and below the first level some thousand rows of the label table.
Each distinct row is read once, however often it occurs in the batch, and the gradient is a sparse tensor of distinct
rows, which the optimizer (`LazyAdam`) applies without looking at the rest of the table.

Legend: U distinct rows, R positions in the batch, X values of a row.
"""

from typing import Any

import torch
from torch import Tensor

from axml_ray.network.fast.torch_internals import embedding_backward


def sparse_gradient(rows_U: Tensor, values_UX: Tensor, shape: torch.Size) -> Tensor:
    """Return the gradient of a table of which only the distinct rows `rows_U` were read.

    Args:
        rows_U: int64, ascending and distinct; it is not checked.
        values_UX: gradients of these rows. They are taken over without a copy.
        shape: shape of the table.
    """
    return torch.sparse_coo_tensor(rows_U[None], values_UX, shape, is_coalesced=True, check_invariants=False)


def gather_rows(table: Tensor, rows_U: Tensor, row_index_R: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `table[rows_U][row_index_R]` in `dtype`, [R, X]; the table's gradient is sparse.

    Args:
        table: [rows, X].
        rows_U: int64, distinct rows of the table.
        row_index_R: int64, for each position of the batch which of `rows_U` is read.
        dtype: number format of the result. Gradients are summed in the table's own format.
    """
    gathered: Tensor = _GatherRows.apply(table, rows_U, row_index_R, dtype)
    return gathered


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, table: Tensor, rows_U: Tensor, row_index_R: Tensor, dtype: torch.dtype) -> Tensor:
        context.save_for_backward(rows_U, row_index_R)
        context.shape, context.dtype = table.shape, table.dtype
        return table.index_select(0, rows_U).to(dtype).index_select(0, row_index_R)

    @staticmethod
    def backward(context: Any, gradient_RX: Tensor) -> tuple[Tensor, None, None, None]:
        rows_U, row_index_R = context.saved_tensors
        # In the table's format, since in bfloat16 the sum over a frequent word would stop growing at 256 equal terms.
        values_UX = embedding_backward(gradient_RX.to(context.dtype), row_index_R, len(rows_U))
        return sparse_gradient(rows_U, values_UX, context.shape), None, None, None
