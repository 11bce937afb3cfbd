"""Halve many nodes of like rows at once: spherical 2-means with fixed sizes (paper, "Building Shallow and Wide PLT").

A round of 2-means sends each row to the nearer of two centres, half of the rows to each side. Here a round costs one
pass over the rows, and every number but the sums themselves is as short as there are rows:

- **One sum of a node never changes.** Let r and l be the sums of a node's right and left rows, s = r + l. Then
  x·l = x·s - x·r, x·s is known after one pass, and each round asks for x·r only.
- **Norms follow from the rows**: |r|² is the sum of x·r over right rows, |l|² that of x·l over left ones. So centres
  are never scaled; their dot products are.
- **Sums are mended, not made anew**: only rows that change sides are added and taken away.
- **Nodes of one depth share a pass.** Their rows lie one node after the other, and no two nodes share a column (the
  caller sees to that), so that one vector holds the sums of all of them. Nodes that have settled are left out.
- **Blocks, not workers, decide the order of additions**, so one thread and many give the same bits.

All is float64: what a literal version would decide is decided here, but for ties beyond the fifteenth digit.

Legend: n rows of all nodes, m nodes, U columns.
"""

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

MIN_GAIN = 1e-5
"""A halving stops when the mean similarity of rows to their centres gains less than this.

The authors' program stops at 1e-4. Rounds in which few rows move cost little here, and with these the clusters are as
tight as after libpecos's fixed 20 rounds (benchmarks/clustering.py).
"""

BLOCK_TERMS = 1 << 20
"""Rows are multiplied in blocks of about this many values, at most `BLOCKS` of them."""
BLOCKS = 16

SHRINK = 0.7
"""Settled nodes are left out when the others hold less than this share of the rows."""

Map: TypeAlias = Callable[[Callable[..., Any], Iterable[Any]], Iterable[Any]]
"""`map`, or that of a pool of threads: how the blocks of rows are worked through."""


class Rows:
    """Sparse rows and their products, block by block.

    Args:
        matrix: float64 CSR [n, U].
        each: works through the blocks.
    """

    def __init__(self, matrix: sparse.csr_array, each: Map = map):
        self.matrix, self.each = matrix, each
        count = max(1, min(BLOCKS, matrix.nnz // BLOCK_TERMS, matrix.shape[0]))
        self.starts = np.arange(count + 1) * matrix.shape[0] // count
        self.blocks = [matrix] if count == 1 else [self._block(*ends) for ends in self._ends()]

    def _ends(self) -> Iterable[tuple[int, int]]:
        return zip(self.starts[:-1], self.starts[1:], strict=True)

    def _block(self, first: int, last: int) -> sparse.csr_array:
        """Rows `first` to `last - 1`, without a copy of their values."""
        indptr = self.matrix.indptr[first : last + 1]
        inside = slice(indptr[0], indptr[-1])
        parts = self.matrix.data[inside], self.matrix.indices[inside], indptr - indptr[0]
        return sparse.csr_array(parts, shape=(last - first, self.matrix.shape[1]))

    def dot(self, vector: np.ndarray) -> np.ndarray:
        """Product of each row and a float64 [U]: float64 [n]."""
        return np.concatenate(list(self.each(lambda block: block @ vector, self.blocks)))

    def sum(self, weights: np.ndarray) -> np.ndarray:
        """Sum of the rows, each times its weight (float64 [n]): float64 [U]."""
        parts = [weights[first:last] for first, last in self._ends()]
        return reduce(np.add, self.each(lambda pair: pair[0].T @ pair[1], list(zip(self.blocks, parts, strict=True))))

    def add_to(self, sums: np.ndarray, rows: np.ndarray, signs: np.ndarray) -> None:
        """Add some rows (int64, ascending), each times its sign, to `sums` (float64 [U]) in place."""
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
        """The rows at `rows` (int64, ascending) as a matrix of their own."""
        if len(self.blocks) == 1 or self.each is map:
            return self.matrix[rows]
        cuts = np.searchsorted(rows, self.starts)
        parts = [rows[a:b] - first for a, b, first in zip(cuts[:-1], cuts[1:], self.starts[:-1], strict=True)]
        taken = self.each(lambda pair: pair[0][pair[1]], list(zip(self.blocks, parts, strict=True)))
        return sparse.csr_array(sparse.vstack(list(taken), format="csr"))


def halve_nodes(
    rows: Rows, lone: np.ndarray, totals: np.ndarray, offsets: np.ndarray, first: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Split each node into two halves of like rows.

    Args:
        rows: of all nodes; rows of length one, lone part included, or empty. No two nodes share a column.
        lone: float64 [n], squared length of the part of each row that it shares with no row of its node.
        totals: float64 [U], the sum of all rows.
        offsets: int64 [m + 1]; node i has rows offsets[i] to offsets[i + 1] - 1, at least two.
        first: int64 [m, 2], two rows of each node, counted within the node: the first left and right centre.

    Returns:
        right: bool [n]. n_i // 2 rows of a node of n_i are left, the rest are right.
        sums: float64 [U], the sum of all right rows.
    """
    nodes = _Nodes(offsets)
    to_total = rows.dot(totals) + lone
    left_centre, right_centre = (offsets[:-1] + first[:, side] for side in (0, 1))
    centres = rows.matrix[right_centre], rows.matrix[left_centre]
    difference = np.zeros(len(totals))
    difference[centres[0].indices] += centres[0].data
    difference[centres[1].indices] -= centres[1].data
    lean = rows.dot(difference)
    lean[right_centre] += lone[right_centre]
    lean[left_centre] -= lone[left_centre]
    side = nodes.upper_halves(lean)
    # Similarities to the left centre add up to (sum of all rows)·centre; right rows differ from that by their lean.
    mean = (to_total[left_centre] + nodes.sum(np.where(side, lean, 0))) / nodes.sizes
    sums = rows.sum(side.astype(np.float64))

    right = side.copy()
    places = np.arange(len(right))
    going = np.ones(len(nodes.sizes), dtype=bool)
    while True:
        to_right = rows.dot(sums) + lone * side
        to_left = to_total - to_right
        to_right *= nodes.spread(_inverse_root(nodes.sum(np.where(side, to_right, 0))))
        to_left *= nodes.spread(_inverse_root(nodes.sum(np.where(side, 0, to_left))))
        now = nodes.upper_halves(to_right - to_left)
        last, mean = mean, nodes.sum(np.where(now, to_right, to_left)) / nodes.sizes
        changed = (now != side) & nodes.spread(going)
        moved = np.flatnonzero(changed)
        rows.add_to(sums, moved, np.where(now[moved], 1.0, -1.0))
        side[moved] = now[moved]
        right[places[moved]] = side[moved]
        # Where no row moved, the next round would gain nothing.
        going &= (mean - last >= MIN_GAIN) & nodes.any(changed)
        if not going.any():
            return right, sums
        stay = nodes.spread(going)
        if stay.mean() < SHRINK:
            rows = Rows(rows.take(np.flatnonzero(stay)), rows.each)
            lone, to_total, side, places = lone[stay], to_total[stay], side[stay], places[stay]
            mean, nodes = mean[going], _Nodes(np.concatenate([[0], np.cumsum(nodes.sizes[going])]))
            going = np.ones(len(nodes.sizes), dtype=bool)


class _Nodes:
    """Where the rows of each node lie, and what is done node by node: m nodes, n rows."""

    def __init__(self, offsets: np.ndarray):
        self.starts, self.sizes = offsets[:-1], np.diff(offsets)
        self.rows = int(offsets[-1])
        # Sizes of a depth differ by one at most, so these are one or two tables [nodes, size] of rows.
        self.tables = [self.starts[self.sizes == size][:, None] + np.arange(size) for size in np.unique(self.sizes)]

    def sum(self, values: np.ndarray) -> np.ndarray:
        """[n] to [m]."""
        return np.add.reduceat(values, self.starts)

    def any(self, values: np.ndarray) -> np.ndarray:
        """Bool [n] to [m]."""
        return np.logical_or.reduceat(values, self.starts)

    def spread(self, values: np.ndarray) -> np.ndarray:
        """[m] to [n]."""
        return np.repeat(values, self.sizes)

    def upper_halves(self, lean: np.ndarray) -> np.ndarray:
        """All but the size // 2 rows of each node that lean (float64 [n]) least: bool [n]. Of equals, the first."""
        right = np.empty(self.rows, dtype=bool)
        for table in self.tables:
            values = lean[table] if len(self.tables) > 1 else lean.reshape(table.shape)
            left = table.shape[1] // 2
            bound = np.partition(values, left - 1, axis=1)[:, left - 1 : left]
            upper = values > bound
            room = table.shape[1] - left - upper.sum(axis=1)
            # Where several rows lean as far as the bound, some of them, the last, go right as well.
            for node in np.flatnonzero(room):
                ties = np.flatnonzero(values[node] == bound[node])
                upper[node, ties[len(ties) - room[node] :]] = True
            right[table] = upper
        return right


def _inverse_root(squares: np.ndarray) -> np.ndarray:
    """1 / √squares, 0 where there is nothing: the scale of a centre."""
    positive = squares > 0
    return np.where(positive, 1 / np.sqrt(np.where(positive, squares, 1)), 0)
