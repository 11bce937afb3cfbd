"""Word representation and bidirectional LSTM: token ids to hidden states (paper, sections 2.4.1 and 2.4.2).

- The initial state of the LSTMs is learned. The paper does not say what it is.
- Texts are padded on the right. The forward LSTM never sees padding before a word, and the backward LSTM reads each
  text reversed within its own length, so neither needs packed sequences.

`Encoder.embed` and `Encoder.bilstm` are the layers as the paper describes them; `Encoder.forward` computes the same
faster. Tests compare the two.

Shapes: B documents, T tokens, E embedding dimension, N hidden units, D = 2N.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from axml_ray.network.backends.backend import Seeds, backend_for
from axml_ray.network.fast.sparse_rows import gather_rows
from axml_ray.network.paper.dropout import dropout
from axml_ray.settings import NetworkSettings

WORD_LAYER, STATE_LAYER = 0, 1
"""Numbers that tell the masks of the two dropout layers apart."""


class Encoder(nn.Module):
    """The word embedding and the bidirectional LSTM, with dropout after each.

    Args:
        vectors: first values of the embedding, float32 [words, E]; row 0 is padding and is zero.
        hidden: N, units in each direction.
        embedding_dropout: dropout rate after the embedding.
        encoder_dropout: dropout rate after the BiLSTM.
        train_embeddings: if False, `vectors` stay as they are.
    """

    def __init__(
        self,
        vectors: Tensor,
        hidden: int,
        *,
        embedding_dropout: float = 0.2,
        encoder_dropout: float = 0.5,
        train_embeddings: bool = True,
    ):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(vectors.clone(), freeze=not train_embeddings, padding_idx=0)
        dimension = vectors.shape[1]
        self.forward_lstm = nn.LSTM(dimension, hidden, batch_first=True)
        self.backward_lstm = nn.LSTM(dimension, hidden, batch_first=True)
        self.first_state = nn.Parameter(torch.zeros(2, 2, hidden))  # direction, (h, c), unit
        self.embedding_dropout = embedding_dropout
        self.encoder_dropout = encoder_dropout

    @classmethod
    def from_settings(cls, vectors: Tensor, settings: NetworkSettings) -> "Encoder":
        """Build an encoder of the sizes in the settings; `vectors` are as in the constructor."""
        return cls(
            vectors,
            settings.hidden,
            embedding_dropout=settings.embedding_dropout,
            encoder_dropout=settings.encoder_dropout,
            train_embeddings=settings.train_embeddings,
        )

    def embed(self, tokens_BT: Tensor) -> Tensor:
        """Return the vectors of the words, after dropout in training, [B, T, E]."""
        return dropout(self.embedding(tokens_BT), self.embedding_dropout, self.training, layer=WORD_LAYER)

    def bilstm(self, words_BTE: Tensor, lengths_B: Tensor) -> Tensor:
        """Return the states ĥ_t, forward and backward state concatenated, after dropout in training, [B, T, D]."""
        reversed_BT1 = reversed_positions(lengths_B, words_BTE.shape[1])[..., None]
        initial = self._initial_states(len(words_BTE))
        ahead_BTN, _ = self.forward_lstm(words_BTE, tuple(initial[0]))
        back_BTN, _ = self.backward_lstm(words_BTE.take_along_dim(reversed_BT1, 1), tuple(initial[1]))
        states_BTD = torch.cat([ahead_BTN, back_BTN.take_along_dim(reversed_BT1, 1)], dim=-1)
        return dropout(states_BTD, self.encoder_dropout, self.training, layer=STATE_LAYER)

    def forward(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        words: tuple[Tensor, Tensor] | None = None,
        seeds: Seeds | None = None,
    ) -> Tensor:
        """Return the hidden states, [B, T, D]; what they hold at padding must be masked by the caller.

        Args:
            tokens_BT: word ids, int, padded with 0 on the right.
            lengths_B: words of each text, int64, at least 1.
            words: int64 [U], the distinct ids in `tokens_BT`, and int64 [B·T], the position in them of each token. If
                None they are computed here, which takes time on the device.
            seeds: the dropout seed of each text, [B]; drawn at random if None.
        """
        words_BTE = embed_tokens(self.embedding.weight, tokens_BT, words)
        words_BTE = dropout(words_BTE, self.embedding_dropout, self.training, seeds, WORD_LAYER)
        reversed_BT = reversed_positions(lengths_B, tokens_BT.shape[1])
        ahead_BTN, back_BTN = backend_for(words_BTE.device).both_directions(
            (self.forward_lstm, self.backward_lstm),
            (words_BTE, _reverse(words_BTE, reversed_BT)),
            self._initial_states(len(tokens_BT)),
        )
        states_BTD = torch.cat([ahead_BTN, _reverse(back_BTN, reversed_BT)], dim=-1)
        return dropout(states_BTD, self.encoder_dropout, self.training, seeds, STATE_LAYER)

    def _initial_states(self, documents: int) -> tuple[Tensor, Tensor]:
        """Return the initial state of each direction, [2, 1, B, N]: h and c, of the LSTM's only layer."""
        states = self.first_state[:, :, None, None].expand(2, 2, 1, documents, -1)
        return states[0].contiguous(), states[1].contiguous()


def embed_tokens(table: Tensor, tokens_BT: Tensor, words: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return the vectors of words, [B, T, E], in the number format of matrix products; the gradient is sparse.

    Args:
        table: [words, E], float32, or bfloat16 in a network that only predicts.
        tokens_BT: word ids.
        words: as in `Encoder.forward`.
    """
    # A bfloat16 table without autocast is only a way of storing it: products are then computed in float32.
    dtype = backend_for(table.device).autocast_dtype or torch.promote_types(table.dtype, torch.float32)
    if not (torch.is_grad_enabled() and table.requires_grad):
        return functional.embedding(tokens_BT, table).to(dtype)
    rows_U, row_index_R = words or tokens_BT.flatten().unique(return_inverse=True)
    return gather_rows(table, rows_U, row_index_R, dtype).view(*tokens_BT.shape, -1)


def reversed_positions(lengths_B: Tensor, width: int) -> Tensor:
    """Return the positions that reverse each text within its length and leave padding where it is.

    Example: a text of 3 words in a batch of width 5 has the positions [2, 1, 0, 3, 4].

    Returns:
        int64 [B, width]. The permutation of each text is its own inverse.
    """
    positions_BT = torch.arange(width, device=lengths_B.device).expand(len(lengths_B), -1)
    return torch.where(positions_BT < lengths_B[:, None], lengths_B[:, None] - 1 - positions_BT, positions_BT)


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
