"""TF-IDF label centroids: what a label tree is clustered from (paper, "Building Shallow and Wide PLT").

A label's vector is the L2-normalised sum of the L2-normalised TF-IDF vectors of its training documents.
Term frequencies enter as 1 + ln(tf), as the linear trees that ours is compared with take them.
"""

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import normalize

from axml_ray.corpus.tokenizer import UNKNOWN
from axml_ray.ragged import Ragged


def bag_of_words(tokens: Ragged, words: int) -> sparse.csr_matrix:
    """Word counts, float32 CSR [documents, words]; padding and unknown words count nothing."""
    counts = sparse.csr_matrix(
        (np.ones(len(tokens.values), np.float32), tokens.values, tokens.offsets),
        shape=(len(tokens), words),
        copy=True,  # sum_duplicates sorts in place, and the order of the tokens is the text
    )
    counts.sum_duplicates()
    counts.data[counts.indices <= UNKNOWN] = 0
    counts.eliminate_zeros()
    return counts


def label_centroids(tokens: Ragged, labels: Ragged, words: int, trained: int) -> sparse.csr_matrix:
    """The vector of each label, float32 CSR [trained, words], rows of length one (or zero without words).

    Args:
        tokens: word ids of the training documents.
        labels: their label ids, below `trained`.
        words: size of the vocabulary.
        trained: labels that have training documents.
    """
    documents = TfidfTransformer(sublinear_tf=True).fit_transform(bag_of_words(tokens, words))
    given = sparse.csr_matrix(
        (np.ones(len(labels.values), np.float32), labels.values, labels.offsets), shape=(len(labels), trained)
    )
    return normalize((given.T @ documents).tocsr(), copy=False).astype(np.float32)
