"""Word vectors from co-occurrence counts: positive pointwise mutual information (PPMI) and its truncated SVD.

Skip-gram with negative sampling factorises a matrix of pointwise mutual information implicitly (Levy and Goldberg,
2014). Here the matrix is counted and factorised, with the choices of Levy, Goldberg and Dagan (2015):

    PPMI(w, c) = max(0, ln(#(w, c) · Σ_c' #(c')^0.75 / (#(w) · #(c)^0.75)))

#(w, c) counts how often word c is a context of word w: among the `WINDOW` words before or after w in a document, where
a context at distance d counts WINDOW + 1 - d times. With the largest E singular values, PPMI ≈ U·S·Vᵀ, and the
vectors are the rows of U·S^0.5.

Memory is bounded: contexts are the `MAX_CONTEXTS` most frequent words, word w is dealt out to stripe w mod R, whose
contexts one task counts, and of more than `MAX_PAIRS` pairs those with the smallest counts are left out. Vectors do not
depend on workers or threads: counts are integers, so their sums have no rounding, and the SVD runs in one thread.

Legend: N documents, V words, C contexts, E dimension, R stripes.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from axml_ray.core.ragged import Ragged

WINDOW = 5
"""Number of words before, and after, a word that are its contexts."""
MAX_CONTEXTS = 1 << 16
"""Largest number of contexts, C."""
MAX_PAIRS = 1 << 26
"""Largest number of pairs of a word and a context in the matrix, which takes 8 bytes for each."""
STRIPE_PAIRS = 1 << 24
"""Approximate number of occurrences of pairs that a task counts."""
SMOOTHING = 0.75
"""Exponent of the counts of contexts; below 1, pairs with rare contexts get less weight."""
SINGULAR_VALUE_POWER = 0.5
"""Exponent of the singular values."""
POWER_ITERATIONS = 4
"""Number of power iterations of the randomised SVD (Halko, Martinsson and Tropp, 2011)."""
STANDARD_DEVIATION = 0.2
"""Standard deviation to which the vectors are scaled, about that of published vectors. The networks' scores on
validation hardly depend on it between 0.1 and 0.4."""
_LARGEST_COUNT = (1 << 16) - 1  # larger counts need not be told apart


def number_of_stripes(tokens: int, words: int) -> int:
    """Return R for documents of about `tokens` tokens and V = `words`."""
    return min(words, max(1, -(-tokens * 2 * WINDOW // STRIPE_PAIRS)))


def cooccurrences(documents: Iterable[Ragged], stripe: int, stripes: int, words: int) -> sparse.csr_matrix:
    """Count the contexts of the words of a stripe of R (`stripes`) in documents, some of them at a time; V is `words`.

    Returns int64 CSR [words of the stripe, C], the counts #(w, c); row i is that of word `stripe + i · R`.
    """
    shape = (len(range(stripe, words, stripes)), min(words, MAX_CONTEXTS))
    parts = [_count(tokens, stripe, stripes, shape).tocoo() for tokens in documents]
    # All at once: adding one matrix after the other would copy the sum for each part.
    data, row, column = (np.concatenate([getattr(part, name) for part in parts]) for name in ("data", "row", "col"))
    return sparse.coo_matrix((data, (row, column)), shape=shape).tocsr()


def _count(tokens: Ragged, stripe: int, stripes: int, shape: tuple[int, int]) -> sparse.csr_matrix:
    """Count the contexts of the words of a stripe in some documents; `shape` is that of the result."""
    document = np.repeat(np.arange(len(tokens), dtype=np.int32), tokens.lengths)
    positions = np.flatnonzero(tokens.values % stripes == stripe)
    rows, columns, weights = [], [], []
    for distance in (*range(-WINDOW, 0), *range(1, WINDOW + 1)):
        starts = positions[(positions + distance >= 0) & (positions + distance < len(document))]
        starts = starts[document[starts] == document[starts + distance]]
        starts = starts[tokens.values[starts + distance] < shape[1]]
        rows.append(tokens.values[starts] // stripes)
        columns.append(tokens.values[starts + distance])
        weights.append(np.full(len(starts), WINDOW + 1 - abs(distance), dtype=np.int64))
    triples = np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns))
    return sparse.coo_matrix(triples, shape=shape).tocsr()


def ppmi(paths: Sequence[Path]) -> sparse.csr_matrix:
    """Return the PPMI of the counts in the files of all stripes, float32 CSR [V, C], one stripe below the other."""
    of_context: Any = 0
    pairs = np.zeros(_LARGEST_COUNT + 1, dtype=np.int64)
    for path in paths:
        counts = sparse.load_npz(path)
        of_context = of_context + np.asarray(counts.sum(axis=0)).ravel()
        pairs += np.bincount(np.minimum(counts.data, _LARGEST_COUNT), minlength=len(pairs))
    pairs_from = pairs[::-1].cumsum()[::-1]  # the number of pairs with at least each count
    least = int(np.argmax(pairs_from <= MAX_PAIRS))
    share = of_context**SMOOTHING / max(1, (of_context**SMOOTHING).sum())
    stripes = []
    for path in paths:
        counts = sparse.load_npz(path)
        of_word = np.repeat(np.asarray(counts.sum(axis=1)).ravel(), np.diff(counts.indptr))
        information = np.log(counts.data / (of_word * share[counts.indices]))
        information[(information < 0) | (counts.data < least)] = 0
        stripe = sparse.csr_matrix((information.astype(np.float32), counts.indices, counts.indptr), counts.shape)
        stripe.eliminate_zeros()
        stripes.append(stripe)
    return sparse.vstack(stripes, format="csr")


def factorise(paths: Sequence[Path], dimension: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute word vectors from the counts in the files of all stripes.

    If there are fewer words or contexts than E (`dimension`), the last components are zero.

    Returns:
        bool [V], whether a word has a vector, because its PPMI with a context is positive; float32 [such words, E].
    """
    from sklearn.utils.extmath import randomized_svd  # imported here because it is slow and most tasks do not need it

    matrix = ppmi(paths)
    words = np.concatenate([np.arange(stripe, matrix.shape[0], len(paths)) for stripe in range(len(paths))])
    rank = min(dimension, *matrix.shape)
    with threadpool_limits(limits=1, user_api="blas"):
        left, singular_values, _ = randomized_svd(matrix, rank, n_iter=POWER_ITERATIONS, random_state=seed)
    vectors = np.zeros((len(words), dimension), dtype=np.float32)
    vectors[words, :rank] = left * singular_values**SINGULAR_VALUE_POWER
    known = np.zeros(len(words), dtype=bool)
    known[words] = np.diff(matrix.indptr) > 0
    vectors = vectors[known]
    if known.any():
        vectors *= STANDARD_DEVIATION / vectors.std()
    return known, vectors
