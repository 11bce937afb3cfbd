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

from axml_ray.network.bilstm import both_directions
from axml_ray.network.rows import pick
from axml_ray.settings import NetworkSettings


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
        self.embedding = nn.Embedding.from_pretrained(vectors.clone(), freeze=not train_embeddings, padding_idx=0)
        dimension = vectors.shape[1]
        self.forward_lstm = nn.LSTM(dimension, hidden, batch_first=True)
        self.backward_lstm = nn.LSTM(dimension, hidden, batch_first=True)
        self.first_state = nn.Parameter(torch.zeros(2, 2, hidden))  # direction, (h, c), unit
        self.embedding_dropout = embedding_dropout
        self.encoder_dropout = encoder_dropout

    @classmethod
    def of(cls, vectors: Tensor, settings: NetworkSettings) -> "Encoder":
        """The encoder that the settings ask for."""
        return cls(
            vectors,
            settings.hidden,
            embedding_dropout=settings.embedding_dropout,
            encoder_dropout=settings.encoder_dropout,
            train_embeddings=settings.train_embeddings,
        )

    def forward(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        words: tuple[Tensor, Tensor] | None = None,
        seeds: np.ndarray | None = None,
    ) -> Tensor:
        """Hidden states, [B, T, D]; what stands at padded places is to be masked.

        Args:
            tokens_BT: word ids, int, padded with 0 on the right.
            lengths_B: words of each text, int64, at least 1.
            words: the distinct ids of `tokens_BT` and which of them stands where, int64 [U] and [B·T], so that
                nobody has to look for them here.
            seeds: int64 [B], of each text's dropout; by default drawn.
        """
        words_BTE = embedded(self.embedding.weight, tokens_BT, words)
        words_BTE = dropout(words_BTE, self.embedding_dropout, self.training, seeds, 0)
        places_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
        turned_BT = torch.where(places_BT < lengths_B[:, None], lengths_B[:, None] - 1 - places_BT, places_BT)
        states = self.first_state[:, :, None, None].expand(2, 2, 1, len(tokens_BT), -1)
        ahead_BTN, back_BTN = both_directions(
            (self.forward_lstm, self.backward_lstm),
            (words_BTE, _turn(words_BTE, turned_BT)),
            (states[0].contiguous(), states[1].contiguous()),
        )
        hidden_BTD = torch.cat([ahead_BTN, _turn(back_BTN, turned_BT)], dim=-1)
        return dropout(hidden_BTD, self.encoder_dropout, self.training, seeds, 1)


def embedded(table: Tensor, tokens_BT: Tensor, words: tuple[Tensor, Tensor] | None) -> Tensor:
    """The words' vectors, [B, T, E], in the format of the products; each row is read once, its gradient is sparse.

    Args:
        table: [words, E], float32; of a network that only predicts, also bfloat16.
        tokens_BT: word ids.
        words: as of `Encoder.forward`.
    """
    device = table.device.type
    reduced = torch.is_autocast_enabled(device)
    # a table may be kept in a narrower format than is computed in
    dtype = torch.get_autocast_dtype(device) if reduced else torch.promote_types(table.dtype, torch.float32)
    if not (torch.is_grad_enabled() and table.requires_grad):
        return functional.embedding(tokens_BT, table).to(dtype)
    rows_U, places_R = words or tokens_BT.flatten().unique(return_inverse=True)
    return pick(table, rows_U, places_R, dtype).view(*tokens_BT.shape, -1)


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


def dropout(values: Tensor, share: float, training: bool, seeds: np.ndarray | None = None, layer: int = 0) -> Tensor:
    """Dropout; on a CPU by random bytes, since PyTorch draws its masks there one by one (a sixth of a step's time).

    The share is then a multiple of 1/256, and what is kept is scaled by exactly that.

    Args:
        values: [B, ...].
        share: of values that become zero.
        training: nothing is dropped without.
        seeds: int64 [B]: a text's mask follows its own seed alone, whichever batch or worker it is in. On a GPU, and
            without seeds, masks follow PyTorch's seed.
        layer: tells the masks of several layers apart.
    """
    if not training or not share:
        return values
    if values.device.type != "cpu":
        return functional.dropout(values, share)
    if seeds is None:
        seeds = torch.randint(2**62, (len(values),)).numpy()
    dropped = min(255, round(256 * share))
    words = -(-values[0].numel() // 8)
    random = np.stack([np.random.SFC64((int(seed), layer)).random_raw(words) for seed in seeds]).view(np.uint8)
    kept = torch.from_numpy(random)[:, : values[0].numel()].view_as(values) >= dropped
    return values * kept.to(values.dtype).mul_(256 / (256 - dropped))
