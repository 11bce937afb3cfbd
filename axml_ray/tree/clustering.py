"""Balanced spherical 2-means, applied again and again: the initial label tree T₀.

Paper: section "Building Shallow and Wide PLT"; the clustering is Parabel's.

- **Sizes are known before clustering.** A halving gives its left side n // 2 rows and its right side the
  rest, so the clusters of a depth differ by one row at most and their offsets follow from L alone
  (`cluster_offsets`). Any number of labels works.
- **Large nodes first, one by one**, in parallel over their rows where they are few, over nodes where they are many;
  from `SUBTREE_TERMS` values down a node and all below it are one job (`subtree`), for a thread or a machine.
- **Nothing depends on who works, or on how many.** Where a node is cut into blocks or becomes a job depends on its
  size alone, and its first centres on its place in the tree.
- **Ties keep the order of the rows**: equal rows, and rows without features, fall left first by label id.

Legend: L labels, F features.
"""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

import numpy as np
from scipy import sparse

from axml_ray.tree.halving import Map, Rows, halve_nodes
from axml_ray.tree.subtree import Subtree, cluster_offsets, first_centres

SUBTREE_TERMS = 1 << 20
"""Nodes of at most about this many values are halved as one job, with all below them."""

WIDE_TERMS = 1 << 24
"""Nodes of more values than this are halved one after another, each by all threads, for the sake of memory."""

NORMALISE_TERMS = 1 << 20
"""Rows are normalised in blocks of about this many values."""


def normalise_rows(features: sparse.csr_array, each: Map = map) -> sparse.csr_array:
    """Scale each row to Euclidean length one; rows without features stay empty.

    Args:
        features: [L, F], any sparse format and real dtype. Not changed.
        each: works through blocks of rows.

    Returns:
        float64 CSR [L, F].

    Raises:
        ValueError: A value isn't finite.
    """
    rows = sparse.csr_array(features)
    if max(rows.nnz, *rows.shape) < 2**31:
        # Products of scipy's keep the width that they are given; half of it is half of what memory must bring.
        parts = rows.data, rows.indices.astype(np.int32), rows.indptr.astype(np.int32)
        rows = sparse.csr_array(parts, shape=rows.shape)
    starts = range(0, max(rows.shape[0], 1), max(1, NORMALISE_TERMS * rows.shape[0] // max(rows.nnz, 1)))
    blocks = list(each(lambda start: _normalised(rows[start : start + starts.step]), starts))
    return blocks[0] if len(blocks) == 1 else sparse.csr_array(sparse.vstack(blocks, format="csr"))


def _normalised(rows: sparse.csr_array) -> sparse.csr_array:
    rows = rows.astype(np.float64)
    rows.sum_duplicates()
    if not np.isfinite(rows.data).all():
        raise ValueError("label features hold values that are not finite: remove NaN and infinity from them")
    filled = np.flatnonzero(np.diff(rows.indptr))
    if filled.size:
        begins, lengths = rows.indptr[filled], np.diff(rows.indptr)[filled]
        # The largest value first, or the squares of very small and very large ones would be lost.
        largest = np.maximum.reduceat(np.abs(rows.data), begins)
        rows.data /= np.repeat(np.where(largest > 0, largest, 1), lengths)
        norms = np.sqrt(np.add.reduceat(np.square(rows.data), begins))
        rows.data /= np.repeat(np.where(norms > 0, norms, 1), lengths)
    return rows


def balanced_clusters(
    features: sparse.csr_array, depth: int, seed: int, *, threads: int = 1, spread: Map | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Halve all labels, and their halves, until there are 2**depth clusters.

    The clusters of a smaller depth d are runs of 2**(depth - d) clusters of the result.

    Args:
        features: float CSR [L, F], rows of length one or empty.
        depth: How many times to halve; 2**depth <= L.
        seed: Not negative. The same seed gives the same clusters, whatever `threads` and `spread` are.
        threads: Of this process.
        spread: Like `map`, for the jobs below the first halvings: takes `Subtree.order` and subtrees, gives results
            in their order. By default the threads.

    Returns:
        order: int32 [L], the labels of the first cluster, then of the second, and so on; ascending in each.
        offsets: int64 [2**depth + 1]; cluster i is order[offsets[i]:offsets[i + 1]]. Sizes differ by one at
            most.

    Raises:
        ValueError: More clusters than labels, or a negative depth or seed.
    """
    labels = features.shape[0]
    if depth < 0 or 2**depth > labels:
        raise ValueError(f"{labels} labels can't fill 2**{depth} clusters: the depth must be 0 to log2(labels)")
    if seed < 0:
        raise ValueError(f"the seed is {seed}: use zero or a positive number")
    order = np.arange(labels)
    level = 0
    # Each node as its matrix; a list, so that a node can be let go once it is halved.
    nodes = [sparse.csr_array(features, dtype=np.float64)]
    del features
    with ThreadPoolExecutor(threads) as pool:
        while level < depth and sum(node.nnz for node in nodes) > SUBTREE_TERMS << level:
            nodes = _halved(nodes, order, seed, level, pool, threads)
            level += 1
        offsets = cluster_offsets(labels, level)
        jobs = _jobs(nodes, depth - level, seed, level)
        for index, found in enumerate((spread or pool.map)(Subtree.order, jobs)):
            rows = order[offsets[index] : offsets[index + 1]]
            rows[:] = rows[found]
    return order.astype(np.int32), cluster_offsets(labels, depth)


def _halved(
    nodes: list[sparse.csr_array], order: np.ndarray, seed: int, level: int, pool: Executor, threads: int
) -> list[sparse.csr_array]:
    """The halves of all nodes of a depth; their rows in `order` are moved along."""
    offsets = cluster_offsets(len(order), level)
    first = first_centres(np.diff(offsets), seed, level, np.arange(len(nodes)))
    terms = sum(node.nnz for node in nodes)
    remaining = list(reversed(nodes))
    nodes.clear()

    def halve(index: int, node: sparse.csr_array, each: Map) -> tuple[sparse.csr_array, sparse.csr_array]:
        rows, n = Rows(node, each), node.shape[0]
        ends = np.array([0, n])
        right, _ = halve_nodes(rows, np.zeros(n), rows.sum(np.ones(n)), ends, first[index : index + 1])
        part = order[offsets[index] : offsets[index + 1]]
        part[:] = np.concatenate([part[~right], part[right]])
        return rows.take(np.flatnonzero(~right)), rows.take(np.flatnonzero(right))

    if len(remaining) < threads or terms > WIDE_TERMS * len(remaining):
        halves = [halve(index, remaining.pop(), pool.map) for index in range(len(remaining))]
    else:
        halves = list(pool.map(partial(halve, each=map), range(len(remaining)), reversed(remaining)))
    return [half for pair in halves for half in pair]


def _jobs(nodes: list[sparse.csr_array], depth: int, seed: int, level: int) -> Iterator[Subtree]:
    for index in range(len(nodes)):
        node, nodes[index] = nodes[index], None
        yield Subtree(rows=node, depth=depth, seed=seed, level=level, index=index)
