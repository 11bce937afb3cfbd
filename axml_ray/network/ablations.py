"""The networks that the paper compares with attention (its table of ablations): XML-CNN, and a BiLSTM with max-pooling.

Both make one vector x of a text, and each label has an output vector and a bias: logit_j = w_j·x + b_j. The bias is
the last entry of the label's row in the table, and the last entry of x is one; so sharding, candidates, checkpoints
and lazy Adam need not know that there is one. Unlike attention's, biases then belong to their level: `inherit` does
not hand them down, and every level should be told what to `expect`.

x leaves the encoder in float32 or wider, so that products with the table are exact: in bfloat16 their rounding would
make many labels' logits equal, and with one vector a text they cost little.

Legend: B documents, T tokens, E embedding dimension, M feature maps, P chunks, F pooled values, D of x, with its one.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from axml_ray.network.encoder import Encoder, dropout, embedded
from axml_ray.network.level_network import Level, LevelNetwork
from axml_ray.network.rows import WHOLE, Shard
from axml_ray.settings import NetworkSettings


@dataclass
class DotScorer:
    """Scores of the only row of each text are the logits; see `one_pass.Scorer`."""

    parameters: tuple[Tensor, ...] = ()
    gradients: list[Tensor] = field(default_factory=list)
    width: int = 0

    def forward(self, scores_gTn: Tensor, values_gTF: Tensor, lengths_g: Tensor) -> tuple[Tensor, Any]:
        """As `Scorer.forward`."""
        logits = scores_gTn[:, 0]
        return logits.to(torch.promote_types(logits.dtype, torch.float32)), logits.dtype

    def backward(self, kept: Any, logits_gn: Tensor) -> tuple[Tensor, None]:
        """As `Scorer.backward`."""
        return logits_gn[:, None].to(kept), None


class PooledNetwork(LevelNetwork, ABC):
    """One vector a text, through XML-CNN's bottleneck: a fully connected layer, ReLU and dropout.

    Args:
        level: the nodes to tell apart.
        pooled: F.
        settings: sizes and dropouts.
        shard: which of the nodes, or of their parents, are held here.
    """

    def __init__(self, level: Level, pooled: int, settings: NetworkSettings, shard: Shard = WHOLE):
        super().__init__(level, settings.bottleneck + 1, shard, settings.path_weight)
        self.bottleneck = nn.Linear(pooled, settings.bottleneck)
        nn.init.xavier_uniform_(self.bottleneck.weight)
        self.dropout = settings.encoder_dropout

    @abstractmethod
    def pooled(
        self, tokens_BT: Tensor, lengths_B: Tensor, words: tuple[Tensor, Tensor] | None, seeds: np.ndarray | None
    ) -> Tensor:
        """What the bottleneck gets, [B, F]; arguments as of `encode`."""

    def encode(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        words: tuple[Tensor, Tensor] | None = None,
        seeds: np.ndarray | None = None,
    ) -> Tensor:
        """x of each text, [B, 1, D]; its last entry is one."""
        x = functional.relu(self.bottleneck(self.pooled(tokens_BT, lengths_B, words, seeds)))
        x = dropout(x, self.dropout, self.training, seeds, layer=2)
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return functional.pad(x, (0, 1), value=1.0)[:, None]

    def encoded(self, lengths_B: Tensor) -> Tensor:
        """One row a text."""
        return torch.ones_like(lengths_B)

    def values(self, encodings_BTD: Tensor) -> Tensor:
        """None: [B, 1, 0]."""
        return encodings_BTD[..., :0].detach()

    def scorer(self) -> DotScorer:
        """Scores are logits."""
        return DotScorer()

    @torch.no_grad()
    def expect(self, rate: float) -> None:
        """Start at a share `rate` of true labels: every bias at its log-odds."""
        rate = min(max(rate, 1e-9), 0.999)  # in a tiny corpus, all labels may be true of all documents
        self.attention.weight.unflatten(1, (-1, self.attention.dimension))[..., -1] = math.log(rate / (1 - rate))


class MaxPooledBiLSTM(PooledNetwork):
    """The paper's BiLSTM without attention: the largest value of each hidden unit over a text's words.

    The paper: "a BiLSTM, a max-pooling (instead of the attention layer of AttentionXML), and the fully connected
    layers (from XML-CNN)". So the head is not AttentionXML's, which all labels share, but XML-CNN's: its bottleneck
    with its dropout, and an output for each label. Dropout after the BiLSTM stays where AttentionXML has it.

    Args:
        level: the nodes to tell apart.
        vectors: first values of the embedding, float32 [words, E].
        settings: sizes and dropouts.
        shard: which of the nodes, or of their parents, are held here.
    """

    def __init__(self, level: Level, vectors: Tensor, settings: NetworkSettings, shard: Shard = WHOLE):
        super().__init__(level, 2 * settings.hidden, settings, shard)
        self.encoder = Encoder.of(vectors, settings)

    def pooled(
        self, tokens_BT: Tensor, lengths_B: Tensor, words: tuple[Tensor, Tensor] | None, seeds: np.ndarray | None
    ) -> Tensor:
        """Maxima of the hidden states."""
        states_BTF: Tensor = self.encoder(tokens_BT, lengths_B, words, seeds)
        padded_BT = ~_real(tokens_BT, lengths_B)
        return states_BTF.masked_fill(padded_BT[..., None], float("-inf")).max(1).values


class XMLCNN(PooledNetwork):
    """XML-CNN (Liu, Chang, Wu and Yang, "Deep Learning for Extreme Multi-label Text Classification", SIGIR 2017).

    Args:
        level: the nodes to tell apart.
        vectors: first values of the embedding, float32 [words, E].
        settings: sizes and dropouts.
        shard: which of the nodes, or of their parents, are held here.
    """

    def __init__(self, level: Level, vectors: Tensor, settings: NetworkSettings, shard: Shard = WHOLE):
        maps = settings.filters * len(settings.filter_widths)
        super().__init__(level, maps * settings.pooling_chunks, settings, shard)
        self.encoder = Convolutions(vectors, settings)

    def pooled(
        self, tokens_BT: Tensor, lengths_B: Tensor, words: tuple[Tensor, Tensor] | None, seeds: np.ndarray | None
    ) -> Tensor:
        """The largest feature of each map in each chunk, after ReLU."""
        maxima: Tensor = self.encoder(tokens_BT, lengths_B, words, seeds)
        return maxima


class Convolutions(nn.Module):
    """Token ids to pooled features: embedding, convolutions over words, dynamic max-pooling.

    - A filter of width h makes one feature for each word, of the h words that begin there, as in XML-CNN's equations;
      beyond a text's end it sees zeros.
    - Dynamic pooling divides the m words of each text, not the padded batch, into P chunks: from ⌊k·m / P⌋ up to
      ⌈(k + 1)·m / P⌉. Where P does not divide m, neighbours share a word, so a text of fewer than P words has
      no empty chunk.

    Args:
        vectors: first values of the embedding, float32 [words, E]; row 0 pads.
        settings: sizes and dropouts.
    """

    def __init__(self, vectors: Tensor, settings: NetworkSettings):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(
            vectors.clone(), freeze=not settings.train_embeddings, padding_idx=0
        )
        self.filters = nn.ModuleList(
            nn.Conv1d(vectors.shape[1], settings.filters, width) for width in settings.filter_widths
        )
        for one in self.filters:
            nn.init.xavier_uniform_(one.weight)  # type: ignore[arg-type]
        self.widths = settings.filter_widths
        self.chunks = settings.pooling_chunks
        self.dropout = settings.embedding_dropout

    def forward(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        words: tuple[Tensor, Tensor] | None = None,
        seeds: np.ndarray | None = None,
    ) -> Tensor:
        """Pooled features after ReLU, [B, P·M]; arguments as of `Encoder.forward`."""
        embedded_BTE = dropout(embedded(self.embedding.weight, tokens_BT, words), self.dropout, self.training, seeds)
        # A window at a text's end reaches into the padding, and would teach it.
        embedded_BET = embedded_BTE.where(_real(tokens_BT, lengths_B)[..., None], 0).transpose(1, 2)
        maps_BMT = torch.cat(
            [
                one(functional.pad(embedded_BET, (0, width - 1)))
                for one, width in zip(self.filters, self.widths, strict=True)
            ],
            dim=1,
        )
        places_BPW = self._chunk_places(lengths_B, tokens_BT.shape[1])
        starts_B11 = torch.arange(len(tokens_BT), device=tokens_BT.device)[:, None, None] * tokens_BT.shape[1]
        features = maps_BMT.transpose(1, 2).flatten(0, 1).index_select(0, (starts_B11 + places_BPW).flatten())
        return functional.relu(features.view(*places_BPW.shape, -1).max(2).values.flatten(1))

    def _chunk_places(self, lengths_B: Tensor, width: int) -> Tensor:
        """Words of each chunk, int64 [B, P, W]; the last one stands again where there are fewer than W.

        Example: 2 chunks of 5 words in a batch of width 8 are [0, 1, 2, 2, 2] and [2, 3, 4, 4, 4].
        """
        chunk_P = torch.arange(self.chunks, device=lengths_B.device)
        first_BP = chunk_P * lengths_B[:, None] // self.chunks
        last_BP = -(-(chunk_P + 1) * lengths_B[:, None] // self.chunks) - 1
        longest = -(-width // self.chunks) + 1  # of any text's: known without a look at the lengths
        steps_W = torch.arange(longest, device=lengths_B.device)
        return torch.minimum(first_BP[..., None] + steps_W, last_BP[..., None])


def _real(tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
    return torch.arange(tokens_BT.shape[1], device=tokens_BT.device) < lengths_B[:, None]
