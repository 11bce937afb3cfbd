"""The table of attention parameters ŵ_j, one vector for each node of a level, or one shard of it (paper, equation 2).

The first level has one row for each node. Below it, siblings are stored as one block: a row belongs to a node of the
level above and holds the vectors of its K children, with unused vectors where it has fewer. Reading the candidates of a
document is then C reads of K·D contiguous values instead of C·K reads of D.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from axml_ray.network.sharding import WHOLE, Shard, uniform_rows


class LabelTable(nn.Module):
    """The attention parameters of a level: float32 [rows of the shard, K·D].

    Args:
        nodes: nodes of the level, in all shards.
        rows: rows of the table, in all shards: nodes at the first level, below it nodes of the level above.
        block_size: K, nodes of a row at most.
        dimension: D, length of a vector.
        shard: the rows that are held here.
    """

    def __init__(self, nodes: int, rows: int, block_size: int, dimension: int, shard: Shard = WHOLE):
        super().__init__()
        self.rows, self.block_size, self.dimension, self.shard = rows, block_size, dimension, shard
        # Xavier's bound for the nodes alone: unused vectors must not make the others smaller.
        bound = (6 / (nodes + dimension)) ** 0.5
        self.weight = nn.Parameter(uniform_rows(rows, block_size * dimension, bound, shard))

    def vectors(self, nodes: Tensor, first_child: Tensor | None) -> Tensor:
        """Return the vectors of some nodes, all of which this shard must hold.

        `nodes` are int64 of any shape [...], and the result is [..., D]. Here and below, `first_child` is that of the
        level, int64 [P + 1], or None at the first one.
        """
        row, slot = self._locate(nodes, first_child)
        blocks = functional.embedding(row, self.weight).unflatten(-1, (self.block_size, self.dimension))
        return blocks.take_along_dim(slot[..., None, None], dim=-2).squeeze(-2)

    @torch.no_grad()
    def set_vectors(self, nodes: Tensor, first_child: Tensor | None, vectors: Tensor) -> None:
        """Overwrite the vectors (float32 [n, D]) of some nodes (int64 [n]), all of which this shard must hold."""
        row, slot = self._locate(nodes, first_child)
        table = self.weight.view(len(self.weight), self.block_size, self.dimension)
        table[row, slot] = vectors.to(table)

    def _locate(self, nodes: Tensor, first_child: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the row of this shard, and the slot in its block, of each node."""
        if first_child is None:
            return nodes // self.shard.count, torch.zeros_like(nodes)
        # The parent is the last one whose children begin at or before the node.
        parent = torch.searchsorted(first_child, nodes, right=True) - 1
        return parent // self.shard.count, nodes - first_child[parent]

    def nodes(self, first_child: Tensor | None) -> Tensor:
        """Return the nodes that this shard holds, int64, in the order of its rows and slots."""
        held = self.shard.ids(self.rows)
        if first_child is None:
            return held
        counts = first_child.diff().cpu()[held]
        ends = counts.cumsum(0)
        # 0, 1, ..., count - 1 within each row: a running number less where its row begins.
        sibling = torch.arange(int(ends[-1]) if len(ends) else 0) - torch.repeat_interleave(ends - counts, counts)
        return torch.repeat_interleave(first_child.cpu()[:-1][held], counts) + sibling
