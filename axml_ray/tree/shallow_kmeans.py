"""Unbalanced K-way clusters, level by level: the shallow trees of Bonsai (Khandagale et al. 2020), kept in bounds.

A node is split by spherical k-means into about as many parts as it holds clusters' worth of labels, whatever their
sizes turn out to be. Left to itself this gives single labels beside clusters of thousands, and the network of a deep
level stores as many rows for every parent as the largest family has. Hence the rule:

- **No cluster holds more than `SLACK` times as many labels as the balanced tree's**; a larger one is halved, as there,
  until it doesn't. So a family of labels is at most `SLACK` times as large as the balanced tree's, and a table of
  families, with about as many parents, takes about `SLACK` times the memory.
- **Many parts are made in steps** of at most `MOST_PARTS`, each part then getting its share, so that the time grows
  with the logarithm of the number of clusters.

Legend: L labels, F features, n rows of a node, k parts.
"""

from itertools import pairwise

import numpy as np
from scipy import sparse

from axml_ray.tree.clustering import balanced_clusters
from axml_ray.tree.halving import MIN_GAIN

SLACK = 2
MOST_PARTS = 64
MOST_ROUNDS = 50
DOT_ROWS = 1 << 15


def kmeans_levels(
    features: sparse.csr_array, clusters: tuple[int, ...], seed: int
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Nested clusters of all labels.

    Args:
        features: float64 CSR [L, F], rows of length one or empty.
        clusters: about how many at each level, rising.
        seed: not negative.

    Returns:
        order: int64 [L], labels so that every cluster is a run.
        cuts: for each level int64 [clusters + 1], where its clusters start in `order`, and L.
    """
    labels = features.shape[0]
    order, cuts = np.arange(labels), []
    nodes = np.array([0, labels])
    for level, wanted in enumerate(clusters):
        most = SLACK * -(-labels // wanted)
        sizes = [0]
        for index, (first, last) in enumerate(pairwise(nodes)):
            rows = order[first:last]
            rng = np.random.default_rng([seed, level, index])
            parts = split(features[rows], max(1, round(len(rows) * wanted / labels)), most, rng)
            rows[:] = rows[np.concatenate(parts)]
            sizes += [len(part) for part in parts]
        nodes = np.cumsum(sizes)
        cuts.append(nodes)
    return order, tuple(cuts)


def split(features: sparse.csr_array, k: int, most: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Parts of like rows, each int64 [1 to `most`] and ascending; about `k`, more where some had to be halved."""
    n = features.shape[0]
    k = min(k, n)
    if k == 1:
        return _halved(features, most, rng)
    side = kmeans(features, min(k, MOST_PARTS), rng)
    found = [np.flatnonzero(side == part) for part in np.unique(side)]
    if len(found) == 1:
        return _halved(features, most, rng)
    parts = []
    for rows in found:
        share = max(1, round(k * len(rows) / n)) if k > MOST_PARTS else 1
        parts += [rows[part] for part in split(features[rows], share, most, rng)]
    return parts


def _halved(features: sparse.csr_array, most: int, rng: np.random.Generator) -> list[np.ndarray]:
    depth = 0
    while -(-features.shape[0] // 2**depth) > most:
        depth += 1
    if not depth:
        return [np.arange(features.shape[0])]
    order, offsets = balanced_clusters(features, depth, int(rng.integers(2**31)))
    return np.split(order.astype(np.int64), offsets[1:-1])


def kmeans(features: sparse.csr_array, k: int, rng: np.random.Generator) -> np.ndarray:
    """Spherical k-means: the part of each row, int64 [n], below `k`; parts may be empty.

    It begins with `k` random rows as centres and ends when the mean similarity to the nearest gains too little. Of
    equally near centres the first is taken.
    """
    n = features.shape[0]
    used = np.zeros(features.shape[1], dtype=bool)
    used[features.indices] = True
    number = np.cumsum(used, dtype=features.indices.dtype) - 1
    width = max(1, int(used.sum()))
    rows = sparse.csr_array((features.data, number[features.indices], features.indptr), shape=(n, width))
    centres = rows[np.sort(rng.choice(n, k, replace=False))].toarray()
    mean = -np.inf
    for _ in range(MOST_ROUNDS):
        side, near = np.empty(n, dtype=np.int64), np.empty(n)
        for start in range(0, n, DOT_ROWS):
            dots = rows[start : start + DOT_ROWS] @ centres.T
            side[start : start + DOT_ROWS], near[start : start + DOT_ROWS] = dots.argmax(axis=1), dots.max(axis=1)
        last, mean = mean, near.mean()
        if mean - last < MIN_GAIN:
            break
        members = sparse.csr_array((np.ones(n), side, np.arange(n + 1)), shape=(n, k))
        centres = (members.T @ rows).toarray()
        norms = np.linalg.norm(centres, axis=1, keepdims=True)
        centres /= np.where(norms > 0, norms, 1)
    return side
