"""Training of the linear classifiers of a label tree's nodes by liblinear (through scikit-learn).

A node's positive documents are those with one of its labels. Its classifier separates them from the other documents of
its parent; at level 1, these are all documents. Siblings share the matrix of their documents, cut to the features that
occur in it.

Nodes are fitted one after the other: liblinear draws from one random generator of the process, so threads would change
each other's results. Trees are fitted in parallel, each in its own process.

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
"""Tolerance and largest number of iterations of liblinear's coordinate descent; more iterations change the margins, but
hardly their order."""
CERTAIN = 10.0
"""Absolute bias of a node that is true for all (positive) or none (negative) of its parent's documents."""
SparseRow = tuple[np.ndarray, np.ndarray]
"""Features of a classifier, int [n], and their weights, float32 [n]."""


def fit_classifiers(
    tree: LabelTree, rows: sparse.csr_matrix, labels: Ragged, settings: LinearTreeSettings
) -> list[sparse.csr_matrix]:
    """Fit the classifiers of all nodes.

    Args:
        tree: a label tree over the trained labels.
        rows: float32 CSR [N, F + 1], features of the training documents, as returned by `Featurizer.matrix`.
        labels: label ids of each document.
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
            classifiers: list[SparseRow] = []
            for siblings in pairwise(tree.first_child[level - 1].tolist()):
                classifiers += _fit_siblings(rows, siblings, of_nodes, settings, all_documents=level == 1)
            offsets = np.concatenate([[0], np.cumsum([len(row[0]) for row in classifiers])])
            values, columns = (np.concatenate([row[part] for row in classifiers]) for part in (1, 0))
            weights.append(sparse.csr_matrix((values, columns.astype(np.int32), offsets), shape=(size, rows.shape[1])))
    return weights


def _documents_of(nodes: Ragged, size: int) -> Ragged:
    """Invert the nodes of each document: return the documents of each node, ascending."""
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
    """Fit the classifiers of the siblings `nodes[0]` to `nodes[1] - 1`."""
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
    classifiers: list[SparseRow] = []
    for node in range(*nodes):
        true = np.zeros(len(documents))
        true[np.searchsorted(documents, of_nodes[node])] = 1
        if not 0 < true.sum() < len(true):
            bias = CERTAIN if true.any() else -CERTAIN
            classifiers.append((np.array([rows.shape[1] - 1]), np.array([bias], np.float32)))
            continue
        machine = LinearSVC(
            C=settings.cost, dual=True, fit_intercept=False, tol=TOLERANCE, max_iter=ROUNDS, random_state=0
        )
        weights = machine.fit(some, true).coef_[0]
        kept = np.flatnonzero(np.abs(weights) > settings.threshold)
        classifiers.append((columns[kept], weights[kept].astype(np.float32)))
    return classifiers
