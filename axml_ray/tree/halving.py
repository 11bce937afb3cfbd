"""Balanced spherical 2-means, for many nodes at once (paper, section 2.2; the clustering is Parabel's).

A round of 2-means computes the similarity of each row to two centres and sends the half of the rows that leans most to
the right there. Here a round costs one product of the rows with one vector, and all other arrays have one number for
each row:

- **The sum of a node never changes.** Let r and l be the sums of a node's right and left rows, and s = r + l. Then
  x·l = x·s - x·r. The products x·s are computed once, and each round needs x·r only.
- **Norms follow from the products**: |r|² is the sum of x·r over right rows, and |l|² that of x·l over left rows. So
  the centres r / |r| and l / |l| are never computed; their products with the rows are scaled instead.
- **Sums are updated**: only rows that change sides are added and subtracted.
- **All nodes of one depth are halved together.** Their rows follow one another, and no two nodes share a column (the
  caller ensures that), so that one vector holds the sums of all nodes. Nodes that have converged are left out.
- **Blocks of rows, not threads, decide the order of additions**, so that the result is the same for any number of
  threads, to the last bit.

Everything is float64: the decisions are those of a literal implementation, except for ties beyond the fifteenth digit.

Legend: n rows of all nodes, m nodes, U columns.
"""

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

MIN_GAIN = 1e-5
"""A halving stops when the mean similarity of rows to their centres gains less than this.

The authors' program stops at 1e-4. Rounds in which few rows move cost little here, and with them the clusters are as
tight as after the fixed 20 rounds of libpecos (benchmarks/clustering.py).
"""

BLOCK_TERMS = 1 << 20
"""Values of a block of rows that is multiplied at a time."""
BLOCKS = 16
"""Most blocks of a matrix."""

SHRINK = 0.7
"""Converged nodes are left out when the others hold less than this share of the rows; copying costs a pass."""

MapFunction: TypeAlias = Callable[[Callable[..., Any], Iterable[Any]], Iterable[Any]]
"""`map`, or a parallel function that is called like it and returns results in the same order."""


class BlockedRows:
    """Sparse rows whose products are computed block by block.

    Args:
        matrix: float64 CSR [n, U].
        map_blocks: `map`, or that of a pool of threads, for the blocks.
    """

    def __init__(self, matrix: sparse.csr_array, map_blocks: MapFunction = map):
        self.matrix, self.map_blocks = matrix, map_blocks
        count = max(1, min(BLOCKS, matrix.nnz // BLOCK_TERMS, matrix.shape[0]))
        self.starts = np.arange(count + 1) * matrix.shape[0] // count
        self.blocks = [matrix] if count == 1 else [self._block(*ends) for ends in self._ends()]

    def _ends(self) -> Iterable[tuple[int, int]]:
        return zip(self.starts[:-1], self.starts[1:], strict=True)

    def _block(self, first: int, last: int) -> sparse.csr_array:
        """Return rows `first` to `last - 1`, without copying their values."""
        indptr = self.matrix.indptr[first : last + 1]
        inside = slice(indptr[0], indptr[-1])
        parts = self.matrix.data[inside], self.matrix.indices[inside], indptr - indptr[0]
        return sparse.csr_array(parts, shape=(last - first, self.matrix.shape[1]))

    def dot(self, vector: np.ndarray) -> np.ndarray:
        """Return the product of each row with a vector (float64 [U]): float64 [n]."""
        return np.concatenate(list(self.map_blocks(lambda block: block @ vector, self.blocks)))

    def sum(self, weights: np.ndarray) -> np.ndarray:
        """Return the sum of the rows, each times its weight (float64 [n]): float64 [U]."""
        parts = [weights[first:last] for first, last in self._ends()]
        return reduce(
            np.add, self.map_blocks(lambda pair: pair[0].T @ pair[1], list(zip(self.blocks, parts, strict=True)))
        )

    def add_to(self, sums: np.ndarray, rows: np.ndarray, signs: np.ndarray) -> None:
        """Add some rows (int64, ascending), each times its sign, to `sums` (float64 [U]) in place."""
        # Three ways, by how many rows there are: a product with all rows, with a copy of some, or a loop over values.
        if len(rows) * 3 > self.matrix.shape[0]:
            weights = np.zeros(self.matrix.shape[0])
            weights[rows] = signs
            sums += self.sum(weights)
            return
        chosen = self.take(rows)
        if chosen.nnz * 4 > len(sums):
            sums += chosen.T @ signs
        else:
            np.add.at(sums, chosen.indices, chosen.data * np.repeat(signs, np.diff(chosen.indptr)))

    def take(self, rows: np.ndarray) -> sparse.csr_array:
        """Return the rows of the numbers `rows` (int64, ascending) as a new matrix."""
        if len(self.blocks) == 1 or self.map_blocks is map:
            return self.matrix[rows]
        cuts = np.searchsorted(rows, self.starts)
        parts = [rows[a:b] - first for a, b, first in zip(cuts[:-1], cuts[1:], self.starts[:-1], strict=True)]
        taken = self.map_blocks(lambda pair: pair[0][pair[1]], list(zip(self.blocks, parts, strict=True)))
        return sparse.csr_array(sparse.vstack(list(taken), format="csr"))


def halve_nodes(
    rows: BlockedRows, private_squares: np.ndarray, totals: np.ndarray, offsets: np.ndarray, first: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Split each node into two halves of similar rows.

    Args:
        rows: the rows of all nodes, one node after the other. A row has length one, its private part included, or is
            empty. No two nodes share a column.
        private_squares: float64 [n], squared length of the part of each row that it shares with no row of its node.
            That part is not in `rows`; it adds to a row's product with itself only.
        totals: float64 [U], the sum of all rows.
        offsets: int64 [m + 1]; node i has rows offsets[i] to offsets[i + 1] - 1, at least two.
        first: int64 [m, 2], two rows of each node, counted within the node: the first left and right centre.

    Returns:
        right: bool [n]. n_i // 2 rows of a node of n_i are left, the others are right.
        sums: float64 [U], the sum of all right rows.
    """
    nodes = _NodeRanges(offsets)
    to_total = rows.dot(totals) + private_squares
    side, mean = _first_sides(rows, private_squares, to_total, nodes, first)
    sums = rows.sum(side.astype(np.float64))

    right = side.copy()
    # What follows is of the nodes that have not converged; `row_numbers` leads back to all rows.
    row_numbers = np.arange(len(right))
    active = np.ones(len(nodes.sizes), dtype=bool)
    while True:
        to_right = rows.dot(sums) + private_squares * side
        to_left = to_total - to_right
        to_right *= nodes.repeat(_inverse_root(nodes.sum(np.where(side, to_right, 0))))
        to_left *= nodes.repeat(_inverse_root(nodes.sum(np.where(side, 0, to_left))))
        now = nodes.upper_halves(to_right - to_left)
        last, mean = mean, nodes.sum(np.where(now, to_right, to_left)) / nodes.sizes
        changed = (now != side) & nodes.repeat(active)
        moved = np.flatnonzero(changed)
        rows.add_to(sums, moved, np.where(now[moved], 1.0, -1.0))
        side[moved] = now[moved]
        right[row_numbers[moved]] = side[moved]
        # If no row moved, the next round would gain nothing.
        active &= (mean - last >= MIN_GAIN) & nodes.any(changed)
        if not active.any():
            return right, sums
        stay = nodes.repeat(active)
        if stay.mean() < SHRINK:
            rows = BlockedRows(rows.take(np.flatnonzero(stay)), rows.map_blocks)
            private_squares, to_total = private_squares[stay], to_total[stay]
            side, row_numbers = side[stay], row_numbers[stay]
            mean, nodes = mean[active], _NodeRanges(np.concatenate([[0], np.cumsum(nodes.sizes[active])]))
            active = np.ones(len(nodes.sizes), dtype=bool)


def _first_sides(
    rows: BlockedRows, private_squares: np.ndarray, to_total: np.ndarray, nodes: "_NodeRanges", first: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Split the nodes by similarity to two of their rows.

    Args:
        rows, private_squares, first: as in `halve_nodes`.
        to_total: float64 [n], the product of each row with the sum of its node.
        nodes: where the rows of each node are.

    Returns:
        side: bool [n], which rows are right.
        mean: float64 [m], the mean similarity of a node's rows to their centre.
    """
    left_centre, right_centre = (nodes.starts + first[:, side] for side in (0, 1))
    right_rows, left_rows = rows.matrix[right_centre], rows.matrix[left_centre]
    # All nodes' differences of their two centres in one vector, as no two nodes share a column.
    difference = np.zeros(rows.matrix.shape[1])
    difference[right_rows.indices] += right_rows.data
    difference[left_rows.indices] -= left_rows.data
    preference = rows.dot(difference)  # for the right centre
    preference[right_centre] += private_squares[right_centre]
    preference[left_centre] -= private_squares[left_centre]
    side = nodes.upper_halves(preference)
    # The similarities of a node's rows to the left centre add up to (sum of all rows)·centre, and those of right rows
    # to the right centre differ from that by their preference.
    mean = (to_total[left_centre] + nodes.sum(np.where(side, preference, 0))) / nodes.sizes
    return side, mean


class _NodeRanges:
    """The ranges of rows of m nodes, and operations on n rows node by node."""

    def __init__(self, offsets: np.ndarray):
        self.starts, self.sizes = offsets[:-1], np.diff(offsets)
        self.rows = int(offsets[-1])
        # Sizes at a depth differ by one at most, so these are one or two tables [nodes, size] of row numbers.
        self.tables = [self.starts[self.sizes == size][:, None] + np.arange(size) for size in np.unique(self.sizes)]

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum values of rows [n] over each node: [m]."""
        return np.add.reduceat(values, self.starts)

    def any(self, values: np.ndarray) -> np.ndarray:
        """Return for each node whether any of its rows' values (bool [n]) is true: bool [m]."""
        return np.logical_or.reduceat(values, self.starts)

    def repeat(self, values: np.ndarray) -> np.ndarray:
        """Repeat each node's value ([m]) for each of its rows: [n]."""
        return np.repeat(values, self.sizes)

    def upper_halves(self, preference: np.ndarray) -> np.ndarray:
        """Mark all rows of each node but the size // 2 of smallest preference (float64 [n]): bool [n].

        Of rows of equal preference, the first are left unmarked.
        """
        right = np.empty(self.rows, dtype=bool)
        for table in self.tables:
            # A node's rows as a row of a table, so that one partition serves all nodes of that size.
            values = preference[table] if len(self.tables) > 1 else preference.reshape(table.shape)
            left = table.shape[1] // 2
            bound = np.partition(values, left - 1, axis=1)[:, left - 1 : left]
            upper = values > bound
            room = table.shape[1] - left - upper.sum(axis=1)
            # If several rows are equal to the bound, the last of them go right, as many as there is room for.
            for node in np.flatnonzero(room):
                ties = np.flatnonzero(values[node] == bound[node])
                upper[node, ties[len(ties) - room[node] :]] = True
            right[table] = upper
        return right


def _inverse_root(squares: np.ndarray) -> np.ndarray:
    """Return 1 / √squares, the scale of a centre; 0 for a centre that is zero."""
    positive = squares > 0
    return np.where(positive, 1 / np.sqrt(np.where(positive, squares, 1)), 0)
