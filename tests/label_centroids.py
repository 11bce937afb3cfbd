"""Label centroids of small corpora in memory, with which those that `prepare` adds from files are compared."""

import numpy as np
from scipy import sparse

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.labels.label_features import (
    apply_tf_idf,
    bag_of_words,
    idf_weights,
    indicator_matrix,
    keep_strongest,
)


def label_centroids(tokens: Ragged, labels: Ragged, words: int, trained: int) -> sparse.csr_matrix:
    """Compute the vector of each label, float32 CSR [trained, words], of length one, or zero without any known word.

    Args:
        tokens: word ids of the training documents.
        labels: label ids of the documents, less than `trained`.
        words: size of the vocabulary.
        trained: number of labels with training documents.
    """
    bag = bag_of_words(tokens, words)
    frequency = np.bincount(bag.indices, minlength=words)
    apply_tf_idf(bag, idf_weights(frequency, len(tokens)))
    return keep_strongest((indicator_matrix(labels, trained).T.tocsr() @ bag).tocsr(), None)
