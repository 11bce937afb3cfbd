"""Sizes of the levels of a tree.

No tree is built for this: halving gives balanced clusters, so the sizes of the levels follow from the number of labels.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from axml_ray.network.tree_level import Level
from axml_ray.settings import Experiment, TreeSettings
from axml_ray.tree.label_tree import level_depths


@dataclass(frozen=True, kw_only=True)
class LevelShape:
    """Sizes of one level of a tree."""

    number: int
    """Number of the level, from 1 below the root."""
    nodes: int
    rows: int
    """Rows of the label table: one per node at the first level, one per parent at deeper levels."""
    block: int
    """Vectors of a row, K: the most children of a parent."""
    parents: int | None
    """Rows scored for a document, C; None if all are."""

    @property
    def candidates(self) -> int:
        """Number of vectors scored for a document, including unused ones of incomplete blocks."""
        return self.rows if self.parents is None else self.parents * self.block

    def level(self) -> Level:
        """Return a tree level of these sizes, with the children spread evenly over the parents."""
        if self.parents is None:
            return Level(self.number, self.nodes, None)
        return Level(self.number, self.nodes, np.arange(self.rows + 1, dtype=np.int64) * self.nodes // self.rows)


def level_shapes(labels: int, tree: TreeSettings) -> tuple[LevelShape, ...]:
    """Return the sizes of the levels of a tree over `labels` labels, from the top."""
    depths = level_depths(labels, tree.height, tree.cluster_size)
    sizes = [*(2**depth for depth in depths), labels]
    first = LevelShape(number=1, nodes=sizes[0], rows=sizes[0], block=1, parents=None)
    deeper = [
        LevelShape(number=number, nodes=nodes, rows=above, block=-(-nodes // above), parents=min(tree.beam, above))
        for number, (above, nodes) in enumerate(pairwise(sizes), start=2)
    ]
    return first, *deeper


def network_shapes(labels: int, settings: Experiment) -> tuple[LevelShape, ...]:
    """Return the sizes of the levels that have networks: all levels of a tree, or none without `network_tree`."""
    return level_shapes(labels, settings.tree) if "network_tree" in settings.members.chosen else ()
