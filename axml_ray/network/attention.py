"""The attention vectors of a level, or one shard of them (paper, equation 2).

A level all of whose nodes are scored has a row a node. The nodes of a deep level are stored as blocks of siblings: a
row is a node of the level above and holds the vectors of its K children, filled up with unused ones where it has
fewer. A document's candidates are then C rows, not C·K.
"""

import torch
from torch import Tensor, nn

from axml_ray.network.rows import WHOLE, Shard, uniform_rows


class LabelTable(nn.Module):
    """One vector a node, [rows, K·D].

    Args:
        nodes: of the level, in all shards.
        rows: of the table, in all shards: nodes, or nodes of the level above.
        block: K, nodes of a row at most.
        dimension: D.
        shard: which rows are held here.
    """

    def __init__(self, nodes: int, rows: int, block: int, dimension: int, shard: Shard = WHOLE):
        super().__init__()
        self.rows, self.block, self.dimension, self.shard = rows, block, dimension, shard
        # Xavier's bound, of the nodes alone: as if the table had no unused vectors
        bound = (6 / (nodes + dimension)) ** 0.5
        self.weight = nn.Parameter(uniform_rows(rows, block * dimension, bound, shard))

    @torch.no_grad()
    def place(self, nodes: Tensor, first_child: Tensor | None, vectors: Tensor) -> None:
        """Set the vectors of some nodes, of which this shard holds every one.

        Args:
            nodes: int64 [n].
            first_child: int64 [P + 1], children of each node of the level above; None where all nodes are scored.
            vectors: [n, D].
        """
        parent = nodes if first_child is None else torch.searchsorted(first_child, nodes, right=True) - 1
        place = torch.zeros_like(nodes) if first_child is None else nodes - first_child[parent]
        table = self.weight.view(len(self.weight), self.block, self.dimension)
        table[parent // self.shard.count, place] = vectors.to(table)

    def vectors(self, nodes: Tensor, first_child: Tensor | None) -> Tensor:
        """The vectors of some nodes (int64 [n]), of which this shard holds every one: [n, D]."""
        parent = nodes if first_child is None else torch.searchsorted(first_child, nodes, right=True) - 1
        place = torch.zeros_like(nodes) if first_child is None else nodes - first_child[parent]
        return self.weight.view(len(self.weight), self.block, self.dimension)[parent // self.shard.count, place]

    def nodes(self, first_child: Tensor | None) -> Tensor:
        """int64: the nodes that this shard holds, in its order."""
        held = self.shard.ids(self.rows)
        if first_child is None:
            return held
        counts = first_child.diff().cpu()[held]
        ends = counts.cumsum(0)
        within = torch.arange(int(ends[-1]) if len(ends) else 0) - torch.repeat_interleave(ends - counts, counts)
        return torch.repeat_interleave(first_child.cpu()[:-1][held], counts) + within
