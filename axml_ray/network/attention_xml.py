"""AttentionXML_d, the network of one level of a label tree, and its step of the beam search.

Shapes: B documents, T tokens, n nodes scored, C parents, K children a parent at most.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from axml_ray.network.attention import CandidateAttention, LabelAttention, attend
from axml_ray.network.encoder import Encoder
from axml_ray.network.head import Head
from axml_ray.settings import NetworkSettings
from axml_ray.tree.label_tree import LabelTree

# Most values of attention weights and contexts held at once; more labels are scored chunk by chunk, and their weights
# computed again for the gradient.
CHUNK_VALUES = 1 << 27


@dataclass(frozen=True)
class Level:
    """What a network must know of its level of the tree.

    Attributes:
        number: d, from 1 below the root.
        nodes: nodes of the level.
        first_child: int64 [P + 1], children of each node of the level above; None where all nodes are scored.
    """

    number: int
    nodes: int
    first_child: np.ndarray | None

    @classmethod
    def of(cls, tree: LabelTree, number: int) -> "Level":
        """Level `number` of `tree`."""
        above = tree.first_child[number - 1] if number > 1 else None
        return cls(number, tree.level_sizes[number - 1], above)


@dataclass(frozen=True)
class Beam:
    """The best nodes of a level for each of some documents.

    Attributes:
        nodes: int64 [B, C], best first; -1 where there are fewer.
        scores: float32 [B, C], log of the probability along the path from the root (paper, equation 1).
    """

    nodes: Tensor
    scores: Tensor


class AttentionXML(nn.Module):
    """Embedding, BiLSTM, multi-label attention, fully connected and output layers.

    Args:
        level: the nodes to tell apart.
        vectors: first values of the embedding, float32 [words, E].
        settings: sizes and dropouts.
    """

    first_child: Tensor

    def __init__(self, level: Level, vectors: Tensor, settings: NetworkSettings):
        super().__init__()
        self.level = level
        self.block = 0
        self.evidence_weight = nn.Parameter(torch.ones(())) if settings.evidence else None
        dimension = 2 * settings.hidden
        self.encoder = Encoder(
            vectors,
            settings.hidden,
            embedding_dropout=settings.embedding_dropout,
            encoder_dropout=settings.encoder_dropout,
            train_embeddings=settings.train_embeddings,
        )
        self.head = Head(dimension, settings.fully_connected)
        self.attention: LabelAttention | CandidateAttention
        if level.first_child is None:
            self.attention = LabelAttention(level.nodes, dimension)
        else:
            first_child = torch.from_numpy(level.first_child.astype(np.int64))
            self.register_buffer("first_child", first_child, persistent=False)
            self.attention = CandidateAttention(first_child.diff(), dimension)
            self.block = self.attention.block

    def inherit(self, above: "AttentionXML") -> None:
        """Start from the trained parameters of the level above, except attention (paper, "Initialization")."""
        self.encoder.load_state_dict(above.encoder.state_dict())
        self.head.load_state_dict(above.head.state_dict())
        if self.evidence_weight is not None and above.evidence_weight is not None:
            with torch.no_grad():
                self.evidence_weight.copy_(above.evidence_weight)

    @torch.no_grad()
    def place_attention(self, vectors_nD: Tensor) -> None:
        """Set the attention vectors of the level's nodes where `vectors_nD` (float32 [n, D]) isn't zero."""
        weight = self.attention.weight
        chosen = vectors_nD.any(dim=1)
        if self.level.first_child is None:
            weight[chosen] = vectors_nD[chosen]
            return
        counts = self.first_child.diff()
        parents = torch.repeat_interleave(torch.arange(len(counts), device=weight.device), counts)
        places = torch.arange(len(vectors_nD), device=weight.device) - self.first_child[parents]
        blocks = weight.view(len(counts), self.block, -1)
        blocks[parents[chosen], places[chosen]] = vectors_nD[chosen]

    def forward(self, tokens_BT: Tensor, lengths_B: Tensor, parents_BC: Tensor | None = None) -> Tensor:
        """Logits [B, n] of all nodes, or [B, C·K] of the children of `parents_BC`, -inf where there is no child.

        Args:
            tokens_BT: word ids, int, padded with 0 on the right.
            lengths_B: words of each text, int64.
            parents_BC: nodes of the level above, int64; None at a level all of whose nodes are scored.
        """
        states = self.encoder(tokens_BT, lengths_B)
        real = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) < lengths_B[:, None]
        values = self.head.fold(states)
        queries = self.attention() if parents_BC is None else self.attention(parents_BC)
        n, per_node = queries.shape[-2], tokens_BT.numel() + values.shape[0] * values.shape[2]
        chunk = max(1, CHUNK_VALUES // per_node)
        if n <= chunk:
            logits = self._score(queries, states, values, real)
        else:
            parts = queries.split(chunk, dim=-2)
            logits = torch.cat(
                [checkpoint(self._score, part, states, values, real, use_reentrant=False) for part in parts],
                dim=1,
            )
        if parents_BC is None:
            return logits.float()
        return logits.float().masked_fill(~self.exists(parents_BC), float("-inf"))

    def _score(self, queries: Tensor, states: Tensor, values: Tensor, real: Tensor) -> Tensor:
        context, evidence = attend(queries, states, values, real, evidence=self.evidence_weight is not None)
        logits: Tensor = self.head(context)
        if evidence is None or self.evidence_weight is None:
            return logits
        return logits + self.evidence_weight * evidence

    def candidates(self, parents_BC: Tensor) -> Tensor:
        """The candidates of `parents_BC`, int64 [B, C·K]; what `exists` denies is no node."""
        places = torch.arange(self.block, device=parents_BC.device)
        return (self.first_child[parents_BC][:, :, None] + places).flatten(1)

    def exists(self, parents_BC: Tensor) -> Tensor:
        """bool [B, C·K]: which places of the blocks of `parents_BC` hold a child."""
        places = torch.arange(self.block, device=parents_BC.device)
        count = self.first_child[parents_BC + 1] - self.first_child[parents_BC]
        return (places < count[:, :, None]).flatten(1)

    def expand(self, tokens_BT: Tensor, lengths_B: Tensor, beam: Beam | None, keep: int) -> Beam:
        """One step of the beam search (paper, Algorithm 2 of prediction): the best `keep` children of a beam.

        Args:
            tokens_BT: word ids, int, padded with 0 on the right.
            lengths_B: words of each text, int64.
            beam: of the level above; None at a level all of whose nodes are scored.
            keep: nodes kept. Of fewer candidates, the missing ones are -1 with a score of -inf, or left out.
        """
        parents = None if beam is None else beam.nodes
        logits = self(tokens_BT, lengths_B, parents)
        scores = torch.nn.functional.logsigmoid(logits)
        if beam is not None:
            scores = scores + beam.scores.repeat_interleave(scores.shape[1] // beam.nodes.shape[1], dim=1)
        best, places = scores.topk(min(keep, self.level.nodes, scores.shape[1]), dim=1)
        if parents is None:
            return Beam(places, best)
        nodes = self.candidates(parents).gather(1, places)
        return Beam(nodes.masked_fill(best.isneginf(), -1), best)
