"""The networks that the paper compares with attention (section 3.6, table 4): XML-CNN, and a BiLSTM with max-pooling.

Both make one vector x of a text, and each label has an output vector and a bias: logit_j = w_j·x + b_j. The bias is
the last entry of the label's row in the table, and the last entry of x is one. So sharding, candidates, checkpoints and
lazy Adam need not know that there is a bias. Unlike attention's, biases then belong to their level:
`initialise_from_parent_level` does not copy them, and every level needs `initialise_output_bias`.

x leaves the encoder in float32 or wider, so that products with the table are exact. In bfloat16 their rounding would
make many labels' logits equal, and with one vector for each text they cost little.

Legend: B documents, T tokens, E embedding dimension, M feature maps, P chunks, F pooled values, D length of x with its
one.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from axml_ray.network.backends.base import Seeds
from axml_ray.network.fast.encoder import FastEncoder, embed_tokens
from axml_ray.network.level_network import LevelNetwork
from axml_ray.network.paper.attention_xml import WORD_LAYER, log_odds
from axml_ray.network.paper.dropout import dropout
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings

BOTTLENECK = 512
"""Units of the layer between pooling and output."""
FILTER_WIDTHS, FILTERS, CHUNKS = (2, 4, 8), 128, 8
"""XML-CNN's filters: their widths in words, the number of each width, and P, the chunks of a text."""
BOTTLENECK_LAYER = 2
"""Number that tells the bottleneck's dropout masks from those of the encoder's two layers."""


class PooledNetwork(LevelNetwork, ABC):
    """A network with one vector for each text: pooling, then XML-CNN's bottleneck (a layer, ReLU and dropout)."""

    def __init__(self, level: Level, pooled: int, settings: NetworkSettings, shard: Shard = WHOLE):
        super().__init__(level, BOTTLENECK + 1, shard, settings.parent_score_exponent)
        self.bottleneck = nn.Linear(pooled, BOTTLENECK)
        nn.init.xavier_uniform_(self.bottleneck.weight)
        self.dropout = settings.encoder_dropout

    @abstractmethod
    def pool(
        self, tokens_BT: Tensor, lengths_B: Tensor, unique_ids: tuple[Tensor, Tensor] | None, seeds: Seeds | None
    ) -> Tensor:
        """Return the bottleneck's input, [B, F]; arguments are as in `encode`."""

    def encode(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        unique_ids: tuple[Tensor, Tensor] | None = None,
        seeds: Seeds | None = None,
    ) -> Tensor:
        """Return the vector x of each text, [B, 1, D], whose last entry is one; see `LevelNetwork.encode`."""
        x = functional.relu(self.bottleneck(self.pool(tokens_BT, lengths_B, unique_ids, seeds)))
        x = dropout(x, self.dropout, self.training, seeds, BOTTLENECK_LAYER)
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return functional.pad(x, (0, 1), value=1.0)[:, None]

    def score(self, encodings: Tensor, lengths_B: Tensor, queries: Tensor) -> Tensor:
        """Return the logits w_j·x of the nodes, [B, N]; their vectors end in the biases."""
        return (encodings @ queries.mT).squeeze(1)

    @torch.no_grad()
    def initialise_output_bias(self, positive_rate: float) -> None:
        """Set every label's bias, the last entry of its vector, to the log-odds of `positive_rate`."""
        self.attention.weight.unflatten(1, (-1, self.attention.dimension))[..., -1] = log_odds(positive_rate)


class MaxPooledBiLSTM(PooledNetwork):
    """The paper's BiLSTM without attention: the largest value of each hidden unit over a text's words.

    The paper: "a BiLSTM, a max-pooling (instead of the attention layer of AttentionXML), and the fully connected
    layers (from XML-CNN)". So the head is not AttentionXML's, which all labels share, but XML-CNN's: its bottleneck
    with its dropout, and an output for each label. Dropout after the BiLSTM is as in AttentionXML.
    """

    def __init__(self, level: Level, vectors: Tensor, settings: NetworkSettings, shard: Shard = WHOLE):
        super().__init__(level, 2 * settings.hidden, settings, shard)
        self.encoder = FastEncoder(vectors, settings)

    def pool(
        self, tokens_BT: Tensor, lengths_B: Tensor, unique_ids: tuple[Tensor, Tensor] | None, seeds: Seeds | None
    ) -> Tensor:
        """Return the largest value of each hidden unit over the words of a text, [B, F]."""
        states_BTF: Tensor = self.encoder(tokens_BT, lengths_B, unique_ids, seeds)
        is_padding_BT = ~_is_word(tokens_BT, lengths_B)
        return states_BTF.masked_fill(is_padding_BT[..., None], float("-inf")).max(1).values


class XMLCNN(PooledNetwork):
    """XML-CNN (Liu, Chang, Wu and Yang, "Deep Learning for Extreme Multi-label Text Classification", SIGIR 2017)."""

    def __init__(self, level: Level, vectors: Tensor, settings: NetworkSettings, shard: Shard = WHOLE):
        super().__init__(level, FILTERS * len(FILTER_WIDTHS) * CHUNKS, settings, shard)
        self.encoder = Convolutions(vectors, settings)

    def pool(
        self, tokens_BT: Tensor, lengths_B: Tensor, unique_ids: tuple[Tensor, Tensor] | None, seeds: Seeds | None
    ) -> Tensor:
        """Return the largest feature of each map in each chunk of a text, after ReLU, [B, F]."""
        maxima: Tensor = self.encoder(tokens_BT, lengths_B, unique_ids, seeds)
        return maxima


class Convolutions(nn.Module):
    """Token ids to pooled features: embedding, convolutions over words, dynamic max-pooling.

    - A filter of width h computes one feature for each word, from the h words that begin there, as in XML-CNN's
      equations; beyond a text's end it reads zeros.
    - Dynamic pooling divides the m words of each text, not the padded batch, into P chunks: chunk k reaches from
      ⌊k·m / P⌋ up to ⌈(k + 1)·m / P⌉. If P does not divide m, neighbouring chunks share a word, so that a text of fewer
      than P words has no empty chunk.
    """

    def __init__(self, vectors: Tensor, settings: NetworkSettings):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(
            vectors.clone(), freeze=not settings.train_embeddings, padding_idx=0
        )
        self.filters = nn.ModuleList(nn.Conv1d(vectors.shape[1], FILTERS, width) for width in FILTER_WIDTHS)
        for convolution in self.filters:
            nn.init.xavier_uniform_(convolution.weight)  # type: ignore[arg-type]
        self.dropout = settings.embedding_dropout

    def forward(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        unique_ids: tuple[Tensor, Tensor] | None = None,
        seeds: Seeds | None = None,
    ) -> Tensor:
        """Return the pooled features after ReLU, [B, P·M]; arguments are as in `Encoder.forward`."""
        words_BTE = embed_tokens(self.embedding.weight, tokens_BT, unique_ids)
        words_BTE = dropout(words_BTE, self.dropout, self.training, seeds, WORD_LAYER)
        # A window at a text's end reads padding, whose vector would otherwise be used, and trained.
        words_BET = words_BTE.where(_is_word(tokens_BT, lengths_B)[..., None], 0).transpose(1, 2)
        maps_BMT = torch.cat(
            [
                convolution(functional.pad(words_BET, (0, width - 1)))
                for convolution, width in zip(self.filters, FILTER_WIDTHS, strict=True)
            ],
            dim=1,
        )
        positions_BPW = self._chunk_positions(lengths_B, tokens_BT.shape[1])
        # Rows of the flattened batch: text b begins at row b · T.
        starts_B11 = torch.arange(len(tokens_BT), device=tokens_BT.device)[:, None, None] * tokens_BT.shape[1]
        features = maps_BMT.transpose(1, 2).flatten(0, 1).index_select(0, (starts_B11 + positions_BPW).flatten())
        return functional.relu(features.view(*positions_BPW.shape, -1).max(2).values.flatten(1))

    def _chunk_positions(self, lengths_B: Tensor, width: int) -> Tensor:
        """Return the positions of each chunk's words, int64 [B, P, W]; the last is repeated to fill W.

        Repeating a word does not change a maximum, and gives all chunks the same shape.

        Example: 2 chunks of 5 words in a batch of width 8 are [0, 1, 2, 2, 2] and [2, 3, 4, 4, 4].
        """
        chunk_P = torch.arange(CHUNKS, device=lengths_B.device)
        first_BP = chunk_P * lengths_B[:, None] // CHUNKS
        last_BP = -(-(chunk_P + 1) * lengths_B[:, None] // CHUNKS) - 1
        # The longest chunk that any text of this width has; reading the real lengths would make an accelerator wait.
        longest = -(-width // CHUNKS) + 1
        steps_W = torch.arange(longest, device=lengths_B.device)
        return torch.minimum(first_BP[..., None] + steps_W, last_BP[..., None])


def _is_word(tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
    return torch.arange(tokens_BT.shape[1], device=tokens_BT.device) < lengths_B[:, None]
