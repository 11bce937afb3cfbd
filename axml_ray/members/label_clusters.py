"""A label tree for linear classifiers, clustered by the TF-IDF features that they read.

The cost of a linear classifier grows with the documents of its parent, not with its siblings, so clusters may hold
hundreds of labels where a network's cluster holds a few. The clustering algorithm is that of the networks' tree
(`tree/clustering.py`); only the features differ.

Legend: N documents, F features.
"""

import math

import numpy as np
from scipy import sparse

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.labels.label_features import indicator_matrix, keep_strongest, label_ranges
from axml_ray.tree.clustering import balanced_clusters, normalise_rows
from axml_ray.tree.label_tree import LabelTree
from axml_ray.tree.subtree import cluster_offsets

MOST_TERMS, FEWEST_TERMS = 1 << 26, 32
"""Terms to keep: at most this number in all label vectors together (half a GiB), but never fewer than the second number
in each vector."""
CLUSTERED_PER_SECOND = 3.2e7
"""Terms of label vectors that a core halves once in a second (`benchmarks/results/clustering.json`, 2.8 million)."""


def cluster_depths(trained: int, most: int) -> range:
    """Return the depths of the binary tree that become levels of clusters, from the top; none if one cluster does."""
    return range(round(math.log2(trained / most)), 0, 1 - most.bit_length())[::-1]


def kept_terms(trained: int) -> int:
    """Return how many of its strongest terms a label's vector keeps."""
    return max(MOST_TERMS // trained, FEWEST_TERMS)


def cluster_labels(rows: sparse.csr_matrix, labels: Ragged, trained: int, most: int, seed: int) -> LabelTree:
    """Cluster labels into a tree whose nodes have at most about `most` children, a power of two.

    Args:
        rows: float32 CSR [N, F + 1], features of the training documents, as returned by `Featurizer.matrix`.
        labels: label ids of each document.
        trained: number of labels of the tree, which are those of the smallest ids.
        most: largest number of children.
        seed: not negative.
    """
    depths = cluster_depths(trained, most)
    if not depths:
        return LabelTree.from_cuts(np.arange(trained), [])
    order, _ = balanced_clusters(
        normalise_rows(sparse.csr_array(label_vectors(rows, labels, trained))), depths[-1], seed
    )
    return LabelTree.from_cuts(order, [cluster_offsets(trained, depth) for depth in depths])


def label_vectors(rows: sparse.csr_matrix, labels: Ragged, trained: int) -> sparse.csr_matrix:
    """Return the normalised sum of each label's documents, cut to its strongest terms: float32 CSR [trained, F].

    The arguments are those of `cluster_labels`.
    """
    of_labels = indicator_matrix(labels, trained).T.tocsr()
    terms = kept_terms(trained)
    parts = []
    for begin, end in label_ranges(np.diff(of_labels.indptr), rows.nnz / max(1, len(labels))):
        parts.append(keep_strongest((of_labels[begin:end] @ rows).tocsr()[:, :-1], terms))
    return sparse.vstack(parts, format="csr")
