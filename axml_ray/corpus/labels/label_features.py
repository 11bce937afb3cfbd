"""TF-IDF label centroids, from which a label tree is clustered (paper, "Building Shallow and Wide PLT").

The vector of a label is the L2-normalised sum of the L2-normalised TF-IDF vectors of its training documents. Term
frequencies enter as 1 + ln(tf), as in the linear trees with which ours is compared.

Here are the steps of it on matrices in memory; `label_feature_sums.py` adds the documents of a whole corpus from files.
"""

import numpy as np
from scipy import sparse

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.text.tokenizer import UNKNOWN

RANGE_TERMS = 12_000_000
"""Approximate number of terms that are added in a range of labels."""
MAX_TERMS, MANY_LABELS = 64, 100_000
"""Terms that a label's features keep if there are more labels than this: the features of millions take much memory."""
TABLE_TERMS = 1 << 19
"""Maximum number of terms of a dense table in which the largest terms of rows are selected."""
FILE_DOCUMENTS = 1 << 15
"""Number of training documents of a feature file, except for the last one."""


def max_terms(labels: int) -> int | None:
    """Return how many of its strongest terms a label's features keep; None for all, with few labels."""
    return MAX_TERMS if labels > MANY_LABELS else None


def bag_of_words(tokens: Ragged, words: int, times: np.ndarray | None = None) -> sparse.csr_matrix:
    """Count the words of documents, float32 CSR [documents, words]; padding and unknown words are not counted.

    `times` (float32 [tokens]) is the weight of each token, by default 1.
    """
    if times is None:
        times = np.ones(len(tokens.values), np.float32)
    counts = sparse.csr_matrix(
        (times, tokens.values, tokens.offsets),
        shape=(len(tokens), words),
        copy=True,  # sum_duplicates sorts in place, and the order of the tokens is the text
    )
    counts.sum_duplicates()
    counts.data[counts.indices <= UNKNOWN] = 0
    counts.eliminate_zeros()
    return counts


def indicator_matrix(rows: Ragged, columns: int) -> sparse.csr_matrix:
    """Return float32 CSR [rows, columns] with a 1 at (row, value) for each value of each row.

    Repeated values are stored repeatedly, so they add up. Values of `columns` or more are dropped.
    """
    width = max(columns, int(rows.values.max(initial=-1)) + 1)
    ones = np.ones(len(rows.values), np.float32)
    return sparse.csr_matrix((ones, rows.values, rows.offsets), shape=(len(rows), width))[:, :columns]


def idf_weights(frequency: np.ndarray, documents: int) -> np.ndarray:
    """Compute the smoothed inverse document frequency, float32 [words], from the documents with each word, int64."""
    weights: np.ndarray = np.log(np.float32(documents + 1) / (frequency.astype(np.float32) + 1)) + 1
    return weights


def apply_tf_idf(counts: sparse.csr_matrix, weights: np.ndarray) -> None:
    """Turn counts (float32 CSR) into TF-IDF vectors of length one, in place, with the weights of `idf_weights`."""
    counts.data = (np.log(counts.data) + 1) * weights[counts.indices]
    normalize_rows(counts)


def normalize_rows(rows: sparse.csr_matrix) -> None:
    """Scale each row of a float32 CSR matrix to Euclidean length one, in place; rows of zeros are unchanged."""
    terms = np.diff(rows.indptr)
    filled = np.flatnonzero(terms)
    if len(filled):
        lengths = np.sqrt(np.add.reduceat(rows.data.astype(np.float64) ** 2, rows.indptr[filled]))
        lengths[lengths == 0] = 1
        rows.data = (rows.data / np.repeat(lengths, terms[filled])).astype(np.float32)


def label_ranges(counts: np.ndarray, terms: float) -> list[tuple[int, int]]:
    """Cut labels into ranges with about `RANGE_TERMS` terms to add each, or with one label.

    Args:
        counts: int64 [L], number of training documents of each label.
        terms: mean number of distinct words of a document.

    Returns:
        First label of each range, and the label after its last.
    """
    cost = np.cumsum(counts * max(terms, 1.0))
    ranges, begin = [], 0
    while begin < len(counts):
        before = cost[begin - 1] if begin else 0.0
        end = max(begin + 1, int(np.searchsorted(cost, before + RANGE_TERMS, side="right")))
        ranges.append((begin, end))
        begin = end
    return ranges


def keep_strongest(rows: sparse.csr_matrix, most: int | None) -> sparse.csr_matrix:
    """Keep the `most` terms of the largest absolute values in each row (float32 CSR), and scale rows to length one.

    Of equal terms, those of the lowest columns are kept. None keeps all.
    """
    lengths = np.diff(rows.indptr)
    if most is not None and lengths.max(initial=0) > most:
        sizes = np.abs(rows.data)
        thresholds = _kth_largest(sizes, rows.indptr, most)
        kept = np.flatnonzero(sizes >= np.repeat(thresholds, lengths))
        offsets = np.searchsorted(kept, rows.indptr)
        if (np.diff(offsets) > most).any():  # terms equal to the threshold exceed the limit
            row = np.repeat(np.arange(len(lengths)), np.diff(offsets))
            order = np.lexsort((rows.indices[kept], -sizes[kept], row))
            kept = np.sort(kept[order][np.arange(len(kept)) - offsets[row] < most])
            offsets = np.searchsorted(kept, rows.indptr)
        rows = sparse.csr_matrix((rows.data[kept], rows.indices[kept], offsets), shape=rows.shape)
    rows.sort_indices()
    normalize_rows(rows)
    return rows


def _kth_largest(sizes: np.ndarray, offsets: np.ndarray, k: int) -> np.ndarray:
    """Return the `k`-th largest of each row's `sizes` (float32 [terms]), float32 [rows]; 0 for rows of at most k."""
    lengths = np.diff(offsets)
    kth_largest = np.zeros(len(lengths), dtype=np.float32)
    long = np.flatnonzero(lengths > k)
    long = long[np.argsort(lengths[long], kind="stable")]
    begin = 0
    while begin < len(long):
        # A dense table of rows of similar length, padded with zeros.
        width = int(lengths[long[begin]] * 1.25) + 1
        end = int(np.searchsorted(lengths[long], width, side="right"))
        end = min(end, begin + max(1, TABLE_TERMS // width))
        chosen = long[begin:end]
        inside = np.arange(width) < lengths[chosen, None]
        table = np.zeros(inside.shape, dtype=np.float32)
        positions = offsets[chosen, None] + np.arange(width)
        table[inside] = sizes[positions[inside]]
        table.partition(width - k, axis=1)
        kth_largest[chosen] = table[:, width - k]
        begin = end
    return kth_largest
