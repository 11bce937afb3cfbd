"""The lower part of the binary tree, depth by depth: all nodes of a depth are halved together.

A subtree is small enough for a core's cache and large enough that Python's share of the time is small. It depends on
nothing but its rows, the seed and its position in the tree, so it is a job for a thread or for another machine.

- **A column belongs to one node.** After a halving, the columns of a node are doubled, one copy for each half, by
  adding one number to the column indices of each row. So one vector holds the sums of all nodes.
- **A column that only one row of its node uses is removed.** Two rows' product depends on shared columns only. Such a
  column only adds its square to the row's product with itself, which is kept as one number (`private_squares`). This
  is exact, and the deeper the tree, the fewer columns are left to multiply.

Legend: n rows, U columns, m nodes of the depth at hand.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from axml_ray.tree.halving import BlockedRows, halve_nodes

# Constants of splitmix64 (Steele, Lea and Flood, 2014).
_MULTIPLIERS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)


def cluster_offsets(labels: int, depth: int) -> np.ndarray:
    """Return where each cluster of a depth starts if every halving gives n // 2 of n rows to its left side.

    Example: 5 labels at depth 1 are halved into 2 and 3, so the offsets are [0, 2, 5].

    Returns:
        int64 [2**depth + 1], from 0 to `labels`.
    """
    sizes = np.array([labels], dtype=np.int64)
    for _ in range(depth):
        sizes = np.column_stack([sizes // 2, sizes - sizes // 2]).ravel()
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def first_centres(sizes: np.ndarray, seed: int, level: int, indices: np.ndarray) -> np.ndarray:
    """Choose two distinct rows of each node, each pair being equally likely, as the first centres of its halving.

    They are a hash of the node's position in the tree, so that nodes can be halved in any order and anywhere.

    Args:
        sizes: int64 [m], rows of each node, at least 2.
        seed: not negative.
        level: depth of the nodes.
        indices: int64 [m], numbers of the nodes at that depth.

    Returns:
        int64 [m, 2], row numbers within the node.
    """
    state = np.full(len(sizes), seed % 2**64, dtype=np.uint64)
    for numbers in (np.full(len(sizes), level), indices):
        state = _splitmix64(state) + numbers.astype(np.uint64)
    first = (_splitmix64(state) % sizes.astype(np.uint64)).astype(np.int64)
    second = (_splitmix64(_splitmix64(state)) % (sizes - 1).astype(np.uint64)).astype(np.int64)
    # `second` is drawn from one row fewer; skipping `first` makes it distinct and keeps pairs equally likely.
    return np.column_stack([first, second + (second >= first)])


def _splitmix64(values: np.ndarray) -> np.ndarray:
    """Apply one step of splitmix64, a bijection of uint64 whose output bits all depend on all input bits."""
    values = values + _MULTIPLIERS[0]
    values = (values ^ (values >> np.uint64(30))) * _MULTIPLIERS[1]
    values = (values ^ (values >> np.uint64(27))) * _MULTIPLIERS[2]
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, kw_only=True)
class Subtree:
    """A node of the binary tree whose rows are to be halved `depth` times: one job."""

    rows: sparse.csr_array
    """float64 CSR [n, U], rows of length one or empty."""
    depth: int
    """Number of halvings; 2**depth <= n."""
    seed: int
    """Seed of the whole tree."""
    level: int
    """Depth of the node in the whole tree."""
    index: int
    """Number of the node at that depth."""

    def order(self) -> np.ndarray:
        """Return the rows of the first cluster, then of the second, and so on, ascending in each: int64 [n]."""
        n = self.rows.shape[0]
        order = np.arange(n)
        if not self.depth:
            return order
        nodes = _DepthNodes.from_rows(self.rows)
        for below in range(self.depth):
            offsets = cluster_offsets(n, below)
            indices = (self.index << below) + np.arange(len(offsets) - 1)
            first = first_centres(np.diff(offsets), self.seed, self.level + below, indices)
            right, sums = halve_nodes(BlockedRows(nodes.matrix), nodes.private_squares, nodes.totals, offsets, first)
            # The new order of the rows: of each node the size // 2 left ones, then the right ones, in their old order.
            sizes = np.diff(offsets)
            to_right = np.arange(n) - np.repeat(offsets[:-1], sizes) >= np.repeat(sizes // 2, sizes)
            moves = np.empty(n, dtype=np.int64)
            moves[~to_right], moves[to_right] = np.flatnonzero(~right), np.flatnonzero(right)
            order = order[moves]
            if below + 1 < self.depth:
                nodes = nodes.halved(right, sums, offsets, moves)
        return order


@dataclass(frozen=True)
class _DepthNodes:
    """The nodes of one depth.

    Attributes:
        matrix: float64 CSR [n, U], the rows of all nodes, one node after the other.
        private_squares: float64 [n], squared length of the part of a row that was removed with its columns.
        totals: float64 [U], the sum of all rows.
        columns: int64 [m + 1]; node i owns columns columns[i] to columns[i + 1] - 1.
    """

    matrix: sparse.csr_array
    private_squares: np.ndarray
    totals: np.ndarray
    columns: np.ndarray

    @classmethod
    def from_rows(cls, rows: sparse.csr_array) -> "_DepthNodes":
        """Return a single node of all rows."""
        n, width = rows.shape
        if width > rows.nnz:  # a few labels of a large vocabulary: renumber the columns in use
            used, indices = np.unique(rows.indices, return_inverse=True)
            width = len(used)
            rows = sparse.csr_array((rows.data, indices, rows.indptr), shape=(n, width))
        return cls(rows, np.zeros(n), rows.T @ np.ones(n), np.array([0, width])).without_private_columns()

    def halved(self, right: np.ndarray, sums: np.ndarray, offsets: np.ndarray, moves: np.ndarray) -> "_DepthNodes":
        """Return the halves of all nodes.

        Args:
            right: bool [n], which rows go right.
            sums: float64 [U], the sum of all right rows.
            offsets: int64 [m + 1], where the rows of each node start.
            moves: int64 [n], the rows in their new order.
        """
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
        nodes = _DepthNodes(matrix, self.private_squares[moves], totals, columns)
        # Doubling has made many columns private or empty. Removing them costs a pass, so it waits until it pays.
        return nodes.without_private_columns() if len(totals) > matrix.nnz else nodes

    def without_private_columns(self) -> "_DepthNodes":
        """Return the same nodes without the columns that no row or a single row uses."""
        # Products and slices of scipy are faster than numpy's indexing, and release the lock for other threads.
        matrix = self.matrix
        ones = sparse.csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)
        uses = ones.T @ np.ones(matrix.shape[0])
        squares = sparse.csr_array((np.square(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape)
        private_squares = self.private_squares + squares @ (uses == 1).astype(np.float64)
        keep = np.flatnonzero(uses > 1)
        return _DepthNodes(matrix[:, keep], private_squares, self.totals[keep], np.searchsorted(keep, self.columns))
