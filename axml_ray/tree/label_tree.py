"""The shallow and wide probabilistic label tree (paper, section 2.2, algorithms 1 and 2).

- **Levels are numbered as in the paper**: the root is level 0, levels 1 to H hold clusters, level H + 1 holds
  the leaves, one for each label.
- **Siblings are contiguous.** The children of a node are one range of the next level, so a level is one array of
  offsets, and candidates can be given by their parents.
- **Compressing is choosing depths.** The halvings of `clustering` are a complete binary tree, of which algorithm 1
  keeps all nodes of some depths (`level_depths`). So no deep tree is built only to be compressed.
- **A level that would consist of the root is left out**, so a tree of few labels may be lower than asked for.
- **A saved tree is a safetensors file**, written atomically and checked when it is opened.

Legend: L labels, F features, H levels of clusters, n_d nodes of level d, K most children, N documents.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as safetensors_bytes
from scipy import sparse

from axml_ray.core.files import whole_file
from axml_ray.core.ragged import distinct
from axml_ray.tree.clustering import balanced_clusters, normalise_rows
from axml_ray.tree.halving import MapFunction
from axml_ray.tree.subtree import cluster_offsets

_METADATA = {"format": "axml-ray label tree", "version": "1"}
DOCUMENTS_AT_ONCE = 1 << 12
"""Number of documents whose nodes are computed together: the temporary arrays are several times as large as labels."""


def level_depths(labels: int, height: int, cluster_size: int) -> tuple[int, ...]:
    """Return the depths of the binary tree that become levels 1, 2, ... of the compressed tree (paper, algorithm 1).

    The deepest is S_0, the parents of leaves: the smallest x with ceil(labels / 2**x) <= cluster_size. Each level above
    it, the c-th ancestors of the paper, is c = log2(cluster_size) less deep. Depths of zero and less are left out, as
    they are the root.

    Example: level_depths(670_091, 3, 8) is (11, 14, 17): 2,048, 16,384 and 131,072 nodes.

    Args:
        labels: L, at least 1.
        height: H, the number of levels of clusters to ask for; 0 is a flat tree.
        cluster_size: K = M, a power of two, at least 2: most children of a node other than the root.

    Returns:
        At most `height` depths, ascending.

    Raises:
        ValueError: an argument is out of its range.
    """
    if labels < 1:
        raise ValueError(f"a tree needs at least 1 label, got {labels}: check that the corpus has labels")
    if height < 0:
        raise ValueError(f"height is {height}: use 0 for a flat tree, or a positive number of levels")
    if cluster_size < 2 or cluster_size & (cluster_size - 1):
        below = 1 << (max(cluster_size, 2).bit_length() - 1)
        raise ValueError(f"cluster_size is {cluster_size}, not a power of two: use {below} or {2 * below}")
    deepest = 0
    while -(-labels // 2**deepest) > cluster_size:
        deepest += 1
    step = cluster_size.bit_length() - 1
    return tuple(depth for depth in range(deepest - (height - 1) * step, deepest + 1, step) if depth > 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelTree:
    """A tree of clusters of labels, level by level; the module's docstring says how levels are numbered.

    A tree of 5 labels and one level of two clusters {3, 0} and {1, 2, 4}: label_order [3, 0, 1, 2, 4],
    first_child ([0, 2], [0, 2, 5]), level_sizes (2, 5).

    Raises:
        ValueError: the arrays do not describe a tree; the message says which entry is wrong.
    """

    label_order: np.ndarray
    """int32 [L], the label of each leaf; leaves are numbered from left to right."""

    first_child: tuple[np.ndarray, ...]
    """H + 1 arrays int64 [n_d + 1], d = 0 to H; the children of node i of level d are nodes
    `first_child[d][i]` to `first_child[d][i + 1] - 1` of level d + 1."""

    def __post_init__(self) -> None:
        _check_structure(self.label_order, self.first_child)

    @classmethod
    def build(
        cls,
        features: sparse.csr_array,
        *,
        height: int,
        cluster_size: int,
        seed: int,
        threads: int = 1,
        parallel_map: MapFunction | None = None,
    ) -> Self:
        """Cluster labels by their features and compress the clusters into a shallow and wide tree.

        Args:
            features: [L, F], sparse, one row for each label, of any length; rows may be empty.
            height: H, the number of levels of clusters to ask for. 0 is a flat tree: no clustering, leaf i is label i.
            cluster_size: K = M, a power of two: most children of a node other than the root.
            seed: not negative; the same seed gives the same tree.
            threads: number of threads, as in `balanced_clusters`; the tree does not depend on it.
            parallel_map: maps tasks over processes, likewise.

        Returns:
            A tree of `height` levels of clusters, or of fewer if the highest of them would consist of the root.

        Raises:
            ValueError: an argument is out of its range, or a feature is not finite.
        """
        labels = features.shape[0]
        depths = level_depths(labels, height, cluster_size)
        if not depths:
            return cls.from_cuts(np.arange(labels), [])
        with ThreadPoolExecutor(threads) as pool:
            rows = [normalise_rows(features, pool.map)]
        # Popped, so that no reference remains here and the matrix is freed when its first halves exist.
        order, _ = balanced_clusters(rows.pop(), depths[-1], seed, threads=threads, parallel_map=parallel_map)
        return cls.from_cuts(order, [cluster_offsets(labels, depth) for depth in depths])

    @classmethod
    def from_cuts(cls, label_order: np.ndarray, cuts: Sequence[np.ndarray]) -> Self:
        """Make a tree whose clusters are runs of labels.

        Args:
            label_order: integer [L], the label of each leaf.
            cuts: for levels 1 to H, int64 [n_d + 1], where the clusters of the level start in `label_order`, and L.
                Each level has the starts of the level above among its own. A level with no more clusters than the one
                above, or with one for each label, is left out.

        Example: from_cuts([3, 0, 1, 2, 4], [[0, 2, 5]]) is the tree of the class's example.

        Raises:
            ValueError: a level does not have the starts of the level above among its own.
        """
        labels = len(label_order)
        levels = [np.array([0, labels], dtype=np.int64)]
        for starts in cuts:
            if len(levels[-1]) < len(starts) <= labels:
                levels.append(np.asarray(starts, dtype=np.int64))
        levels.append(np.arange(labels + 1, dtype=np.int64))
        if not all(np.isin(above, below).all() for above, below in pairwise(levels)):
            raise ValueError("each level of cuts must have the starts of the level above among its own")
        first_child = tuple(np.searchsorted(below, above) for above, below in pairwise(levels))
        return cls(label_order=np.asarray(label_order, dtype=np.int32), first_child=first_child)

    @property
    def height(self) -> int:
        """H, the number of levels between the root and the leaves."""
        return len(self.first_child) - 1

    @property
    def level_sizes(self) -> tuple[int, ...]:
        """The number of nodes of levels 1 to H + 1: (n_1, ..., n_H, L)."""
        return tuple(int(offsets[-1]) for offsets in self.first_child)

    @cached_property
    def leaf_of_label(self) -> np.ndarray:
        """int32 [L], the leaf of each label: the inverse of label_order."""
        leaves = np.empty_like(self.label_order)
        leaves[self.label_order] = np.arange(len(leaves), dtype=np.int32)
        return leaves

    def paths(self, labels: np.ndarray) -> list[np.ndarray]:
        """Return Path(n) of equation 1 for the leaves of some labels: their ancestors and the leaves themselves.

        Args:
            labels: integer [n], below L, in any order.

        Returns:
            For levels 1 to H + 1, int64 [n], the node of each label.
        """
        nodes = [self.leaf_of_label[labels].astype(np.int64)]
        # Upwards from the leaves; the root, level 0, is in no path.
        for first_child in self.first_child[:0:-1]:
            nodes.insert(0, np.searchsorted(first_child, nodes[0], side="right") - 1)
        return nodes

    def parents(self, level: int) -> np.ndarray:
        """Return the parent, at level - 1, of each node of a level from 1 to H + 1: int32 [n_level]."""
        self._check_level(level, lowest=1, highest=self.height + 1)
        sizes = np.diff(self.first_child[level - 1])
        return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)

    def max_children(self, level: int) -> int:
        """Return the most children that a node of a level from 0 (the root) to H has."""
        self._check_level(level, lowest=0, highest=self.height)
        return int(np.diff(self.first_child[level]).max())

    def node_labels(self, level: int, labels: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the nodes of a level with z_n = 1 for each document: its labels' ancestors (paper, algorithm 2).

        At level H + 1 these are the leaves of the labels. Labels of L and above, which are those without training
        documents, have no leaf and are ignored.

        Args:
            level: 1 to H + 1.
            labels: integer [nnz], labels of all documents, not negative, in any order, repeats allowed.
            offsets: int64 [N + 1], from 0 to nnz; document i has labels[offsets[i]:offsets[i + 1]].

        Returns:
            nodes: int32 [nnz'], each document's nodes, ascending, without repeats.
            offsets: int64 [N + 1]; document i has nodes[offsets[i]:offsets[i + 1]].

        Raises:
            ValueError: there is no such level, a label is negative, or the offsets do not fit the labels.
        """
        self._check_level(level, lowest=1, highest=self.height + 1)
        counts = np.diff(offsets)
        if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != len(labels) or (counts < 0).any():
            raise ValueError(f"offsets must rise from 0 to the number of labels, {len(labels)}")
        if len(labels) and labels.min() < 0:
            raise ValueError(f"labels must not be negative, got {labels.min()}")
        node_of_label, size = self._node_of_label[level - 1], self.level_sizes[level - 1]
        nodes, ends = np.empty(len(labels), np.int32), np.zeros(len(offsets), np.int64)
        for first in range(0, len(counts), DOCUMENTS_AT_ONCE):
            last = min(first + DOCUMENTS_AT_ONCE, len(counts))
            of_block = labels[offsets[first] : offsets[last]]
            known = of_block < len(node_of_label)
            documents = np.repeat(np.arange(last - first, dtype=np.int64), counts[first:last])[known]
            # One sort for all documents: numbered document · size + node, a document's nodes are a run of the sorted
            # distinct numbers.
            documents, of_block = np.divmod(distinct(documents * size + node_of_label[of_block[known]]), size)
            start = ends[first]
            ends[first + 1 : last + 1] = start + np.cumsum(np.bincount(documents, minlength=last - first))
            nodes[start : ends[last]] = of_block
        nodes.resize(ends[-1], refcheck=False)  # in place: a copy would hold the labels of the whole corpus twice
        return nodes, ends

    @cached_property
    def _node_of_label(self) -> tuple[np.ndarray, ...]:
        """The node of each label: for levels 1 to H + 1, int32 [L]."""
        nodes = [self.leaf_of_label]
        for level in range(self.height + 1, 1, -1):
            nodes.append(self.parents(level)[nodes[-1]])
        return tuple(reversed(nodes))

    def _check_level(self, level: int, *, lowest: int, highest: int) -> None:
        if not lowest <= level <= highest:
            raise ValueError(f"level {level} is not one of {lowest} to {highest}")

    def save(self, path: str | Path) -> None:
        """Write the tree to a `.safetensors` file, atomically."""
        tensors = {f"first_child.{level}": offsets for level, offsets in enumerate(self.first_child)}
        content = safetensors_bytes({"label_order": self.label_order, **tensors}, metadata=_METADATA)
        with whole_file(Path(path)) as temporary:
            temporary.write_bytes(content)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a tree that `save` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is not a label tree of this version, or its arrays do not describe a tree.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                for key, expected in _METADATA.items():
                    if metadata.get(key) != expected:
                        raise ValueError(f"its {key} is {metadata.get(key)!r}, not {expected!r}")
                names = [f"first_child.{level}" for level in range(len(file.keys()) - 1)]
                if set(file.keys()) != {"label_order", *names}:
                    raise ValueError(f"it holds {sorted(file.keys())}, not label_order and first_child.0, 1, ...")
                first_child = tuple(file.get_tensor(name) for name in names)
                return cls(label_order=file.get_tensor("label_order"), first_child=first_child)
        except (ValueError, TypeError, SafetensorError) as error:
            raise ValueError(f"{path} is not a label tree: {error}") from error


def _check_structure(label_order: np.ndarray, first_child: tuple[np.ndarray, ...]) -> None:
    """Raise a ValueError unless the arrays describe a tree with a leaf for each label and no childless inner node."""
    if label_order.dtype != np.int32 or label_order.ndim != 1 or label_order.size < 1:
        raise ValueError(f"label_order is {label_order.dtype}{list(label_order.shape)}, not int32[L], L >= 1")
    if not first_child:
        raise ValueError("there is no first_child.0, the children of the root")
    nodes = 1
    for level, offsets in enumerate(first_child):
        name = f"first_child.{level}"
        if offsets.dtype != np.int64 or offsets.shape != (nodes + 1,):
            raise ValueError(f"{name} is {offsets.dtype}{list(offsets.shape)}, not int64[{nodes + 1}]")
        if offsets[0] != 0:
            raise ValueError(f"{name} starts at {offsets[0]}, not at 0")
        empty = np.flatnonzero(offsets[1:] <= offsets[:-1])
        if empty.size:
            raise ValueError(f"{name} gives node {empty[0]} of level {level} no children")
        nodes = int(offsets[-1])
    if nodes != label_order.size:
        raise ValueError(f"{name} ends at {nodes}, but there are {label_order.size} labels")
    in_range = label_order.min() >= 0 and label_order.max() < nodes
    if not in_range or (np.bincount(label_order, minlength=nodes) != 1).any():
        raise ValueError(f"label_order is not a permutation of 0 to {nodes - 1}")
