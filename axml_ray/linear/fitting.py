"""Linear classifiers of a tree learned from the training documents, node by node, by liblinear (scikit-learn).

A node's documents are those with one of its labels. It is told from its siblings on the documents of their parent, and
on all documents below the root. Siblings share their documents' matrix, cut to the features that occur there.

One after the other: liblinear draws from one generator of the process, so that threads would change each other's
results. Trees are fitted side by side, in processes of their own. Of n nodes below the root each reads all documents.
"""

import warnings
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from axml_ray.corpus.translation import Translation
from axml_ray.linear.classifiers import LinearTree
from axml_ray.linear.families import families
from axml_ray.linear.text_features import TextFeatures
from axml_ray.ragged import Ragged
from axml_ray.settings import LinearSettings
from axml_ray.tree.label_tree import LabelTree

TOLERANCE, ROUNDS = 0.1, 40
"""Of liblinear's coordinate descent; more rounds move the margins, and hardly their order."""
CERTAIN = 10.0
"""Bias of a node that all, or none, of its parent's documents have."""
Row = tuple[np.ndarray, np.ndarray]
"""Features of a classifier, int [n], and their weights, float32 [n]."""


def fit_linear(
    tree: LabelTree,
    tokens: Ragged,
    labels: Ragged,
    words: Sequence[str],
    settings: LinearSettings,
    seed: int = 0,
    translation: Translation | None = None,
) -> LinearTree:
    """Learn the classifiers of all nodes.

    Args:
        tree: of the networks, over the trained labels. A flat one, or any for a `cluster_size` of None, is kept; others
            give way to `families`.
        tokens: word ids of the training documents.
        labels: their label ids.
        words: of the vocabulary, by id.
        settings: of the classifiers.
        seed: of the families.
        translation: of the words, where texts are in two languages.
    """
    features = TextFeatures.fit(tokens, words, settings, translation)
    rows = features.rows(tokens)
    if settings.cluster_size is not None and tree.height:
        tree = families(rows, labels, len(tree.label_order), settings.cluster_size, seed)
    rows = rows.astype(np.float64)
    weights = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for level, size in enumerate(tree.level_sizes, start=1):
            of_nodes = _documents_of(Ragged(*tree.node_labels(level, labels.values, labels.offsets)), size)
            found = []
            for siblings in pairwise(tree.first_child[level - 1].tolist()):
                found += _siblings(rows, siblings, of_nodes, settings, all_documents=level == 1)
            offsets = np.concatenate([[0], np.cumsum([len(row[0]) for row in found])])
            values, places = (np.concatenate([row[part] for row in found]) for part in (1, 0))
            weights.append(sparse.csr_matrix((values, places.astype(np.int32), offsets), shape=(size, rows.shape[1])))
    return LinearTree(tree, weights, features)


def _documents_of(nodes: Ragged, size: int) -> Ragged:
    """The documents of each node, ascending, from the nodes of each document."""
    documents = np.repeat(np.arange(len(nodes), dtype=np.int32), nodes.lengths)
    order = np.argsort(nodes.values, kind="stable")
    counts = np.bincount(nodes.values, minlength=size)
    return Ragged(documents[order], np.concatenate([[0], np.cumsum(counts)]))


def _siblings(
    rows: sparse.csr_matrix, nodes: tuple[int, int], of_nodes: Ragged, settings: LinearSettings, *, all_documents: bool
) -> list[Row]:
    """The classifiers of some siblings."""
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
    found = []
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
