"""A level, and which of its nodes are scored for each document: the children of some nodes of the level above.

Siblings are contiguous, so candidates travel as their parents, and a shard of a level's table is one of parents. All
of this is numpy, made with the batches, ahead of the network.

Legend: B documents, C parents, K children a parent at most, U distinct parents.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from axml_ray.network.rows import WHOLE, Shard
from axml_ray.tree.label_tree import LabelTree


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

    @cached_property
    def block(self) -> int:
        """K: most children of a node of the level above; 1 where all nodes are scored."""
        return 1 if self.first_child is None else int(np.diff(self.first_child).max())

    def children(self, parents: np.ndarray) -> np.ndarray:
        """How many children some nodes of the level above have; 0 for -1."""
        assert self.first_child is not None
        return np.where(parents >= 0, self.first_child[parents + 1] - self.first_child[parents], 0)


@dataclass(frozen=True)
class Candidates:
    """What one shard scores for each document of a batch.

    Attributes:
        parents: int64 [B, C], nodes of the level above that the shard holds; -1 where a document has fewer.
        columns: int64 [B, C], where each stood among all of the document's parents.
        rows: int64 [U], the rows of the shard's table that hold them.
        places: int64 [B, C], which of `rows` holds which parent; 0 for none.
        exists: bool [B, C·K], the places of the parents' blocks that hold a child.
    """

    parents: Tensor
    columns: Tensor
    rows: Tensor
    places: Tensor
    exists: Tensor

    @classmethod
    def of(cls, parents: np.ndarray, level: Level, shard: Shard = WHOLE) -> "Candidates":
        """A shard's candidates.

        Args:
            parents: int [B, C], all candidates' parents of each document, distinct; -1 for none.
            level: whose nodes are scored.
            shard: which of the parents.
        """
        columns = np.tile(np.arange(parents.shape[1]), (len(parents), 1))
        parents = parents.astype(np.int64)
        if shard.count > 1:
            own = (parents >= 0) & (parents % shard.count == shard.rank)
            width = max(1, int(own.sum(axis=1).max(initial=0)))
            columns = np.argsort(~own, axis=1, kind="stable")[:, :width]
            parents = np.take_along_axis(np.where(own, parents, -1), columns, axis=1)
        rows, places = np.unique(parents // shard.count, return_inverse=True)
        if len(rows) and rows[0] < 0:  # no candidate, no row: Adam moves each row that a step names
            rows, places = rows[1:], np.maximum(places - 1, 0)
        exists = np.arange(level.block) < level.children(parents)[:, :, None]
        arrays = parents, columns, rows, places.reshape(parents.shape), exists.reshape(len(parents), -1)
        return cls(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))

    def positives(self, level: Level, documents: np.ndarray, nodes: np.ndarray) -> Tensor:
        """int64 [2, ≤ n]: document and place among its C·K of each true node that is a candidate.

        Args:
            level: as above.
            documents: int64 [n], which document a node is true of.
            nodes: int64 [n], true nodes.
        """
        first_child = level.first_child
        assert first_child is not None
        parent = np.searchsorted(first_child, nodes, side="right") - 1
        which, column = np.nonzero(self.parents.numpy()[documents] == parent[:, None])
        place = column * level.block + nodes[which] - first_child[parent[which]]
        return torch.from_numpy(np.stack([documents[which], place]))

    def to(self, device: torch.device) -> "Candidates":
        """The same on another device."""
        return Candidates(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))
