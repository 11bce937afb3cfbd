"""Balanced spherical 2-means, applied again and again: the initial label tree T₀.

Paper: section "Building Shallow and Wide PLT"; the clustering is Parabel's.

- **Sizes are known before clustering.** A halving gives its left side n // 2 rows and its right side the
  rest, so the clusters of a depth differ by one row at most and their offsets follow from L alone
  (`cluster_offsets`). Any number of labels works.
- **Nothing depends on the order of processing.** Each node draws its two first centres from a generator
  seeded with (seed, depth, index of the node at that depth), so nodes can be halved in any order, or at the
  same time.
- **Large nodes are sparse rows, small nodes are Gram matrices.** A centre is the normalised sum of its
  members, so a similarity to it needs only dot products between rows. From `GRAM_ROWS` rows down these are
  computed once for a whole subtree, and its nodes of one size and depth are halved together.
- **Ties keep the order of the rows**: equal rows, and rows without features, fall left first by label id.

Legend: L labels, F features, n rows of a node, m nodes halved together.
"""

import numpy as np
from scipy import sparse

MIN_GAIN = 1e-4
"""A halving stops when the mean similarity of rows to their centres gains less than this."""

GRAM_ROWS = 256
"""Nodes of at most this many rows are halved by dot products between their rows."""


def normalise_rows(features: sparse.csr_array) -> sparse.csr_array:
    """Scale each row to Euclidean length one; rows without features stay empty.

    Args:
        features: [L, F], any sparse format and real dtype. Not changed.

    Returns:
        float32 CSR [L, F].

    Raises:
        ValueError: A value isn't finite.
    """
    rows = sparse.csr_array(features, dtype=np.float64, copy=True)
    rows.sum_duplicates()
    if not np.isfinite(rows.data).all():
        raise ValueError("label features hold values that are not finite: remove NaN and infinity from them")
    norms = np.sqrt(rows.multiply(rows).sum(axis=1))
    norms[norms == 0] = 1.0
    rows.data /= np.repeat(norms, np.diff(rows.indptr))
    return rows.astype(np.float32)


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


def halve(features: sparse.csr_array, rng: np.random.Generator) -> np.ndarray:
    """Split rows into two halves of like rows: spherical 2-means with fixed sizes.

    Args:
        features: float32 CSR [n, F], n >= 2, rows of length one or empty.
        rng: Draws the two rows that are the first centres.

    Returns:
        bool [n]: True for the right half. n // 2 rows are left, the rest are right.

    Raises:
        ValueError: Fewer than two rows.
    """
    n = features.shape[0]
    if n < 2:
        raise ValueError(f"two halves need at least two rows, got {n}")
    features = _drop_unused_columns(features)
    columns = features.T
    centres = features[_first_centres(n, rng)].toarray().T
    mean = -np.inf
    while True:
        similarities = features @ centres
        right = _right_half(similarities[:, 0], similarities[:, 1])
        last, mean = mean, np.where(right, similarities[:, 1], similarities[:, 0]).mean(dtype=np.float64)
        if mean - last < MIN_GAIN:
            return right
        centres = columns @ np.column_stack([~right, right]).astype(np.float32)
        norms = np.linalg.norm(centres, axis=0)
        centres /= np.where(norms > 0, norms, 1)


def halve_grams(grams: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Do what `halve` does for several nodes of one size, given the dot products between their rows.

    Args:
        grams: float64 [m, n, n], the dot products of the rows of each node.
        first: int64 [m, 2], the rows that are the first centres of each node.

    Returns:
        bool [m, n]: True for the right half.
    """
    m, n, _ = grams.shape
    right = np.zeros((m, n), dtype=bool)
    running = np.arange(m)
    members = np.zeros((2, m, n))
    members[0, running, first[:, 0]] = members[1, running, first[:, 1]] = 1
    mean = np.full(m, -np.inf)
    while running.size:
        to_left, to_right = (_similarities(grams, side) for side in members)
        now_right = _right_half(to_left, to_right)
        right[running] = now_right
        last, mean = mean, np.where(now_right, to_right, to_left).mean(axis=1)
        gains = mean - last >= MIN_GAIN
        if not gains.all():
            running, grams, mean, now_right = running[gains], grams[gains], mean[gains], now_right[gains]
        members = np.stack([~now_right, now_right]).astype(np.float64)
    return right


def balanced_clusters(features: sparse.csr_array, depth: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Halve all labels, and their halves, until there are 2**depth clusters.

    The clusters of a smaller depth d are runs of 2**(depth - d) clusters of the result.

    Args:
        features: float32 CSR [L, F], rows of length one or empty.
        depth: How many times to halve; 2**depth <= L.
        seed: Not negative. The same seed gives the same clusters.

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
    order = np.arange(labels, dtype=np.int32)
    level = 0
    while level < depth and -(-labels // 2**level) > GRAM_ROWS:
        offsets = cluster_offsets(labels, level)
        for index in range(2**level):
            rows = order[offsets[index] : offsets[index + 1]]
            right = halve(features[rows] if level else features, _generator(seed, level, index))
            rows[:] = np.concatenate([rows[~right], rows[right]])
        level += 1
    if level < depth:
        offsets = cluster_offsets(labels, level)
        for index in range(2**level):
            rows = order[offsets[index] : offsets[index + 1]]
            rows[:] = rows[_order_small(features[rows], depth, seed, level, index)]
    return order, cluster_offsets(labels, depth)


def _order_small(features: sparse.csr_array, depth: int, seed: int, level: int, index: int) -> np.ndarray:
    """Order the n rows of node `index` at depth `level` by cluster at `depth`: int64 [n]."""
    # Sparse products sum every row in the same order, so that equal rows stay exact ties.
    rows64 = features.astype(np.float64)
    gram = (rows64 @ rows64.T).toarray()
    n = gram.shape[0]
    order = np.arange(n)
    for below in range(depth - level):
        offsets = cluster_offsets(n, below)
        sizes = np.diff(offsets)
        for size in np.unique(sizes):
            nodes = np.flatnonzero(sizes == size)
            generators = (_generator(seed, level + below, (index << below) + int(node)) for node in nodes)
            first = np.array([_first_centres(size, rng) for rng in generators])
            slots = offsets[nodes][:, None] + np.arange(size)
            rows = order[slots]
            right = halve_grams(gram[rows[:, :, None], rows[:, None, :]], first)
            order[slots] = np.take_along_axis(rows, np.argsort(right, axis=1, kind="stable"), axis=1)
    return order


def _generator(seed: int, level: int, index: int) -> np.random.Generator:
    return np.random.default_rng([seed, level, index])


def _first_centres(n: int, rng: np.random.Generator) -> list[int]:
    """Two distinct rows of n, every pair as likely."""
    first, second = int(rng.integers(n)), int(rng.integers(n - 1))
    return [first, second + (second >= first)]


def _right_half(to_left: np.ndarray, to_right: np.ndarray) -> np.ndarray:
    """Send the n // 2 rows that lean most to the left there: bool [..., n], True for right."""
    n = to_left.shape[-1]
    lean_order = np.argsort(to_right - to_left, axis=-1, kind="stable")
    right = np.empty(to_left.shape, dtype=bool)
    np.put_along_axis(right, lean_order, np.arange(n) >= n // 2, axis=-1)
    return right


def _similarities(grams: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Cosine similarity [m, n] of each row to the normalised sum of the members (float64 [m, n], 0 or 1)."""
    dots = np.einsum("mij,mj->mi", grams, members)
    norms = np.sqrt(np.maximum(np.einsum("mi,mi->m", dots, members), 0))
    return dots / np.where(norms > 0, norms, 1)[:, None]


def _drop_unused_columns(features: sparse.csr_array) -> sparse.csr_array:
    """Number the columns in use anew, so that a centre of a small node isn't as long as the vocabulary."""
    if features.nnz >= features.shape[1]:
        return features
    used = np.zeros(features.shape[1], dtype=bool)
    used[features.indices] = True
    new_column = np.cumsum(used, dtype=features.indices.dtype) - 1
    shape = (features.shape[0], int(used.sum()))
    return sparse.csr_array((features.data, new_column[features.indices], features.indptr), shape=shape)
