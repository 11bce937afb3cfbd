"""The encoder of `paper.attention_xml`, faster: sparse reads in the format of products, both LSTMs at the same time.

Shapes: B documents, T tokens, E embedding dimension, N̂ hidden units, D = 2N̂, R positions of a batch, X values of each.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from axml_ray.network.backends.backend import backend_for
from axml_ray.network.level_network import read_rows
from axml_ray.network.paper.attention_xml import Encoder, reversed_positions


class FastEncoder(Encoder):
    """`Encoder` with the same parameters and results, computed faster."""

    def embed(self, tokens_BT: Tensor, unique_ids: tuple[Tensor, Tensor] | None) -> Tensor:
        """Return the vectors of the words, [B, T, E], in the number format of matrix products."""
        return embed_tokens(self.embedding.weight, tokens_BT, unique_ids)

    def bilstm(self, words_BTE: Tensor, lengths_B: Tensor) -> Tensor:
        """Return the forward and the backward state of each word, concatenated, [B, T, D]."""
        reversed_BT = reversed_positions(lengths_B, words_BTE.shape[1])
        ahead_BTN, back_BTN = backend_for(words_BTE.device).both_directions(
            (self.forward_lstm, self.backward_lstm),
            (words_BTE, _reverse(words_BTE, reversed_BT)),
            self.initial_states(len(words_BTE)),
        )
        return torch.cat([ahead_BTN, _reverse(back_BTN, reversed_BT)], dim=-1)


def embed_tokens(table: Tensor, tokens_BT: Tensor, unique_ids: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return the vectors of words, [B, T, E], in the number format of matrix products; the gradient is sparse.

    Args:
        table: [words, E], float32, or bfloat16 in a network that only predicts.
        tokens_BT: word ids.
        unique_ids: as in `LevelNetwork.encode`; computed here if None, which takes time on the device.
    """
    device_type = backend_for(table.device).device_type
    # A bfloat16 table without autocast is only a way of storing it: products are then computed in float32.
    dtype = torch.promote_types(table.dtype, torch.float32)
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
    if not (torch.is_grad_enabled() and table.requires_grad):
        return functional.embedding(tokens_BT, table).to(dtype)
    rows_U, row_index_R = unique_ids or tokens_BT.flatten().unique(return_inverse=True)
    return read_rows(table, rows_U, row_index_R).to(dtype).view(*tokens_BT.shape, -1)


class _PermuteRows(torch.autograd.Function):
    """Rows in the order of a permutation that is its own inverse, so that the gradient takes the same order.

    Autograd does not know that no row is read twice, and would add gradients up row by row instead.
    """

    @staticmethod
    def forward(context: Any, rows_RX: Tensor, order_R: Tensor) -> Tensor:
        context.save_for_backward(order_R)
        return rows_RX.index_select(0, order_R)

    @staticmethod
    def backward(context: Any, gradient_RX: Tensor) -> tuple[Tensor, None]:
        return gradient_RX.index_select(0, context.saved_tensors[0]), None


def _reverse(values_BTX: Tensor, reversed_BT: Tensor) -> Tensor:
    """Reverse each text's values, given its `reversed_positions`."""
    # Rows of the flattened batch: text b begins at row b · T.
    starts_B1 = torch.arange(len(reversed_BT), device=reversed_BT.device)[:, None] * reversed_BT.shape[1]
    rows: Tensor = _PermuteRows.apply(values_BTX.flatten(0, 1), (starts_B1 + reversed_BT).flatten())
    return rows.view_as(values_BTX)
