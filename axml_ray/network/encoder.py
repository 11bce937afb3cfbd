"""Words to context vectors: embedding and bidirectional LSTM (paper, "Word Representation" and "Bidirectional LSTM").

- The first state of the LSTM is learned.
- Texts are padded on the right. The forward LSTM never sees padding before a word; the backward one reads each text
  turned round within its own length, so neither needs packed sequences and both run in one fused call.

Shapes: B documents, T tokens, E embedding dimension, N hidden units, D = 2N.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


class Encoder(nn.Module):
    """Token ids to hidden states.

    Args:
        vectors: first values of the embedding, float32 [words, E]; row 0 pads and is zero.
        hidden: N, units in each direction.
        embedding_dropout: dropout after the embedding.
        encoder_dropout: dropout after the BiLSTM.
        train_embeddings: False freezes `vectors`.
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
        # sparse: only the rows of a batch's words get a gradient, and only they are updated
        self.embedding = nn.Embedding.from_pretrained(
            vectors.clone(), freeze=not train_embeddings, padding_idx=0, sparse=True
        )
        dimension = vectors.shape[1]
        self.forward_lstm = nn.LSTM(dimension, hidden, batch_first=True)
        self.backward_lstm = nn.LSTM(dimension, hidden, batch_first=True)
        self.first_state = nn.Parameter(torch.zeros(2, 2, hidden))  # direction, (h, c), unit
        self.embedding_dropout = embedding_dropout
        self.encoder_dropout = encoder_dropout

    def forward(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """Hidden states, [B, T, D]; what stands at padded places is to be masked.

        Args:
            tokens_BT: word ids, int, padded with 0 on the right.
            lengths_B: words of each text, int64, at least 1.
        """
        words_BTE = dropout(self.embedding(tokens_BT), self.embedding_dropout, self.training)
        device = words_BTE.device.type
        if torch.is_autocast_enabled(device):
            words_BTE = words_BTE.to(torch.get_autocast_dtype(device))  # once, not for each direction
        places_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
        turned_BT = torch.where(places_BT < lengths_B[:, None], lengths_B[:, None] - 1 - places_BT, places_BT)
        ahead_BTN = self._run(self.forward_lstm, words_BTE, self.first_state[0])
        back_BTN = self._run(self.backward_lstm, _turn(words_BTE, turned_BT), self.first_state[1])
        hidden_BTD = torch.cat([ahead_BTN, _turn(back_BTN, turned_BT)], dim=-1)
        return dropout(hidden_BTD, self.encoder_dropout, self.training)

    @staticmethod
    def _run(lstm: nn.LSTM, words_BTE: Tensor, first_state: Tensor) -> Tensor:
        state = first_state[:, None, None].expand(2, 1, words_BTE.shape[0], lstm.hidden_size).contiguous()
        return lstm(words_BTE, (state[0], state[1]))[0]


class _Turn(torch.autograd.Function):
    """Rows in the order of `places`, an involution: the gradient goes back by the same order."""

    @staticmethod
    def forward(context: Any, rows_RX: Tensor, places_R: Tensor) -> Tensor:
        context.save_for_backward(places_R)
        return rows_RX.index_select(0, places_R)

    @staticmethod
    def backward(context: Any, gradient_RX: Tensor) -> tuple[Tensor, None]:
        return gradient_RX.index_select(0, context.saved_tensors[0]), None


def _turn(values_BTX: Tensor, places_BT: Tensor) -> Tensor:
    """Each text's values turned round within its length."""
    starts_B1 = torch.arange(len(places_BT), device=places_BT.device)[:, None] * places_BT.shape[1]
    rows: Tensor = _Turn.apply(values_BTX.flatten(0, 1), (starts_B1 + places_BT).flatten())
    return rows.view_as(values_BTX)


def dropout(values: Tensor, share: float, training: bool) -> Tensor:
    """Dropout; on a CPU by random bytes, since PyTorch draws its masks there one by one (a sixth of a step's time).

    The share is then a multiple of 1/256, and what is kept is scaled by exactly that. Masks follow PyTorch's seed.
    """
    if not training or not share:
        return values
    if values.device.type != "cpu":
        return functional.dropout(values, share)
    dropped = round(256 * share)
    random = np.random.Generator(np.random.SFC64(int(torch.randint(2**62, ()))))
    kept = torch.frombuffer(bytearray(random.bytes(values.numel())), dtype=torch.uint8) >= dropped
    return values * (kept.view(values.shape) * (256 / (256 - dropped))).to(values.dtype)
