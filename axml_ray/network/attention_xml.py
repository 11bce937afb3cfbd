"""AttentionXML_d, the network of one level of a label tree: embedding, BiLSTM, multi-label attention, shared head."""

import numpy as np
import torch
from torch import Tensor, nn

from axml_ray.network.encoder import Encoder
from axml_ray.network.head import Head
from axml_ray.network.level_network import Level, LevelNetwork
from axml_ray.network.one_pass import AttentionScorer
from axml_ray.network.rows import WHOLE, Shard
from axml_ray.settings import NetworkSettings


class AttentionXML(LevelNetwork):
    """The paper's network of a level.

    Args:
        level: the nodes to tell apart.
        vectors: first values of the embedding, float32 [words, E].
        settings: sizes and dropouts.
        shard: which of the nodes, or of their parents, are held here.
    """

    def __init__(self, level: Level, vectors: Tensor, settings: NetworkSettings, shard: Shard = WHOLE):
        dimension = 2 * settings.hidden
        super().__init__(level, dimension, shard, settings.path_weight)
        self.evidence_weight = nn.Parameter(torch.ones(())) if settings.evidence else None
        self.encoder = Encoder.of(vectors, settings)
        self.head = Head(dimension, settings.fully_connected)

    def encode(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        words: tuple[Tensor, Tensor] | None = None,
        seeds: np.ndarray | None = None,
    ) -> Tensor:
        """Hidden states, [B, T, D]."""
        states: Tensor = self.encoder(tokens_BT, lengths_B, words, seeds)
        return states

    def encoded(self, lengths_B: Tensor) -> Tensor:
        """A state a word."""
        return lengths_B

    def values(self, encodings_BTD: Tensor) -> Tensor:
        """States times the first fully connected layer's weight."""
        return self.head.fold(encodings_BTD)

    def scorer(self) -> AttentionScorer:
        """Softmax, head and, where wanted, evidence."""
        evidence = () if self.evidence_weight is None else (self.evidence_weight,)
        return AttentionScorer((*self.head.rest(), *evidence), evidence=bool(evidence))

    def attention_weights(self, states_TD: Tensor, nodes: Tensor) -> Tensor:
        """How much each node looks at each word of a text (paper, equation 2), float32 [n, T]; rows sum to one.

        Args:
            states_TD: of the text's words, without padding.
            nodes: int64 [n], of this level.
        """
        queries = self.attention.vectors(nodes, self.first_child)
        return torch.softmax(queries.float() @ states_TD.float().t(), dim=1)

    def expect(self, rate: float) -> None:
        """Start at a share `rate` of true labels."""
        self.head.expect(rate)
