"""Training of the linear classifiers of a label tree's nodes.

A node's classifier separates the documents with one of its labels (positive) from the others of its parent; at level 1,
from all others. Siblings share the matrix of their documents, cut to the features that occur in it.

Most documents are so unlike a node's few positive ones that they do not move its classifier. So a classifier is fitted
on a *working set*: the positive documents, the negative ones most similar to them, and a sample of all. The margins of
all documents under all siblings are then one matrix product, and a classifier with negative documents above `VIOLATION`
outside of its working set is fitted again with them. This gives the scores of a fit on all documents in a fraction of
the time (docs/LOG.md). Nodes are fitted one after the other, because liblinear must not run in several threads; trees
are fitted in parallel, each in its own process.

Legend: N documents, F features of a text, n_d nodes of level d, s siblings.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy import sparse

from axml_ray.core.ragged import Ragged
from axml_ray.members import liblinear
from axml_ray.settings.members import LinearTreeSettings
from axml_ray.tree.label_tree import LabelTree

CERTAIN = 10.0
"""Absolute bias of a node that is true for all (positive) or none (negative) of its parent's documents."""
SIMILAR, SAMPLED = 100, 300
"""Negative documents of a working set: the most similar ones, twice the number of positive documents if that is more,
and documents that are spread evenly."""
VIOLATION = -0.8
"""Margin above which a negative document outside of the working set has to join it; -1 would be a fit on all."""
SMALLEST_WEIGHT = 0.1
"""Weights of a smaller absolute value are dropped."""
MOST_MARGINS = 1 << 24
"""Largest number of margins, and of weights, of siblings that are in memory at a time."""
SparseRow = tuple[np.ndarray, np.ndarray]
"""Features of a classifier, int [n], and their weights, float32 [n]."""


def fit_classifiers(
    tree: LabelTree, rows: sparse.csr_matrix, labels: Ragged, settings: LinearTreeSettings
) -> list[sparse.csr_matrix]:
    """Fit the classifiers of all nodes of a tree over the trained labels.

    Args:
        tree: the label tree.
        rows: float32 CSR [N, F + 1], features of the training documents, as returned by `Featurizer.matrix`.
        labels: label ids of each document.
        settings: cost of misclassified documents.

    Returns:
        For levels 1 to H + 1, float32 CSR [n_d, F + 1]; the last column is the bias.
    """
    weights = []
    for level, size in enumerate(tree.level_sizes, start=1):
        # Invert the nodes of each document: the documents of each node, ascending.
        nodes_of = Ragged(*tree.node_labels(level, labels.values, labels.offsets))
        documents = np.repeat(np.arange(len(nodes_of), dtype=np.int32), nodes_of.lengths)
        counts = np.bincount(nodes_of.values, minlength=size)
        order = np.argsort(nodes_of.values, kind="stable")
        of_nodes = Ragged(documents[order], np.concatenate([[0], np.cumsum(counts)]))
        classifiers: list[SparseRow] = []
        for nodes in pairwise(tree.first_child[level - 1].tolist()):
            siblings = _Siblings.of(rows, nodes, of_nodes, all_documents=level == 1)
            for part in siblings.parts():
                classifiers += part.fit(settings)
        offsets = np.concatenate([[0], np.cumsum([len(row[0]) for row in classifiers])])
        values, columns = (np.concatenate([row[part] for row in classifiers]) for part in (1, 0))
        weights.append(sparse.csr_matrix((values, columns.astype(np.int32), offsets), shape=(size, rows.shape[1])))
    return weights


@dataclass(frozen=True)
class _Siblings:
    """Siblings, and the documents of their parent.

    Attributes:
        rows: float32 CSR [N, F'], the features of the documents; the last column is the bias.
        precise: the same in float64, as liblinear takes them; shares the index arrays of `rows`.
        columns: int [F'], the features that these columns are.
        positive: rows of the positive documents of each sibling.
    """

    rows: sparse.csr_matrix
    precise: sparse.csr_matrix
    columns: np.ndarray
    positive: Ragged

    @classmethod
    def of(
        cls, rows: sparse.csr_matrix, nodes: tuple[int, int], of_nodes: Ragged, *, all_documents: bool
    ) -> "_Siblings":
        """Collect the documents of the siblings `nodes[0]` to `nodes[1] - 1`, or take all documents."""
        positive = of_nodes.take(np.arange(*nodes))
        if all_documents:
            return cls(rows, _in_float64(rows), np.arange(rows.shape[1]), positive)
        documents = np.unique(positive.values)
        some = rows[documents]
        columns, places = np.unique(some.indices, return_inverse=True)
        some = sparse.csr_matrix(
            (some.data, places.astype(np.int32), some.indptr), shape=(len(documents), len(columns))
        )
        positive = Ragged(np.searchsorted(documents, positive.values), positive.offsets)
        return cls(some, _in_float64(some), columns, positive)

    def parts(self) -> Iterator["_Siblings"]:
        """Yield groups of siblings whose margins and weights fit into memory together."""
        size = max(1, MOST_MARGINS // max(self.rows.shape))
        for first in range(0, len(self.positive), size):
            inside = np.arange(first, min(first + size, len(self.positive)))
            yield replace(self, positive=self.positive.take(inside))

    def fit(self, settings: LinearTreeSettings) -> list[SparseRow]:
        """Fit the classifiers of all siblings."""
        documents, count = self.rows.shape[0], len(self.positive)
        weights = np.zeros((self.rows.shape[1], count), dtype=np.float32)
        working_sets: dict[int, np.ndarray] = {}
        # The similarity of each document with a sibling's positive ones is the product of its features, without the
        # bias, with the sum of theirs: float32 [s, N].
        ones = np.ones(len(self.positive.values), dtype=np.float32)
        of_siblings = sparse.csr_matrix((ones, self.positive.values, self.positive.offsets), shape=(count, documents))
        sums = (of_siblings @ self.rows).tocsc()[:, :-1].toarray()
        similarities = np.asarray(self.rows[:, :-1] @ np.ascontiguousarray(sums.T))
        for sibling, similarity in enumerate(np.ascontiguousarray(similarities.T)):
            positive = self.positive[sibling]
            if 0 < len(positive) < documents:
                working_sets[sibling] = _working_set(similarity, positive)
            else:
                weights[-1, sibling] = CERTAIN if len(positive) else -CERTAIN

        def fit_one(sibling: int) -> None:
            is_positive = np.zeros(documents, dtype=np.bool_)
            is_positive[self.positive[sibling]] = True
            inside = working_sets[sibling]
            rows = self.precise if len(inside) == documents else self.precise[inside]
            weights[:, sibling] = liblinear.fit(rows, is_positive[inside], settings.cost)

        for sibling in working_sets:
            fit_one(sibling)
        incomplete = [sibling for sibling, inside in working_sets.items() if len(inside) < documents]
        if incomplete:
            margins = np.asarray(self.rows @ np.ascontiguousarray(weights[:, incomplete]))
            for column, sibling in enumerate(incomplete):
                is_violated = margins[:, column] > VIOLATION
                is_violated[working_sets[sibling]] = False
                if is_violated.any():
                    is_violated[working_sets[sibling]] = True
                    working_sets[sibling] = np.flatnonzero(is_violated)
                    fit_one(sibling)
        kept = [np.flatnonzero(np.abs(column) > SMALLEST_WEIGHT) for column in weights.T]
        return [(self.columns[rows], weights[rows, sibling]) for sibling, rows in enumerate(kept)]


def _in_float64(rows: sparse.csr_matrix) -> sparse.csr_matrix:
    return sparse.csr_matrix((rows.data.astype(np.float64), rows.indices, rows.indptr), shape=rows.shape)


def _working_set(similarity: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """Choose the documents that a classifier is first fitted on, ascending; all if these would be half of them.

    `similarity` (float32 [N]) is that with the positive documents, whose own is overwritten.
    """
    documents, similar = len(similarity), max(SIMILAR, 2 * len(positive))
    if 2 * (similar + len(positive) + SAMPLED) >= documents:
        return np.arange(documents)
    similarity[positive] = np.inf
    nearest = np.argpartition(-similarity, similar + len(positive))[: similar + len(positive)]
    spread = np.linspace(0, documents - 1, SAMPLED).astype(np.int64)
    return np.unique(np.concatenate([nearest, spread]))
