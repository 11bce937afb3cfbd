"""What the networks of a level have in common: an encoder of texts, a table of labels, a step of the beam search.

A network holds all labels of its level, or one shard of them; texts are encoded without regard to labels, so encodings
may come from another worker than the one that scores them.

Legend: B documents, T tokens, n nodes scored, C parents, K children a parent at most, D of the encodings.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from axml_ray.network.attention import LabelTable
from axml_ray.network.candidates import Candidates, Level
from axml_ray.network.one_pass import Pass, Scorer, level_logits, level_loss
from axml_ray.network.rows import Shard

TABLE = "attention.weight"
"""Name of the parameter whose rows are sharded."""


@dataclass(frozen=True)
class Beam:
    """The best nodes of a level for each of some documents.

    Attributes:
        nodes: int64 [B, C], best first; -1 where there are fewer.
        scores: float32 [B, C], log of the node's own probability plus `path_weight` times its parent's score, so that 1
            is the probability along the path from the root (paper, equation 1).
    """

    nodes: Tensor
    scores: Tensor

    def best(self, keep: int) -> "Beam":
        """The best `keep` of them, or all."""
        scores, places = self.scores.topk(min(keep, self.scores.shape[1]), dim=1)
        return Beam(self.nodes.gather(1, places), scores)


class LevelNetwork(nn.Module, ABC):
    """A network that scores the nodes of a level, or one shard of them.

    Args:
        level: the nodes to tell apart.
        dimension: D.
        shard: which of the table's rows are held here.
        path_weight: how much the scores of a beam count in those of its children.
    """

    first_child: Tensor | None

    def __init__(self, level: Level, dimension: int, shard: Shard, path_weight: float):
        super().__init__()
        self.level, self.path_weight = level, path_weight
        first_child = None if level.first_child is None else torch.from_numpy(level.first_child.astype(np.int64))
        self.register_buffer("first_child", first_child, persistent=False)
        rows = level.nodes if level.first_child is None else len(level.first_child) - 1
        self.attention = LabelTable(level.nodes, rows, level.block, dimension, shard)

    @property
    def shard(self) -> Shard:
        """Which of the table's rows are held here."""
        return self.attention.shard

    @abstractmethod
    def encode(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        words: tuple[Tensor, Tensor] | None = None,
        seeds: np.ndarray | None = None,
    ) -> Tensor:
        """Encodings of some texts, [B, T', D], of which the first `encoded(lengths_B)` of T' count.

        Args:
            tokens_BT: word ids, int, padded with 0 on the right.
            lengths_B: words of each text, int64, at least 1.
            words: the distinct ids of `tokens_BT` and which of them stands where, int64 [U] and [B·T].
            seeds: int64 [B], of each text's dropout in training; by default drawn.
        """

    @abstractmethod
    def encoded(self, lengths_B: Tensor) -> Tensor:
        """How many rows of an encoding count, int64 [B]."""

    @abstractmethod
    def scorer(self) -> Scorer:
        """From attention scores to logits; a new one for each pass."""

    @abstractmethod
    def values(self, encodings_BTD: Tensor) -> Tensor:
        """What is averaged over tokens, [B, T', F]."""

    @abstractmethod
    def expect(self, rate: float) -> None:
        """Start at a share `rate` of true labels."""

    def handed_down(self) -> dict[str, Tensor]:
        """All parameters but the table."""
        return {name: parameter.detach() for name, parameter in self.named_parameters() if name != TABLE}

    @torch.no_grad()
    def inherit(self, above: Mapping[str, Tensor]) -> None:
        """Start from what the level above handed down: all but attention (paper, "Initialization")."""
        for name, parameter in self.named_parameters():
            if name != TABLE:
                parameter.copy_(above[name])

    def place_attention(self, nodes: Tensor, vectors_nD: Tensor) -> None:
        """Set the vectors of some nodes, all held here: int64 [n], float32 [n, D]."""
        self.attention.place(nodes, self.first_child, vectors_nD)

    def loss(
        self,
        encodings_BTD: Tensor,
        lengths_B: Tensor,
        positives: Tensor,
        count: float,
        candidates: Candidates | None = None,
    ) -> Tensor:
        """Summed binary cross-entropy of the nodes scored here, divided by `count`.

        Args:
            encodings_BTD: of the texts.
            lengths_B: words of each text, int64.
            positives: int64 [2, P], document and place of each true node: a row of the table, or one of C·K.
            count: candidates of all documents in all shards.
            candidates: what is scored for each document; None at a level all of whose nodes are.
        """
        return level_loss(self._pass(encodings_BTD, lengths_B, candidates, positives, count))

    def logits(self, encodings_BTD: Tensor, lengths_B: Tensor, candidates: Candidates | None = None) -> Tensor:
        """Logits, float32 [B, n] of the table's rows, or [B, C·K] of candidates, -inf where there is no child."""
        return level_logits(self._pass(encodings_BTD, lengths_B, candidates, None, 1.0))

    def _pass(
        self,
        encodings: Tensor,
        lengths: Tensor,
        candidates: Candidates | None,
        positives: Tensor | None,
        count: float,
    ) -> Pass:
        table, values = self.attention.weight, self.values(encodings)
        return Pass(self.scorer(), encodings, values, self.encoded(lengths), table, candidates, positives, count)

    def expand(
        self,
        encodings_BTD: Tensor,
        lengths_B: Tensor,
        candidates: Candidates | None,
        above_BC: Tensor | None,
        keep: int,
    ) -> Beam:
        """One step of the beam search (paper, prediction of AttentionXML): the best children of a beam, held here.

        Args:
            encodings_BTD: of the texts.
            lengths_B: words of each text, int64.
            candidates: made from the beam's nodes; None at a level all of whose nodes are scored.
            above_BC: float32, scores of the beam.
            keep: nodes kept. Of fewer candidates, the missing ones are -1 with a score of -inf, or left out.
        """
        scores = torch.nn.functional.logsigmoid(self.logits(encodings_BTD, lengths_B, candidates))
        if candidates is None or above_BC is None:
            best, places = scores.topk(min(keep, scores.shape[1]), dim=1)
            return Beam(places * self.shard.count + self.shard.rank, best)
        if self.path_weight:
            above = self.path_weight * above_BC.gather(1, candidates.columns)
            scores = scores + above.repeat_interleave(self.attention.block, dim=1)
        best, places = scores.topk(min(keep, scores.shape[1]), dim=1)
        nodes = self.children_of(candidates.parents).gather(1, places)
        return Beam(nodes.masked_fill(best.isneginf(), -1), best)

    def children_of(self, parents_BC: Tensor) -> Tensor:
        """int64 [B, C·K]: the nodes in the places of the blocks of `parents_BC`; some places may hold none."""
        assert self.first_child is not None
        places = torch.arange(self.attention.block, device=parents_BC.device)
        return (self.first_child[parents_BC][:, :, None] + places).flatten(1)
