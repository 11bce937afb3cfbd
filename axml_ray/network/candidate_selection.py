"""Candidate selection: the nodes of a level that are scored for each text (g(x) in the paper, section 2.3).

Below the first level a text is scored against the children of C nodes of the level above only. Siblings are
contiguous in the tree, so candidates are passed around as their C parents instead of C·K children, and a parent is also
the unit by which the label table is stored (`LabelTable`) and sharded over workers (`Shard`).

The arrays are prepared with numpy by the threads that prepare batches, so that the device does not wait for them.

Legend: B documents, C parents, K children of a parent at most, U distinct parents.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from axml_ray.network.backends.backend import backend_for
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level


@dataclass(frozen=True)
class Candidates:
    """The candidates of each document of a batch that one shard of the label table holds.

    A document's candidates are laid out as C blocks of K slots, one block for each parent and one slot for each child.
    A parent with fewer than K children leaves the last slots of its block empty.

    Attributes:
        parents: int64 [B, C], nodes of the level above that the shard holds; -1 where a document has fewer than C.
        beam_columns: int64 [B, C], the column of each parent in the unsharded list of the document's parents.
        rows: int64 [U], the distinct rows of the shard's label table that the batch reads, ascending; None if
            `row_index` indexes the table itself, as in prediction on a GPU.
        row_index: int64 [B, C], the position in `rows` of each parent's row; 0 where `parents` is -1.
        exists: bool [B, C·K], whether a slot holds a child.
    """

    parents: Tensor
    beam_columns: Tensor
    rows: Tensor | None
    row_index: Tensor
    exists: Tensor

    @classmethod
    def from_parents(cls, parents: np.ndarray, level: Level, shard: Shard = WHOLE) -> "Candidates":
        """Select the candidates that a shard scores, on the CPU: in training, while the device computes.

        Args:
            parents: int [B, C], the parents of each document's candidates, without repeats; -1 for none.
            level: the level whose nodes are scored.
            shard: the part of the parents to select.
        """
        beam_columns = np.tile(np.arange(parents.shape[1]), (len(parents), 1))
        parents = parents.astype(np.int64)
        if shard.count > 1:
            is_local = (parents >= 0) & (parents % shard.count == shard.rank)
            width = max(1, int(is_local.sum(axis=1).max(initial=0)))
            # A stable sort by "not mine" moves the shard's own parents to the left and keeps their order.
            beam_columns = np.argsort(~is_local, axis=1, kind="stable")[:, :width]
            parents = np.take_along_axis(np.where(is_local, parents, -1), beam_columns, axis=1)
        # Row r of the shard's table is node r · count + rank, so // undoes it; -1 // count stays -1.
        rows, row_index = np.unique(parents // shard.count, return_inverse=True)
        if len(rows) and rows[0] < 0:
            # A missing parent must not name a row: Adam moves every row that has a gradient, even a zero one.
            rows, row_index = rows[1:], np.maximum(row_index - 1, 0)
        exists = np.arange(level.block_size) < level.children_counts(parents)[:, :, None]
        arrays = parents, beam_columns, rows, row_index.reshape(parents.shape), exists.reshape(len(parents), -1)
        return cls(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))

    @classmethod
    def from_beam(cls, parents: Tensor, level: Level, first_child: Tensor) -> "Candidates":
        """Select the same candidates of a whole table, on the device of the beam: in prediction.

        `parents` are int64 [B, C], distinct in each row, -1 for none; `first_child` is the level's, on their device.
        """
        if not backend_for(parents.device).runs_ahead:
            return cls.from_parents(parents.numpy(), level)
        # Index the table itself: finding the distinct rows would make the CPU wait for their number.
        row_index = parents.clamp(min=0)
        counts = (first_child[row_index + 1] - first_child[row_index]).masked_fill(parents < 0, 0)
        exists = torch.arange(level.block_size, device=parents.device) < counts[..., None]
        beam_columns = torch.arange(parents.shape[1], device=parents.device).expand(parents.shape)
        return cls(parents, beam_columns, None, row_index, exists.flatten(1))

    def positives(self, level: Level, documents: np.ndarray, nodes: np.ndarray) -> Tensor:
        """Locate true nodes among the candidates; true nodes that are no candidates are left out.

        Args:
            level: the level that the candidates were selected for.
            documents: int64 [n], the document that each true node belongs to.
            nodes: int64 [n], true nodes of the level.

        Returns:
            int64 [2, at most n]: the document, and the slot among its C·K, of each true node that is a candidate.
        """
        first_child = level.first_child
        assert first_child is not None
        parent = np.searchsorted(first_child, nodes, side="right") - 1
        which, column = np.nonzero(self.parents.numpy()[documents] == parent[:, None])
        # Block `column` starts at slot column · K; a child's slot in it is its number among its siblings.
        slot = column * level.block_size + nodes[which] - first_child[parent[which]]
        return torch.from_numpy(np.stack([documents[which], slot]))

    def to(self, device: torch.device) -> "Candidates":
        """Return a copy whose tensors are on `device`."""
        rows = None if self.rows is None else self.rows.to(device)
        return Candidates(
            self.parents.to(device),
            self.beam_columns.to(device),
            rows,
            self.row_index.to(device),
            self.exists.to(device),
        )
