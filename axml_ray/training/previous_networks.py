"""The start of a level from trained weights of a smaller label tree and vocabulary, instead of fresh ones.

The tree has grown (`tree/growth.py`): old labels have their old ids, and clusters are unchanged. Word ids may differ,
since a vocabulary is ranked by frequency, so word vectors are found by word.

Legend: V words, E embedding dimension, D dimension of the encodings, K children of a parent at most.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from axml_ray.network.fast.frozen import WORDS
from axml_ray.network.level_network import TABLE, LevelNetwork
from axml_ray.training.level_files import read_level
from axml_ray.tree.growth import previous_leaves
from axml_ray.tree.label_tree import LabelTree

NODES_AT_ONCE = 1 << 14
"""Nodes whose vectors are copied at a time."""


@dataclass(frozen=True)
class PreviousNetworks:
    """The trained networks of one label tree from which those of the grown tree continue.

    Attributes:
        directory: directory of the tree's networks, with one directory for each level.
        tree: the old label tree.
        previous_ids: int64 [V], the old id of each word of the new vocabulary, -1 for a new word.
    """

    directory: Path
    tree: LabelTree
    previous_ids: np.ndarray

    def read(self, level: int) -> dict[str, Tensor]:
        """Return the trained weights of a level (numbered from 1) by name, memory-mapped."""
        return read_level(self.directory / f"level-{level}")


@torch.no_grad()
def copy_shared_parameters(network: LevelNetwork, state: Mapping[str, Tensor], previous_ids: np.ndarray) -> None:
    """Copy all trained parameters but the label table; word vectors by word, so that new words keep what they have.

    Args:
        network: network of the level.
        state: trained weights of the same level by name.
        previous_ids: int64 [V], as in `PreviousNetworks`.

    Raises:
        ValueError: a parameter is missing or has another size.
    """
    for name, parameter in network.named_parameters():
        if name == TABLE:
            continue
        trained = state.get(name)
        by_word = name == WORDS
        expected = parameter.shape[1:] if by_word else parameter.shape
        if trained is None or (trained.shape[1:] if by_word else trained.shape) != expected:
            problem = "is missing" if trained is None else f"is of size {list(trained.shape)}"
            raise ValueError(f"{name} {problem} in the trained level, not of size {list(parameter.shape)}")
        if by_word:
            known = np.flatnonzero(previous_ids >= 0)
            rows = trained[torch.from_numpy(previous_ids[known])]
            parameter[torch.from_numpy(known).to(parameter.device)] = rows.to(parameter)
        else:
            parameter.copy_(trained)


def copy_label_vectors(network: LevelNetwork, table: Tensor, old: LabelTree, grown: LabelTree) -> int:
    """Copy the trained vectors of the nodes that the old tree has; those of new labels are unchanged.

    All workers call it; each sets the vectors of its shard.

    Args:
        network: network of a level of the grown tree.
        table: the trained label table of the same level, float32 [rows, K·D].
        old: the old label tree.
        grown: the tree that it grew to.

    Returns:
        The number of vectors that were copied into this shard.
    """
    number, dimension = network.level.number, network.attention.dimension
    held = network.attention.nodes(network.first_child)
    before = previous_leaves(old, grown)[held.numpy()] if number > grown.height else held.numpy()
    known = np.flatnonzero(before >= 0)
    blocks = table.view(len(table), -1, dimension)
    for start in range(0, len(known), NODES_AT_ONCE):
        some = known[start : start + NODES_AT_ONCE]
        nodes = before[some]
        rows, slots = nodes, np.zeros_like(nodes)
        if number > 1:
            first_child = old.first_child[number - 1]
            rows = np.searchsorted(first_child, nodes, side="right") - 1
            slots = nodes - first_child[rows]
        vectors = blocks[torch.from_numpy(rows), torch.from_numpy(slots)]
        device = network.attention.weight.device
        network.set_label_vectors(held[some].to(device), vectors.to(device))
    return len(known)
