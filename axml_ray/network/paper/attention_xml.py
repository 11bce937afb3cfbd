"""AttentionXML_d, the attention-aware deep model of one level of a label tree (paper, section 2.4).

This is the network as the paper writes it, layer by layer, and with `network.implementation: plain` it is what trains
and predicts, in float32. `fast.attention_xml` computes the same in less time and memory; tests compare the two.

Legend: B documents, T tokens, E embedding dimension, N̂ hidden units of each direction, D = 2N̂ dimension of the states,
F units of a fully connected layer, N candidates. Where all documents are scored against the same nodes, their vectors
are [N, D] instead of [B, N, D].
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from axml_ray.network.backends.base import Seeds
from axml_ray.network.level_network import LevelNetwork, full_precision, read_rows
from axml_ray.network.paper.dropout import dropout
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings

WORD_LAYER, STATE_LAYER = 0, 1
"""Numbers that tell the masks of the two dropout layers apart."""


class Encoder(nn.Module):
    """Word representation and bidirectional LSTM, with dropout after each: token ids to hidden states.

    - The initial state of the LSTMs is learned. The paper does not say what it is.
    - Texts are padded on the right. The forward LSTM never sees padding before a word, and the backward LSTM reads each
      text reversed within its own length, so neither needs packed sequences.
    """

    def __init__(self, vectors: Tensor, settings: NetworkSettings):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(
            vectors.clone(), freeze=not settings.train_embeddings, padding_idx=0
        )
        self.forward_lstm = nn.LSTM(vectors.shape[1], settings.hidden, batch_first=True)
        self.backward_lstm = nn.LSTM(vectors.shape[1], settings.hidden, batch_first=True)
        self.first_state = nn.Parameter(torch.zeros(2, 2, settings.hidden))  # direction, (h, c), unit
        self.embedding_dropout, self.encoder_dropout = settings.embedding_dropout, settings.encoder_dropout

    def forward(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        unique_ids: tuple[Tensor, Tensor] | None = None,
        seeds: Seeds | None = None,
    ) -> Tensor:
        """Return the hidden states ĥ_t, [B, T, D]; what they hold at padding must be masked by the caller.

        The arguments are those of `LevelNetwork.encode`.
        """
        words_BTE = self.embed(tokens_BT, unique_ids)
        words_BTE = dropout(words_BTE, self.embedding_dropout, self.training, seeds, WORD_LAYER)
        states_BTD = self.bilstm(words_BTE, lengths_B)
        return dropout(states_BTD, self.encoder_dropout, self.training, seeds, STATE_LAYER)

    def embed(self, tokens_BT: Tensor, unique_ids: tuple[Tensor, Tensor] | None) -> Tensor:
        """Return the vectors of the words (section 2.4.1), [B, T, E]."""
        # One row for each distinct word: its gradient is then summed once, and Adam moves only these rows.
        rows_U, row_index = unique_ids or tokens_BT.unique(return_inverse=True)
        vectors = read_rows(self.embedding.weight, rows_U, row_index).to(self.first_state.dtype)
        return vectors.view(*tokens_BT.shape, -1)

    def bilstm(self, words_BTE: Tensor, lengths_B: Tensor) -> Tensor:
        """Return the forward and the backward state of each word (section 2.4.2), concatenated, [B, T, D]."""
        reversed_BT1 = reversed_positions(lengths_B, words_BTE.shape[1])[..., None]
        ahead, back = self.initial_states(len(words_BTE))
        ahead_BTN, _ = self.forward_lstm(words_BTE, tuple(ahead))
        back_BTN, _ = self.backward_lstm(words_BTE.take_along_dim(reversed_BT1, 1), tuple(back))
        return torch.cat([ahead_BTN, back_BTN.take_along_dim(reversed_BT1, 1)], dim=-1)

    def initial_states(self, documents: int) -> tuple[Tensor, Tensor]:
        """Return the initial state of each direction, [2, 1, B, N̂]: h and c, of the LSTM's only layer."""
        states = self.first_state[:, :, None, None].expand(2, 2, 1, documents, -1)
        return states[0].contiguous(), states[1].contiguous()


def reversed_positions(lengths_B: Tensor, width: int) -> Tensor:
    """Return the positions that reverse each text within its length and leave padding where it is, int64 [B, width].

    The permutation of each text is its own inverse. A text of 3 words in a batch of width 5 has [2, 1, 0, 3, 4].
    """
    positions_BT = torch.arange(width, device=lengths_B.device).expand(len(lengths_B), -1)
    return torch.where(positions_BT < lengths_B[:, None], lengths_B[:, None] - 1 - positions_BT, positions_BT)


def attention_weights(states_BTD: Tensor, queries_BND: Tensor, is_word_BT: Tensor | None = None) -> Tensor:
    """Return the coefficients α_tj = exp(ĥ_t·ŵ_j) / Σ_i exp(ĥ_i·ŵ_j), [B, N, T]; a node's sum to one over words."""
    return _scores(states_BTD, queries_BND, is_word_BT).softmax(-1)


def multi_label_attention(states_BTD: Tensor, queries_BND: Tensor, is_word_BT: Tensor | None = None) -> Tensor:
    """Return the context vector m̂_j = Σ_t α_tj ĥ_t of every node (equation 2, section 2.4.3), [B, N, D].

    `queries_BND` are the attention parameters ŵ_j of the nodes, and `is_word_BT` is False at padding.
    """
    return attention_weights(states_BTD, queries_BND, is_word_BT) @ states_BTD


def evidence(states_BTD: Tensor, queries_BND: Tensor, is_word_BT: Tensor) -> Tensor:
    """Return log((1/T) Σ_t exp(ĥ_t·ŵ_j)), how strongly a text speaks for a node, [B, N]. Not in the paper.

    The softmax of equation 2 removes the size of the scores: a text in which every word fits a node weakly and one in
    which every word fits it strongly have the same context vector. This term adds it again (`network.evidence`).
    """
    words_B1 = is_word_BT.sum(-1, keepdim=True).to(states_BTD.dtype)
    return _scores(states_BTD, queries_BND, is_word_BT).logsumexp(-1) - words_B1.log()


def _scores(states_BTD: Tensor, queries_BND: Tensor, is_word_BT: Tensor | None) -> Tensor:
    """Return the products ĥ_t·ŵ_j, [B, N, T]; -inf at padding, so that softmax gives it no weight."""
    scores_BNT = queries_BND @ states_BTD.mT
    return scores_BNT if is_word_BT is None else scores_BNT.masked_fill(~is_word_BT[..., None, :], float("-inf"))


class Head(nn.Module):
    """Fully connected layers and output layer, shared by all labels (section 2.4.4); there is no dropout."""

    def __init__(self, dimension: int, layers: Sequence[int]):
        super().__init__()
        sizes = [dimension, *layers]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.output = nn.Linear(sizes[-1], 1)
        for layer in (*self.layers, self.output):
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, contexts_BND: Tensor) -> Tensor:
        """Return the logit of each context vector, [B, N]: ReLU after each layer, before the sigmoid of the output."""
        hidden_BNF = contexts_BND
        for layer in self.layers:
            hidden_BNF = functional.relu(layer(hidden_BNF))
        logits_BN: Tensor = self.output(hidden_BNF).squeeze(-1)
        return logits_BN


class AttentionXML(LevelNetwork):
    """The paper's network of one level.

    Args:
        level: the level whose nodes are scored.
        vectors: first values of the word embedding, float32 [words, E]; row 0 is padding and is zero.
        settings: sizes and dropout rates.
        shard: the part of the label table to hold.
    """

    encoder_class: type[Encoder] = Encoder

    def __init__(self, level: Level, vectors: Tensor, settings: NetworkSettings, shard: Shard = WHOLE):
        dimension = 2 * settings.hidden
        super().__init__(level, dimension, shard, settings.parent_score_exponent)
        self.evidence_weight = nn.Parameter(torch.ones(())) if settings.evidence else None
        self.encoder = self.encoder_class(vectors, settings)
        self.head = Head(dimension, settings.fully_connected)

    def encode(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        unique_ids: tuple[Tensor, Tensor] | None = None,
        seeds: Seeds | None = None,
    ) -> Tensor:
        """Return the hidden states ĥ_t of the texts, [B, T, D]; see `LevelNetwork.encode`."""
        with full_precision(tokens_BT.device):
            states_BTD: Tensor = self.encoder(tokens_BT, lengths_B, unique_ids, seeds)
        return states_BTD

    def score(self, states_BTD: Tensor, lengths_B: Tensor, queries_BND: Tensor) -> Tensor:
        """Return the logit of each candidate, [B, N]; its sigmoid is P(z_n=1 | z_Pa(n)=1, x)."""
        is_word_BT = torch.arange(states_BTD.shape[1], device=states_BTD.device) < lengths_B[:, None]
        contexts_BND = multi_label_attention(states_BTD, queries_BND, is_word_BT)  # m̂_j, equation 2
        logits_BN: Tensor = self.head(contexts_BND)  # fully connected layers and output layer
        if self.evidence_weight is not None:  # departs from the paper, see `evidence`
            logits_BN = logits_BN + self.evidence_weight * evidence(states_BTD, queries_BND, is_word_BT)
        return logits_BN

    @torch.no_grad()
    def initialise_output_bias(self, positive_rate: float) -> None:
        """Set the output bias to the log-odds of the positive rate. Not in the paper.

        Labels are rare; from a bias of zero, the first epochs would be spent on learning just that.
        """
        self.head.output.bias.fill_(log_odds(positive_rate))

    def attention_weights(self, states_TD: Tensor, nodes: Tensor) -> Tensor:
        """Return the attention α_tj of some nodes to the words of one text (equation 2), [n, T], float32 or wider.

        The states are those of the text without padding, and `nodes` (int64 [n]) are held by this shard.
        """
        queries = self.attention.vectors(nodes, self.first_child)
        return attention_weights(states_TD.float(), queries.float())


def log_odds(rate: float) -> float:
    """Return log(rate / (1 - rate)), of a rate that is kept away from 0 and 1 so that the result is finite.

    In a tiny corpus all candidates may be positive, or none.
    """
    rate = min(max(rate, 1e-9), 0.999)
    return math.log(rate / (1 - rate))
