"""Linear classifiers of a label tree's nodes, learned by liblinear (through scikit-learn).

A node's positive documents are those with one of its labels. A node is told from its siblings on the documents of their
parent; below the root that is all documents. Siblings share their documents' matrix, cut to the features that occur
in it.

Nodes are fitted one after the other: liblinear draws from one random generator of the process, so threads would change
each other's results. Trees are fitted side by side, in processes of their own.

Legend: N documents, F features of a text, n_d nodes of level d.
"""

import warnings
from itertools import pairwise

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from axml_ray.ragged import Ragged
from axml_ray.settings.members import LinearTreeSettings
from axml_ray.tree.label_tree import LabelTree

TOLERANCE, ROUNDS = 0.1, 40
"""Of liblinear's coordinate descent; more rounds move the margins, and hardly their order."""
CERTAIN = 10.0
"""Bias of a node that all, or none, of its parent's documents have."""
SparseRow = tuple[np.ndarray, np.ndarray]
"""Features of a classifier, int [n], and their weights, float32 [n]."""


def fit_classifiers(
    tree: LabelTree, rows: sparse.csr_matrix, labels: Ragged, settings: LinearTreeSettings
) -> list[sparse.csr_matrix]:
    """Learn the classifiers of all nodes.

    Args:
        tree: over the trained labels.
        rows: float32 CSR [N, F + 1], as of `Featurizer.matrix`, of the training documents.
        labels: their label ids.
        settings: cost and threshold.

    Returns:
        For levels 1 to H + 1, float32 CSR [n_d, F + 1]; the last column is the bias.
    """
    rows = rows.astype(np.float64)
    weights = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for level, size in enumerate(tree.level_sizes, start=1):
            of_nodes = _documents_of(Ragged(*tree.node_labels(level, labels.values, labels.offsets)), size)
            found: list[SparseRow] = []
            for siblings in pairwise(tree.first_child[level - 1].tolist()):
                found += _fit_siblings(rows, siblings, of_nodes, settings, all_documents=level == 1)
            offsets = np.concatenate([[0], np.cumsum([len(row[0]) for row in found])])
            values, places = (np.concatenate([row[part] for row in found]) for part in (1, 0))
            weights.append(sparse.csr_matrix((values, places.astype(np.int32), offsets), shape=(size, rows.shape[1])))
    return weights


def _documents_of(nodes: Ragged, size: int) -> Ragged:
    """The documents of each node, ascending, from the nodes of each document."""
    documents = np.repeat(np.arange(len(nodes), dtype=np.int32), nodes.lengths)
    order = np.argsort(nodes.values, kind="stable")
    counts = np.bincount(nodes.values, minlength=size)
    return Ragged(documents[order], np.concatenate([[0], np.cumsum(counts)]))


def _fit_siblings(
    rows: sparse.csr_matrix,
    nodes: tuple[int, int],
    of_nodes: Ragged,
    settings: LinearTreeSettings,
    *,
    all_documents: bool,
) -> list[SparseRow]:
    """The classifiers of the nodes from `nodes[0]` to `nodes[1]` (exclusive), which are siblings."""
    some, columns = rows, np.arange(rows.shape[1])
    documents = np.arange(rows.shape[0])
    if not all_documents:
        first, last = of_nodes.offsets[nodes[0]], of_nodes.offsets[nodes[1]]
        documents = np.unique(of_nodes.values[first:last])
        some = rows[documents]
        columns, places = np.unique(some.indices, return_inverse=True)
        some = sparse.csr_matrix(
            (some.data, places.astype(np.int32), some.indptr), shape=(len(documents), len(columns))
        )
    found: list[SparseRow] = []
    for node in range(*nodes):
        true = np.zeros(len(documents))
        true[np.searchsorted(documents, of_nodes[node])] = 1
        if not 0 < true.sum() < len(true):
            bias = CERTAIN if true.any() else -CERTAIN
            found.append((np.array([rows.shape[1] - 1]), np.array([bias], np.float32)))
            continue
        machine = LinearSVC(
            C=settings.cost, dual=True, fit_intercept=False, tol=TOLERANCE, max_iter=ROUNDS, random_state=0
        )
        weights = machine.fit(some, true).coef_[0]
        kept = np.flatnonzero(np.abs(weights) > settings.threshold)
        found.append((columns[kept], weights[kept].astype(np.float32)))
    return found
