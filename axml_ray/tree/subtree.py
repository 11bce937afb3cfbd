"""The lower part of a binary tree, depth by depth: all nodes of a depth are halved together.

A subtree is small enough for a core's cache and large enough that Python's share of the time is small, and it
depends on nothing but its rows, the seed and its place in the tree: a job for a thread, or for a machine elsewhere.

- **A column belongs to one node.** After a halving the columns of a node are doubled, one for each half, by adding
  one number per row. So one vector holds the sums of all nodes.
- **A column that only one row of its node uses is folded away.** Rows meet in shared columns only; such a column
  adds its square to the row's product with itself, and that is kept as one number (`lone`). This is exact, and the
  deeper the tree, the less is left to multiply.

Legend: n rows, U columns, m nodes of the depth at hand.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from axml_ray.tree.halving import Rows, halve_nodes

_MULTIPLIERS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)


def cluster_offsets(labels: int, depth: int) -> np.ndarray:
    """Where each cluster of a depth starts when every halving gives its left side n // 2 of n rows.

    Example: 5 labels at depth 1 are halved into 2 and 3, so the offsets are [0, 2, 5].

    Returns:
        int64 [2**depth + 1], from 0 to `labels`.
    """
    sizes = np.array([labels], dtype=np.int64)
    for _ in range(depth):
        sizes = np.column_stack([sizes // 2, sizes - sizes // 2]).ravel()
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def first_centres(sizes: np.ndarray, seed: int, level: int, indices: np.ndarray) -> np.ndarray:
    """Two distinct rows of each node, every pair as likely: what its halving begins with.

    They are a hash of the node's place in the tree (splitmix64), so that nodes can be halved in any order.

    Args:
        sizes: int64 [m], rows of each node, at least 2.
        seed: not negative.
        level: depth of the nodes.
        indices: int64 [m], their places at that depth.

    Returns:
        int64 [m, 2], counted within the node.
    """
    state = np.full(len(sizes), seed % 2**64, dtype=np.uint64)
    for part in (np.full(len(sizes), level), indices):
        state = _mix(state) + part.astype(np.uint64)
    first = (_mix(state) % sizes.astype(np.uint64)).astype(np.int64)
    second = (_mix(_mix(state)) % (sizes - 1).astype(np.uint64)).astype(np.int64)
    return np.column_stack([first, second + (second >= first)])


def _mix(values: np.ndarray) -> np.ndarray:
    """Splitmix64's step: uint64 to uint64, one to one and well stirred."""
    values = values + _MULTIPLIERS[0]
    values = (values ^ (values >> np.uint64(30))) * _MULTIPLIERS[1]
    values = (values ^ (values >> np.uint64(27))) * _MULTIPLIERS[2]
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, kw_only=True)
class Subtree:
    """A node of the binary tree whose rows are to be halved `depth` times."""

    rows: sparse.csr_array
    """float64 CSR [n, U], of length one or empty."""
    depth: int
    """How many times; 2**depth <= n."""
    seed: int
    """Of the whole tree."""
    level: int
    """Depth of the node in the whole tree."""
    index: int
    """Its place at that depth."""

    def order(self) -> np.ndarray:
        """The rows of the first cluster, then of the second, and so on, ascending in each: int64 [n]."""
        n = self.rows.shape[0]
        order = np.arange(n)
        if not self.depth:
            return order
        batch = _Batch.of(self.rows)
        for below in range(self.depth):
            offsets = cluster_offsets(n, below)
            indices = (self.index << below) + np.arange(len(offsets) - 1)
            first = first_centres(np.diff(offsets), self.seed, self.level + below, indices)
            right, sums = halve_nodes(Rows(batch.matrix), batch.lone, batch.totals, offsets, first)
            moves = _moves(right, offsets)
            order = order[moves]
            if below + 1 < self.depth:
                batch = batch.halved(right, sums, offsets, moves)
        return order


@dataclass(frozen=True)
class _Batch:
    """The nodes of one depth.

    Attributes:
        matrix: float64 CSR [n, U], the rows of one node after those of another.
        lone: float64 [n], squared length of the part of a row that was folded away.
        totals: float64 [U], the sum of all rows.
        columns: int64 [m + 1]; node i owns columns columns[i] to columns[i + 1] - 1.
    """

    matrix: sparse.csr_array
    lone: np.ndarray
    totals: np.ndarray
    columns: np.ndarray

    @classmethod
    def of(cls, rows: sparse.csr_array) -> "_Batch":
        """A single node."""
        n, width = rows.shape
        if width > rows.nnz:  # a few labels of a large vocabulary
            used, indices = np.unique(rows.indices, return_inverse=True)
            width = len(used)
            rows = sparse.csr_array((rows.data, indices, rows.indptr), shape=(n, width))
        return cls(rows, np.zeros(n), rows.T @ np.ones(n), np.array([0, width])).folded()

    def halved(self, right: np.ndarray, sums: np.ndarray, offsets: np.ndarray, moves: np.ndarray) -> "_Batch":
        """The halves, given the rows that go right, their sums, where nodes start, and the new order of rows."""
        starts, widths = self.columns[:-1], np.diff(self.columns)
        # Columns [a, b) of a node become [2a, a + b) for its left half and [a + b, 2b) for its right one.
        shifts = np.repeat(starts, np.diff(offsets)) + np.where(right, np.repeat(widths, np.diff(offsets)), 0)
        of_left = np.arange(len(sums)) + np.repeat(starts, widths)
        totals = np.empty(2 * len(sums))
        totals[of_left] = self.totals - sums
        totals[of_left + np.repeat(widths, widths)] = sums
        matrix = self.matrix[moves]
        indices = matrix.indices + np.repeat(shifts[moves].astype(matrix.indices.dtype), np.diff(matrix.indptr))
        matrix = sparse.csr_array((matrix.data, indices, matrix.indptr), shape=(len(right), len(totals)))
        columns = np.concatenate([[0], np.cumsum(np.repeat(widths, 2))])
        batch = _Batch(matrix, self.lone[moves], totals, columns)
        return batch.folded() if len(totals) > matrix.nnz else batch

    def folded(self) -> "_Batch":
        """The same without columns that no row or a single row uses."""
        # By products and slices of scipy's rather than numpy's indexing: they are faster and let other threads run.
        matrix = self.matrix
        ones = sparse.csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)
        uses = ones.T @ np.ones(matrix.shape[0])
        squares = sparse.csr_array((np.square(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape)
        lone = self.lone + squares @ (uses == 1).astype(np.float64)
        keep = np.flatnonzero(uses > 1)
        return _Batch(matrix[:, keep], lone, self.totals[keep], np.searchsorted(keep, self.columns))


def _moves(right: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The rows (of bool [n]) in their new order, each node's left ones before its right ones: int64 [n]."""
    sizes = np.diff(offsets)
    to_right = np.arange(len(right)) - np.repeat(offsets[:-1], sizes) >= np.repeat(sizes // 2, sizes)
    moves = np.empty(len(right), dtype=np.int64)
    moves[~to_right] = np.flatnonzero(~right)
    moves[to_right] = np.flatnonzero(right)
    return moves
