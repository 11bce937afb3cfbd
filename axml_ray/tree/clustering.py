"""Balanced spherical 2-means, applied again and again: the initial label tree T₀.

Paper: section "Building Shallow and Wide PLT"; the clustering is Parabel's.

- **Sizes are known before clustering.** A halving gives its left side n // 2 rows and its right side the
  rest, so the clusters of a depth differ by one row at most and their offsets follow from L alone
  (`cluster_offsets`). Any number of labels works.
- **Large nodes first**, one after the other with threads working on parts of their rows, or several at a time with a
  thread for each. A node of at most about `SUBTREE_TERMS` values is one job with all nodes below it (`subtree`), for a
  thread or another machine.
- **The result does not depend on the number of threads or machines.** How a node is cut into blocks or jobs depends on
  its size alone, and its first centres on its position in the tree.
- **Ties keep the order of the rows**: of equal rows, and of rows without features, those of lower label ids go left.

Legend: L labels, F features.
"""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

import numpy as np
from scipy import sparse

from axml_ray.tree.halving import BlockedRows, MapFunction, halve_nodes
from axml_ray.tree.subtree import Subtree, cluster_offsets, first_centres

SUBTREE_TERMS = 1 << 20
"""Nodes of at most about this many values are halved as one job, with all below them."""

WIDE_TERMS = 1 << 24
"""Nodes of more values than this are halved one after another, each by all threads, so that the temporary arrays of one
node only are in memory."""

NORMALISE_TERMS = 1 << 20
"""Values of a block of rows that is normalised at a time."""


def normalise_rows(features: sparse.csr_array, map_blocks: MapFunction = map) -> sparse.csr_array:
    """Scale each row to Euclidean length one; rows without features stay empty.

    Args:
        features: [L, F], any sparse format and real dtype. Not changed.
        map_blocks: `map`, or that of a pool of threads, for the blocks of rows.

    Returns:
        float64 CSR [L, F].

    Raises:
        ValueError: a value is not finite.
    """
    rows = sparse.csr_array(features)
    if max(rows.nnz, *rows.shape) < 2**31:
        # Products of scipy keep the integer type of their arguments, and 32 bits halve the memory traffic of indices.
        parts = rows.data, rows.indices.astype(np.int32), rows.indptr.astype(np.int32)
        rows = sparse.csr_array(parts, shape=rows.shape)
    starts = range(0, max(rows.shape[0], 1), max(1, NORMALISE_TERMS * rows.shape[0] // max(rows.nnz, 1)))
    blocks = list(map_blocks(lambda start: _normalised(rows[start : start + starts.step]), starts))
    return blocks[0] if len(blocks) == 1 else sparse.csr_array(sparse.vstack(blocks, format="csr"))


def _normalised(rows: sparse.csr_array) -> sparse.csr_array:
    rows = rows.astype(np.float64)
    rows.sum_duplicates()
    if not np.isfinite(rows.data).all():
        raise ValueError("label features hold values that are not finite: remove NaN and infinity from them")
    filled = np.flatnonzero(np.diff(rows.indptr))
    if filled.size:
        begins, lengths = rows.indptr[filled], np.diff(rows.indptr)[filled]
        # Scale by the largest value first: the squares of very small or large values would underflow or overflow.
        largest = np.maximum.reduceat(np.abs(rows.data), begins)
        rows.data /= np.repeat(np.where(largest > 0, largest, 1), lengths)
        norms = np.sqrt(np.add.reduceat(np.square(rows.data), begins))
        rows.data /= np.repeat(np.where(norms > 0, norms, 1), lengths)
    return rows


def balanced_clusters(
    features: sparse.csr_array, depth: int, seed: int, *, threads: int = 1, parallel_map: MapFunction | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Halve all labels, and their halves, until there are 2**depth clusters.

    The clusters of a smaller depth d are runs of 2**(depth - d) clusters of the result.

    Args:
        features: float CSR [L, F], rows of length one or empty.
        depth: number of times to halve; 2**depth <= L.
        seed: not negative. The same seed gives the same clusters, whatever `threads` and `parallel_map` are.
        threads: threads of this process.
        parallel_map: like `map`, for the jobs below the first halvings: called with `Subtree.order` and subtrees, it
            returns the results in their order. By default the threads do these jobs.

    Returns:
        order: int32 [L], the labels of the first cluster, then of the second, and so on; ascending in each.
        offsets: int64 [2**depth + 1]; cluster i is order[offsets[i]:offsets[i + 1]]. Sizes differ by one at
            most.

    Raises:
        ValueError: there would be more clusters than labels, or depth or seed are negative.
    """
    labels = features.shape[0]
    if depth < 0 or 2**depth > labels:
        raise ValueError(f"{labels} labels can't fill 2**{depth} clusters: the depth must be 0 to log2(labels)")
    if seed < 0:
        raise ValueError(f"the seed is {seed}: use zero or a positive number")
    order = np.arange(labels)
    level = 0
    # The matrix of each node, in a list, so that each can be freed once it is halved.
    nodes = [sparse.csr_array(features, dtype=np.float64)]
    del features
    with ThreadPoolExecutor(threads) as pool:
        while level < depth and sum(node.nnz for node in nodes) > SUBTREE_TERMS << level:
            nodes = _halve_level(nodes, order, seed, level, pool, threads)
            level += 1
        offsets = cluster_offsets(labels, level)
        subtrees = _subtrees(nodes, depth - level, seed, level)
        for index, order_below in enumerate((parallel_map or pool.map)(Subtree.order, subtrees)):
            rows = order[offsets[index] : offsets[index + 1]]
            rows[:] = rows[order_below]  # `rows` is a view of `order`
    return order.astype(np.int32), cluster_offsets(labels, depth)


def _halve_level(
    nodes: list[sparse.csr_array], order: np.ndarray, seed: int, level: int, pool: Executor, threads: int
) -> list[sparse.csr_array]:
    """Halve all nodes of a depth.

    Args:
        nodes: the rows of each node; emptied, so that each matrix can be freed as soon as its halves exist.
        order: int64 [L], labels in the order of the nodes; reordered in place.
        seed: the tree's seed.
        level: depth of the nodes.
        pool: threads.
        threads: number of these.

    Returns:
        The rows of each half, twice as many matrices.
    """
    offsets = cluster_offsets(len(order), level)
    first = first_centres(np.diff(offsets), seed, level, np.arange(len(nodes)))
    terms = sum(node.nnz for node in nodes)
    remaining = list(reversed(nodes))
    nodes.clear()

    def halve(index: int, node: sparse.csr_array, map_blocks: MapFunction) -> tuple[sparse.csr_array, sparse.csr_array]:
        rows, n = BlockedRows(node, map_blocks), node.shape[0]
        ends = np.array([0, n])
        right, _ = halve_nodes(rows, np.zeros(n), rows.sum(np.ones(n)), ends, first[index : index + 1])
        rows_of_node = order[offsets[index] : offsets[index + 1]]
        rows_of_node[:] = np.concatenate([rows_of_node[~right], rows_of_node[right]])
        return rows.take(np.flatnonzero(~right)), rows.take(np.flatnonzero(right))

    if len(remaining) < threads or terms > WIDE_TERMS * len(remaining):
        halves = [halve(index, remaining.pop(), pool.map) for index in range(len(remaining))]
    else:
        halves = list(pool.map(partial(halve, map_blocks=map), range(len(remaining)), reversed(remaining)))
    return [half for pair in halves for half in pair]


def _subtrees(nodes: list[sparse.csr_array], depth: int, seed: int, level: int) -> Iterator[Subtree]:
    """Yield one job for each node, and drop the node from the list, so that its matrix is freed with the job."""
    for index in range(len(nodes)):
        node, nodes[index] = nodes[index], None
        yield Subtree(rows=node, depth=depth, seed=seed, level=level, index=index)
