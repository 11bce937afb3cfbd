"""The level of a label tree whose nodes a network scores."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from axml_ray.tree.label_tree import LabelTree


@dataclass(frozen=True)
class Level:
    """One level of a label tree.

    Attributes:
        number: d in the paper, counted from 1 for the children of the root.
        nodes: number of nodes at the level.
        first_child: int64 [P + 1]; the children of node p of the level above are nodes first_child[p] to
            first_child[p + 1] - 1 of this level. None at the first level, where every node is scored for every text.
    """

    number: int
    nodes: int
    first_child: np.ndarray | None

    @classmethod
    def from_tree(cls, tree: LabelTree, number: int) -> "Level":
        """Return level `number` (from 1) of `tree`."""
        above = tree.first_child[number - 1] if number > 1 else None
        return cls(number, tree.level_sizes[number - 1], above)

    @cached_property
    def block_size(self) -> int:
        """K, the most children that a node of the level above has; 1 at the first level."""
        return 1 if self.first_child is None else int(np.diff(self.first_child).max())

    def children_counts(self, parents: np.ndarray) -> np.ndarray:
        """Return the number of children of each of `parents` (nodes of the level above), 0 for a parent of -1."""
        assert self.first_child is not None
        return np.where(parents >= 0, self.first_child[parents + 1] - self.first_child[parents], 0)
