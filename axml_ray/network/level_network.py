"""The base class of the networks of a level: label table, candidates, loss, and a step of the beam search.

A network holds the label table of its level, or one shard of it. Texts are encoded independently of labels, so the
encodings that a worker scores may come from another worker.

Everything here is plain PyTorch and autograd; `fast.attention_xml` overrides what it computes faster.

Legend: B documents, T tokens, N candidates, C parents, K children of a parent at most, D dimension of the encodings,
U distinct rows of a table, X values of a row.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.base import Seeds
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.label_table import LabelTable
from axml_ray.network.paper.loss import cross_entropy
from axml_ray.network.sharding import Shard
from axml_ray.network.tree_level import Level
from axml_ray.tree.chain_rule import chain_rule

TABLE = "attention.weight"
"""Name of the parameter that holds the label table, whose rows are sharded over workers."""


@dataclass(frozen=True)
class Beam:
    """The nodes of a level with the highest scores, for each document of a batch.

    Attributes:
        nodes: int64 [B, C], best first; -1 where a document has fewer.
        scores: float32 [B, C], log P(z_n=1 | x) by the chain rule (paper, equation 1), or its departure for a
            `parent_score_exponent` below 1; see `chain_rule`.
    """

    nodes: Tensor
    scores: Tensor

    def top(self, k: int) -> "Beam":
        """Return the best `k` nodes of each document, or all if there are fewer."""
        scores, columns = self.scores.topk(min(k, self.scores.shape[1]), dim=1)
        return Beam(self.nodes.gather(1, columns), scores)


class LevelNetwork(nn.Module, ABC):
    """A network that scores the nodes of a level, or of one shard of it.

    The weight of a parent's score in those of its children is `parent_score_exponent`, 1 in the paper (`chain_rule`).
    """

    first_child: Tensor | None

    def __init__(self, level: Level, dimension: int, shard: Shard, parent_score_exponent: float):
        super().__init__()
        self.level, self.parent_score_exponent = level, parent_score_exponent
        first_child = None if level.first_child is None else torch.from_numpy(level.first_child.astype(np.int64))
        self.register_buffer("first_child", first_child, persistent=False)
        rows = level.nodes if level.first_child is None else len(level.first_child) - 1
        self.attention = LabelTable(level.nodes, rows, level.block_size, dimension, shard)

    @property
    def shard(self) -> Shard:
        """The part of the label table that is held here."""
        return self.attention.shard

    @abstractmethod
    def encode(
        self,
        tokens_BT: Tensor,
        lengths_B: Tensor,
        unique_ids: tuple[Tensor, Tensor] | None = None,
        seeds: Seeds | None = None,
    ) -> Tensor:
        """Return the encodings of texts, [B, T, D], or [B, 1, D] of networks with one vector for each text.

        Args:
            tokens_BT: word ids, int, padded with 0 on the right.
            lengths_B: words of each text, int64, at least 1.
            unique_ids: int64 [U], the distinct ids in `tokens_BT`, and int64 [B·T], the position in them of each token.
                Computed here if None.
            seeds: the dropout seed of each text in training, [B]; drawn at random if None.
        """

    @abstractmethod
    def score(self, encodings: Tensor, lengths_B: Tensor, queries: Tensor) -> Tensor:
        """Return the logit of each candidate, [B, N], given the candidates' vectors: [B, N, D], or [N, D] for all."""

    @abstractmethod
    def initialise_output_bias(self, positive_rate: float) -> None:
        """Set the output bias so that the network starts by predicting `positive_rate` for every node."""

    def shared_parameters(self) -> dict[str, Tensor]:
        """Return all parameters but the label table, by name; levels pass them on to each other."""
        return {name: parameter.detach() for name, parameter in self.named_parameters() if name != TABLE}

    @torch.no_grad()
    def initialise_from_parent_level(self, shared: Mapping[str, Tensor]) -> None:
        """Copy the `shared_parameters` of the trained level above (paper, section 2.5)."""
        for name, parameter in self.named_parameters():
            if name != TABLE:
                parameter.copy_(shared[name])

    def set_label_vectors(self, nodes: Tensor, vectors_nD: Tensor) -> None:
        """Overwrite the vectors (float32 [n, D]) of some nodes (int64 [n]), all of which must be held here."""
        self.attention.set_vectors(nodes, self.first_child, vectors_nD)

    def loss(
        self,
        encodings: Tensor,
        lengths_B: Tensor,
        positives: Tensor,
        denominator: float,
        candidates: Candidates | None = None,
        gradient_scale: Tensor | None = None,
    ) -> Tensor:
        """Return the summed binary cross-entropy of the nodes scored here, divided by `denominator`.

        Args:
            encodings: encodings of the texts.
            lengths_B: words of each text, int64.
            positives: int64 [2, P], the document of each true node, and its row of the table or its slot among C·K.
            denominator: number of candidates of all documents in all shards, so that shards' losses add up to the mean.
            candidates: the candidates of each document; None at the first level.
            gradient_scale: scalar by which all gradients, but not the loss, are multiplied; None for one.
        """
        with full_precision(encodings.device):
            logits_BN = self.score(encodings, lengths_B, self._queries(candidates, encodings.dtype))
            loss = cross_entropy(logits_BN, positives, None if candidates is None else candidates.exists, denominator)
        if gradient_scale is not None:
            # The second term is zero, and carries the gradient.
            loss = loss.detach() + (loss - loss.detach()) * gradient_scale
        return loss

    def logits(self, encodings: Tensor, lengths_B: Tensor, candidates: Candidates | None = None) -> Tensor:
        """Return the logits, float32 or wider: [B, N] of the table's rows, or [B, C·K] of the candidates' slots.

        A slot without a child has -inf. Arguments are as in `loss`.
        """
        with full_precision(encodings.device):
            logits_BN = self.score(encodings, lengths_B, self._queries(candidates, encodings.dtype))
        return logits_BN if candidates is None else logits_BN.masked_fill(~candidates.exists, float("-inf"))

    def _queries(self, candidates: Candidates | None, dtype: torch.dtype) -> Tensor:
        """Return the vectors ŵ_j of all nodes held here, [N, D], or of each document's candidates, [B, C·K, D]."""
        table = self.attention.weight
        if candidates is None:
            return table.to(dtype)
        if candidates.rows is None:  # in prediction, `row_index` indexes the table itself
            blocks = functional.embedding(candidates.row_index, table)
        else:
            blocks = read_rows(table, candidates.rows, candidates.row_index)
        # A row holds the vectors of K siblings, so that viewing it as [K, D] gives the children's queries.
        return blocks.to(dtype).view(len(blocks), -1, self.attention.dimension)

    def expand(
        self,
        encodings_BTD: Tensor,
        lengths_B: Tensor,
        candidates: Candidates | None,
        parent_scores_BC: Tensor | None,
        keep: int,
    ) -> Beam:
        """Do one step of the beam search: return the best children, held here, of a beam (paper, algorithm 4).

        Args:
            encodings_BTD: encodings of the texts.
            lengths_B: words of each text, int64.
            candidates: made from the beam's nodes; None at the first level.
            parent_scores_BC: float32, scores of the beam; None at the first level.
            keep: most nodes to return. If a document has fewer candidates, its beam ends in nodes of -1 with a score of
                -inf, or is narrower.
        """
        log_conditional = functional.logsigmoid(self.logits(encodings_BTD, lengths_B, candidates))
        if candidates is None or parent_scores_BC is None:
            scores, rows = log_conditional.topk(min(keep, log_conditional.shape[1]), dim=1)
            return Beam(rows * self.shard.count + self.shard.rank, scores)
        # One score for each slot of a parent's block.
        log_parent = parent_scores_BC.gather(1, candidates.beam_columns)
        log_parent = log_parent.repeat_interleave(self.attention.block_size, dim=1)
        scores = chain_rule(log_conditional, log_parent, self.parent_score_exponent)
        scores, slots = scores.topk(min(keep, scores.shape[1]), dim=1)
        nodes = self.children_of(candidates.parents).gather(1, slots)
        return Beam(nodes.masked_fill(scores.isneginf(), -1), scores)

    def children_of(self, parents_BC: Tensor) -> Tensor:
        """Return the node of each slot of the parents' blocks, int64 [B, C·K]; meaningless where there is no child."""
        assert self.first_child is not None
        siblings = torch.arange(self.attention.block_size, device=parents_BC.device)
        return (self.first_child[parents_BC][:, :, None] + siblings).flatten(1)


def read_rows(table: Tensor, rows_U: Tensor, row_index: Tensor) -> Tensor:
    """Return `table[rows_U][row_index]`, [..., X]; the table's gradient is sparse, with one entry for each of `rows_U`.

    Lazy Adam then updates only the rows that a step read. Gradients of a row are summed in the table's own format.

    `rows_U` are ascending and distinct; without any, `row_index` is 0 everywhere and the result is zero.
    """
    rows_UX = functional.embedding(rows_U, table, sparse=True)
    if not len(rows_U):  # a shard that holds no candidate of the batch
        rows_UX = functional.pad(rows_UX, (0, 0, 0, 1))
    return functional.embedding(row_index, rows_UX)


def full_precision(device: torch.device) -> torch.autocast:
    """Return a context in which products are computed in the format of their operands, also under autocast."""
    return torch.autocast(backend_for(device).device_type, enabled=False)
