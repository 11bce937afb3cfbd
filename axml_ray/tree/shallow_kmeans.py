"""Unbalanced K-way clusters, level by level: the shallow trees of Bonsai (Khandagale et al. 2020), with bounded sizes.

Spherical k-means splits a node into about as many parts as its share of the level's clusters, whatever their sizes turn
out to be. Without a bound this gives clusters of single labels and of thousands, and the label table of a level stores
as many vectors for every parent as the largest family has children. Hence two rules:

- **No cluster holds more than `SLACK` times as many labels as one of the balanced tree.** A larger one is halved, as
  the balanced tree does, until it doesn't. So a label table takes at most about `SLACK` times the memory.
- **Many parts are made in steps** of at most `MOST_PARTS`, each part then getting its share of them, so that the time
  grows with the logarithm of the number of clusters.

Legend: L labels, F features, n rows of a node, k parts.
"""

from itertools import pairwise

import numpy as np
from scipy import sparse

from axml_ray.tree.clustering import balanced_clusters
from axml_ray.tree.halving import MIN_GAIN

SLACK = 2
"""A cluster may be this many times as large as one of the balanced tree."""
MOST_PARTS = 64
"""Most parts of one run of k-means."""
MOST_ROUNDS = 50
"""Most rounds of one run of k-means."""
ROWS_AT_ONCE = 1 << 15
"""Rows whose products with all centres are held at a time."""


def kmeans_levels(
    features: sparse.csr_array, clusters: tuple[int, ...], seed: int
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Cluster all labels, and each cluster again for the next level.

    Args:
        features: float64 CSR [L, F], rows of length one or empty.
        clusters: the approximate number of clusters of each level, increasing.
        seed: not negative.

    Returns:
        order: int64 [L], labels in an order in which every cluster is a run.
        cuts: for each level int64 [clusters + 1], where its clusters start in `order`, and L.
    """
    labels = features.shape[0]
    order, cuts = np.arange(labels), []
    nodes = np.array([0, labels])
    for level, count in enumerate(clusters):
        most = SLACK * -(-labels // count)
        sizes = [0]
        for index, (first, last) in enumerate(pairwise(nodes)):
            rows = order[first:last]
            rng = np.random.default_rng([seed, level, index])
            parts = split_rows(features[rows], max(1, round(len(rows) * count / labels)), most, rng)
            rows[:] = rows[np.concatenate(parts)]  # `rows` is a view of `order`
            sizes += [len(part) for part in parts]
        nodes = np.cumsum(sizes)
        cuts.append(nodes)
    return order, tuple(cuts)


def split_rows(features: sparse.csr_array, k: int, most: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Split rows (float64 CSR [n, F]) into about `k` parts of similar rows.

    Returns:
        For each part its rows, int64, ascending, 1 to `most` of them. They are more than `k` if some had to be halved.
    """
    n = features.shape[0]
    k = min(k, n)
    if k == 1:
        return _halve_until(features, most, rng)
    side = kmeans(features, min(k, MOST_PARTS), rng)
    clusters = [np.flatnonzero(side == part) for part in np.unique(side)]
    if len(clusters) == 1:  # all rows are equal, or empty
        return _halve_until(features, most, rng)
    parts = []
    for rows in clusters:
        share = max(1, round(k * len(rows) / n)) if k > MOST_PARTS else 1
        parts += [rows[part] for part in split_rows(features[rows], share, most, rng)]
    return parts


def _halve_until(features: sparse.csr_array, most: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Halve rows, and the halves, until no part has more than `most` rows."""
    depth = 0
    while -(-features.shape[0] // 2**depth) > most:
        depth += 1
    if not depth:
        return [np.arange(features.shape[0])]
    order, offsets = balanced_clusters(features, depth, int(rng.integers(2**31)))
    return np.split(order.astype(np.int64), offsets[1:-1])


def kmeans(features: sparse.csr_array, k: int, rng: np.random.Generator) -> np.ndarray:
    """Run spherical k-means from `k` random rows as centres, until the mean similarity to the nearest gains too little.

    Returns:
        int64 [n], the part of each row, below `k`; of equally near centres the first. Parts may be empty.
    """
    n = features.shape[0]
    # Keep only the columns that a row uses: the centres are dense.
    used = np.zeros(features.shape[1], dtype=bool)
    used[features.indices] = True
    number = np.cumsum(used, dtype=features.indices.dtype) - 1
    width = max(1, int(used.sum()))
    rows = sparse.csr_array((features.data, number[features.indices], features.indptr), shape=(n, width))
    centres = rows[np.sort(rng.choice(n, k, replace=False))].toarray()
    mean = -np.inf
    for _ in range(MOST_ROUNDS):
        side, similarity = np.empty(n, dtype=np.int64), np.empty(n)
        for start in range(0, n, ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            products = rows[some] @ centres.T
            side[some], similarity[some] = products.argmax(axis=1), products.max(axis=1)
        last, mean = mean, similarity.mean()
        if mean - last < MIN_GAIN:
            break
        # The sums of all parts are one product with an indicator matrix [n, k].
        members = sparse.csr_array((np.ones(n), side, np.arange(n + 1)), shape=(n, k))
        centres = (members.T @ rows).toarray()
        norms = np.linalg.norm(centres, axis=1, keepdims=True)
        centres /= np.where(norms > 0, norms, 1)
    return side
