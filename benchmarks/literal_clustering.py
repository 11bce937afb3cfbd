"""The paper's balanced spherical 2-means, step by step in one thread: the baseline of our clustering speed.

Each node is a sparse matrix of its rows over the words that they use. Each round computes both similarities of all
rows, sorts all rows and sums the centres anew. It stops at a gain of 1e-4, as the authors' program does.
"""

import numpy as np
from scipy import sparse

MIN_GAIN = 1e-4


def clusters(features: sparse.csr_matrix, depth: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Halve all labels `depth` times.

    Args:
        features: float32 CSR [L, F], of any scale.
        depth: number of halvings; 2**depth <= L.
        seed: seed of the first centres.

    Returns:
        order: int64 [L], the labels of the first cluster, then of the second, and so on.
        offsets: int64 [2**depth + 1], where each cluster begins.
    """
    lengths = np.sqrt(np.asarray(features.multiply(features).sum(axis=1)).ravel())
    features = sparse.csr_matrix(sparse.diags(1 / np.where(lengths > 0, lengths, 1)) @ features, dtype=np.float32)
    random = np.random.default_rng(seed)
    nodes = [np.arange(features.shape[0])]
    for _ in range(depth):
        nodes = [half for node in nodes for half in halves(features, node, random)]
    return np.concatenate(nodes), np.cumsum([0, *map(len, nodes)])


def halves(features: sparse.csr_matrix, node: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the left and the right half of the labels `node` (int64 [n])."""
    rows = features[node]
    words, indices = np.unique(rows.indices, return_inverse=True)
    rows = sparse.csr_matrix((rows.data, indices, rows.indptr), shape=(len(node), len(words)))
    centres = rows[random.choice(len(node), 2, replace=False)].toarray()
    last = -np.inf
    while True:
        similarities = rows @ centres.T
        order = np.argsort(similarities[:, 1] - similarities[:, 0], kind="stable")
        left, right = order[: len(node) // 2], order[len(node) // 2 :]
        mean = (similarities[left, 0].sum() + similarities[right, 1].sum()) / len(node)
        if mean - last < MIN_GAIN:
            return node[np.sort(left)], node[np.sort(right)]
        last = mean
        centres = np.stack([np.asarray(rows[half].sum(axis=0)).ravel() for half in (left, right)])
        norms = np.linalg.norm(centres, axis=1, keepdims=True)
        centres = centres / np.where(norms > 0, norms, 1)
