"""AttentionXML_d, the attention-aware deep model of one level of a label tree (paper, section 2.4).

`AttentionXML.forward` is the network as the paper describes it. Training and prediction call `encode`, and then `loss`
or `expand` of `LevelNetwork`, which compute the same in less time and memory; tests compare the two.

Legend: B documents, T tokens, E embedding dimension, D = 2N hidden dimension, F units of a fully connected layer,
n nodes scored.
"""

import torch
from torch import Tensor, nn

from axml_ray.network.backends.backend import Seeds
from axml_ray.network.encoder import Encoder
from axml_ray.network.fast.fused_head import FusedAttentionHead
from axml_ray.network.level_network import LevelNetwork
from axml_ray.network.paper.head import Head
from axml_ray.network.paper.multi_label_attention import attention_weights, evidence, multi_label_attention
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings


class AttentionXML(LevelNetwork):
    """The paper's network of one level.

    Args:
        level: the level whose nodes are scored.
        vectors: first values of the word embedding, float32 [words, E]; row 0 is padding and is zero.
        settings: sizes and dropout rates.
        shard: the part of the label table to hold.
    """

    def __init__(self, level: Level, vectors: Tensor, settings: NetworkSettings, shard: Shard = WHOLE):
        dimension = 2 * settings.hidden
        super().__init__(level, dimension, shard, settings.parent_score_exponent)
        self.evidence_weight = nn.Parameter(torch.ones(())) if settings.evidence else None
        self.encoder = Encoder.from_settings(vectors, settings)
        self.head = Head(dimension, settings.fully_connected)

    def forward(self, tokens_BT: Tensor, lengths_B: Tensor, nodes_Bn: Tensor | None = None) -> Tensor:
        """Return the logit of each node for each text, differentiable.

        Args:
            tokens_BT: word ids, int64, padded with 0 on the right.
            lengths_B: words of each text, int64, at least 1.
            nodes_Bn: int64, the nodes to score for each text, of those that this shard holds; -1 for none. If None, all
                that it holds.

        Returns:
            [B, n], -inf where there is no node. Its sigmoid is P(z_n=1 | z_Pa(n)=1, x).
        """
        nodes = self.attention.nodes(self.first_child).to(tokens_BT.device) if nodes_Bn is None else nodes_Bn
        is_word_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) < lengths_B[:, None]
        words_BTE = self.encoder.embed(tokens_BT)  # word representation layer: [B, T, E]
        states_BTD = self.encoder.bilstm(words_BTE, lengths_B)  # bidirectional LSTM layer: [B, T, D]
        queries = self.attention.vectors(nodes.clamp(min=0), self.first_child)  # ŵ_j: [n, D] or [B, n, D]
        contexts_BnD = multi_label_attention(states_BTD, queries, is_word_BT)  # m̂_j, equation 2: [B, n, D]
        hidden_BnF = self.head.fully_connected(contexts_BnD)  # fully connected layers: [B, n, F]
        logits_Bn = self.head.output(hidden_BnF).squeeze(-1)  # output layer, before the sigmoid: [B, n]
        if self.evidence_weight is not None:  # departs from the paper, see `evidence`
            logits_Bn = logits_Bn + self.evidence_weight * evidence(states_BTD, queries, is_word_BT)  # [B, n]
        return logits_Bn.masked_fill(nodes < 0, float("-inf"))

    def encode(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        words: tuple[Tensor, Tensor] | None = None,
        seeds: Seeds | None = None,
    ) -> Tensor:
        """Return the hidden states of the texts, [B, T, D]; arguments as in `LevelNetwork.encode`."""
        states: Tensor = self.encoder(tokens_BT, lengths_B, words, seeds)
        return states

    def encoding_lengths(self, lengths_B: Tensor) -> Tensor:
        """Return the number of rows of each text's encoding, int64 [B]: one for each word."""
        return lengths_B

    def values(self, encodings_BTD: Tensor) -> Tensor:
        """Return the hidden states times the weight of the first fully connected layer, [B, T, F]."""
        return self.head.project(encodings_BTD)

    def fused_head(self) -> FusedAttentionHead:
        """Return softmax, fully connected layers and output, and the evidence where it is used."""
        extra = () if self.evidence_weight is None else (self.evidence_weight,)
        return FusedAttentionHead((*self.head.parameters_after_projection(), *extra), has_evidence=bool(extra))

    def attention_weights(self, states_TD: Tensor, nodes: Tensor) -> Tensor:
        """Return the attention of each node to each word of one text, α in equation 2: float32 [n, T].

        Args:
            states_TD: hidden states of the text's words, without padding.
            nodes: int64 [n], nodes of this level, held by this shard.
        """
        queries = self.attention.vectors(nodes, self.first_child)
        return attention_weights(states_TD.float(), queries.float())

    def initialise_output_bias(self, positive_rate: float) -> None:
        """Set the output bias to the log-odds of `positive_rate`; see `Head.initialise_output_bias`."""
        self.head.initialise_output_bias(positive_rate)
