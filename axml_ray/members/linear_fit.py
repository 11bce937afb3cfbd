"""Training of the linear classifiers of a label tree's nodes.

A node's classifier separates the documents with one of its labels (positive) from the others of its parent; at level 1,
from all others. Siblings share the matrix of their documents, cut to the features that occur in it.

Most documents are so unlike a node's few positive ones that they do not move its classifier. So a classifier is fitted
on a *working set*: the positive documents, the negative ones most similar to them, and a sample of all. The margins of
all documents under all siblings are then one matrix product, and a classifier with negative documents above `VIOLATION`
outside of its working set is fitted again with those of the largest margins. This gives about the scores of a fit on
all documents in a fraction of the time; margins of labels so frequent that more than `MOST_VIOLATING` documents violate
stay somewhat too high (docs/LOG.md). Nodes are fitted one after the other, because liblinear must not run
in several threads.

With millions of labels, the classifiers of a tree take hours and more memory than a process should have. So each range
of nodes, whose working sets have about equally many rows, is fitted by a call of its own, which reads the features from
a memory-mapped file and writes its classifiers into one of its own. The calls can be tasks on any machine; one that is
killed costs its own range. In the end, the files are copied one after the other into that of the tree.

Legend: N documents, F features of a text, n_d nodes of level d, s siblings.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy import sparse

from axml_ray.core import storage
from axml_ray.core.array_file import create_arrays, key_of, matrix, open_arrays, save_arrays
from axml_ray.core.files import remove_directory, whole_file
from axml_ray.core.ragged import Ragged
from axml_ray.tree.halving import MapFunction
from axml_ray.tree.label_tree import LabelTree

log = logging.getLogger(__name__)

CERTAIN = 10.0
"""Absolute bias of a node that is true for all (positive) or none (negative) of its parent's documents."""
SIMILAR, SAMPLED = 100, 300
"""Negative documents of a working set: the most similar ones, twice the number of positive documents if that is more,
and documents that are spread evenly."""
VIOLATION = -0.8
"""Margin above which a negative document outside of the working set has to join it; -1 would be a fit on all."""
MOST_VIOLATING = 1 << 12
"""Number of documents that may join a working set, those of the largest margins; more if the set itself is larger."""
SMALLEST_WEIGHT = 0.1
"""Weights of a smaller absolute value are dropped, at a cost of 1 or more; see `smallest_weight`."""
MOST_MARGINS = 1 << 24
"""Largest number of margins, and of weights, of siblings that are in memory at a time."""
RANGE_ROWS, RANGES, FEW_RANGES = (1 << 18, 1 << 20), 16, 4
"""Least and largest number of rows of working sets in a range of nodes, which takes seconds to minutes; the number of
ranges of a tree if this gives a number of rows between these; and the largest number of ranges that are fitted by the
calling process, as starting tasks would take longer."""
PARTS = ("values", "words", "offsets")
"""The arrays of a level's classifiers in a file: weights, their features, and where each classifier begins."""
ABOUT = {"format": "axml-ray fit of linear classifiers", "version": "1"}
INPUTS = "inputs.safetensors"
SparseRow = tuple[np.ndarray, np.ndarray]
"""Features of a classifier, int [n], and their weights, float32 [n]."""


@dataclass(frozen=True)
class NodeRange:
    """Nodes of a level that are fitted together: `first` to `last - 1` of a level from 1 to H + 1."""

    level: int
    first: int
    last: int

    @property
    def file(self) -> str:
        """Return the name of the file of the classifiers."""
        return f"{self.level}-{self.first}-{self.last}.safetensors"


@dataclass(frozen=True, eq=False)
class LinearFit:
    """The fit of the classifiers of a tree's nodes.

    Attributes:
        tree: the label tree.
        rows: float32 CSR [N, F + 1], features of the training documents, as returned by `Featurizer.matrix`.
        documents: for levels 1 to H + 1, the documents of each node, ascending: n_d rows.
    """

    tree: LabelTree
    rows: sparse.csr_matrix
    documents: Sequence[Ragged]

    @classmethod
    def of(cls, tree: LabelTree, rows: sparse.csr_matrix, labels: Ragged) -> "LinearFit":
        """Collect the documents of each node, given the label ids of each document."""
        documents = []
        for level, size in enumerate(tree.level_sizes, start=1):
            nodes_of = Ragged(*tree.node_labels(level, labels.values, labels.offsets))
            # SciPy's transposition counts; a sort would have an int64 index for each pair.
            ones = np.ones(len(nodes_of.values), np.bool_)
            of_nodes = sparse.csr_matrix((ones, nodes_of.values, nodes_of.offsets), shape=(len(nodes_of), size)).tocsc()
            documents.append(Ragged(of_nodes.indices.astype(np.int32, copy=False), of_nodes.indptr.astype(np.int64)))
        return cls(tree, rows, documents)

    def ranges(self) -> Iterator[NodeRange]:
        """Yield ranges of nodes whose working sets together have about `rows_of_range` rows."""
        levels = [np.cumsum(3 * documents.lengths + SIMILAR + SAMPLED) for documents in self.documents]
        step = rows_of_range(sum(int(rows[-1]) for rows in levels))
        for level, rows in enumerate(levels, start=1):
            cuts = np.searchsorted(rows, np.arange(step, rows[-1], step)) + 1
            starts = np.unique([0, *cuts, len(rows)]).tolist()
            yield from (NodeRange(level, *ends) for ends in pairwise(starts))

    def fit(self, nodes: NodeRange, cost: float) -> sparse.csr_matrix:
        """Fit the classifiers of some nodes: float32 CSR [n, F + 1]; the last column is the bias.

        `cost` is the weight of misclassified documents, C of liblinear.
        """
        classifiers: list[SparseRow] = []
        first_child, of_nodes = self.tree.first_child[nodes.level - 1], self.documents[nodes.level - 1]
        parent = int(np.searchsorted(first_child, nodes.first, side="right")) - 1
        first = nodes.first
        while first < nodes.last:
            last = min(nodes.last, int(first_child[parent + 1]))
            all_siblings = (int(first_child[parent]), int(first_child[parent + 1]))
            siblings = _Siblings.of(self.rows, (first, last), all_siblings, of_nodes, all_documents=nodes.level == 1)
            for part in siblings.parts():
                classifiers += part.fit(cost)
            first, parent = last, parent + 1
        offsets = np.concatenate([[0], np.cumsum([len(row[0]) for row in classifiers])])
        values, columns = (np.concatenate([row[part] for row in classifiers]) for part in (1, 0))
        shape = (nodes.last - nodes.first, self.rows.shape[1])
        return sparse.csr_matrix((values, columns.astype(np.int32), offsets), shape=shape)

    def save(self, path: Path, key: str) -> None:
        """Write the fit into a file that calls on any machine can open, atomically."""
        arrays = {"label_order": self.tree.label_order, **_arrays_of(self.rows, "rows")}
        for level, (children, documents) in enumerate(zip(self.tree.first_child, self.documents, strict=True), start=1):
            arrays |= {f"children.{level}": children, f"documents.{level}": documents.values}
            arrays |= {f"documents.offsets.{level}": documents.offsets}
        save_arrays(arrays, path, {**ABOUT, "features": str(self.rows.shape[1])}, key)

    @classmethod
    def open(cls, path: Path) -> "LinearFit":
        """Open a file that `save` wrote, memory-mapped."""
        arrays, about = open_arrays(path, ABOUT)
        offsets = arrays["offsets.rows"]
        rows = matrix((arrays[f"{part}.rows"] for part in PARTS), (len(offsets) - 1, int(about["features"])), "rows")
        levels = range(1, sum(name.startswith("children.") for name in arrays) + 1)
        tree = LabelTree(
            label_order=arrays["label_order"], first_child=tuple(arrays[f"children.{level}"] for level in levels)
        )
        documents = [Ragged(arrays[f"documents.{level}"], arrays[f"documents.offsets.{level}"]) for level in levels]
        return cls(tree, rows, documents)


def rows_of_range(rows: int) -> int:
    """Return the number of rows of working sets in a range of nodes, given that of all nodes of a tree."""
    least, most = RANGE_ROWS
    return min(most, max(least, rows // RANGES))


def fit_ranges(
    directory: Path, key: str, begin: Callable[[], LinearFit], cost: float, parallel_map: MapFunction = map
) -> tuple[LabelTree, list[Path]]:
    """Fit the classifiers of all nodes of a tree, range by range; what an interrupted call has fitted is kept.

    Args:
        directory: directory of the ranges' files.
        key: cache key of everything that the classifiers depend on.
        begin: returns the fit; called only if `directory` has none with this key.
        cost: C of liblinear.
        parallel_map: fits many ranges.

    Returns:
        The tree, and the files of the ranges of nodes, level by level, in the order of the nodes.
    """
    storage.fetch(directory)  # tasks on other machines have written ranges there
    if key_of(directory / INPUTS, ABOUT) != key:
        remove_directory(directory)
        directory.mkdir(parents=True)
        begin().save(directory / INPUTS, key)
    fit = LinearFit.open(directory / INPUTS)
    ranges = list(fit.ranges())
    missing = [nodes for nodes in ranges if key_of(directory / nodes.file, ABOUT) != key]
    if len(missing) > FEW_RANGES:
        log.info("fitting linear classifiers in %d parts, of which %d are missing", len(ranges), len(missing))
    run = parallel_map if len(missing) > FEW_RANGES else map
    for _ in run(partial(_fit_range, directory, key, cost), missing):
        pass  # each call has written its file
    storage.fetch(directory)
    return fit.tree, [directory / nodes.file for nodes in ranges]


def _fit_range(directory: Path, key: str, cost: float, nodes: NodeRange) -> None:
    storage.fetch(directory / INPUTS)
    weights = LinearFit.open(directory / INPUTS).fit(nodes, cost)
    about = {**ABOUT, "level": str(nodes.level), "features": str(weights.shape[1])}
    save_arrays(_arrays_of(weights, "nodes"), directory / nodes.file, about, key)


def join_ranges(files: Sequence[Path], arrays: dict[str, np.ndarray], path: Path, metadata: dict[str, str]) -> None:
    """Copy the classifiers of ranges of nodes into one file, with further arrays; a range is in memory at a time.

    The arrays of level d are called `values.d`, `words.d` and `offsets.d`.

    Args:
        files: as returned by `fit_ranges`.
        arrays: further arrays of the file.
        path: file to write or replace, atomically.
        metadata: metadata of the file.
    """
    shapes = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    nodes: dict[int, int] = {}
    weights: dict[int, int] = {}
    for file in files:
        fitted, about = open_arrays(file, ABOUT)
        level = int(about["level"])
        nodes[level] = nodes.get(level, 0) + len(fitted["offsets.nodes"]) - 1
        weights[level] = weights.get(level, 0) + len(fitted["values.nodes"])
    for level, count in weights.items():
        shapes |= {
            f"values.{level}": (np.dtype(np.float32), (count,)),
            f"words.{level}": (np.dtype(np.int32), (count,)),
        }
        shapes |= {f"offsets.{level}": (np.dtype(np.int64), (nodes[level] + 1,))}
    with whole_file(path) as temporary:
        written = create_arrays(shapes, temporary, metadata)
        for name, array in arrays.items():
            written[name][:] = array
        node, weight = dict.fromkeys(nodes, 0), dict.fromkeys(nodes, 0)
        for file in files:
            fitted, about = open_arrays(file, ABOUT)
            level = int(about["level"])
            values, words, offsets = (fitted[f"{part}.nodes"] for part in PARTS)
            inside = slice(weight[level], weight[level] + len(values))
            written[f"values.{level}"][inside], written[f"words.{level}"][inside] = values, words
            # The last offset of a range is the first one of the next.
            written[f"offsets.{level}"][node[level] : node[level] + len(offsets)] = weight[level] + offsets
            node[level], weight[level] = node[level] + len(offsets) - 1, inside.stop


def _arrays_of(rows: sparse.csr_matrix, name: str) -> dict[str, np.ndarray]:
    """Return the arrays of a sparse matrix, `values.NAME` and so on."""
    types = (np.float32, np.int32, np.int64)
    arrays = (rows.data, rows.indices, rows.indptr)
    return {
        f"{part}.{name}": array.astype(dtype, copy=False)
        for part, array, dtype in zip(PARTS, arrays, types, strict=True)
    }


@dataclass(frozen=True)
class _Siblings:
    """Siblings, and the documents of their parent.

    Attributes:
        rows: float32 CSR [N, F'], the features of the documents; the last column is the bias.
        columns: int [F'], the features that these columns are.
        positive: rows of the positive documents of each sibling.
    """

    rows: sparse.csr_matrix
    columns: np.ndarray
    positive: Ragged

    @classmethod
    def of(
        cls,
        rows: sparse.csr_matrix,
        nodes: tuple[int, int],
        all_siblings: tuple[int, int],
        of_nodes: Ragged,
        *,
        all_documents: bool,
    ) -> "_Siblings":
        """Collect the siblings `nodes[0]` to `nodes[1] - 1`, and the documents of all siblings, or take all."""
        positive = of_nodes.take(np.arange(*nodes))
        if all_documents:
            return cls(rows, np.arange(rows.shape[1]), positive)
        documents = np.unique(of_nodes.values[slice(*of_nodes.offsets[list(all_siblings)])])
        some = rows[documents]
        is_used = np.zeros(rows.shape[1], dtype=np.bool_)
        is_used[some.indices] = True
        is_used[-1] = True  # the bias, also where no document has any of the siblings
        columns = np.flatnonzero(is_used)
        place_of = np.cumsum(is_used, dtype=np.int32) - np.int32(1)
        some = sparse.csr_matrix((some.data, place_of[some.indices], some.indptr), shape=(len(documents), len(columns)))
        return cls(some, columns, Ragged(np.searchsorted(documents, positive.values), positive.offsets))

    def parts(self) -> Iterator["_Siblings"]:
        """Yield groups of siblings whose margins and weights fit into memory together."""
        size = max(1, MOST_MARGINS // max(self.rows.shape))
        for first in range(0, len(self.positive), size):
            inside = np.arange(first, min(first + size, len(self.positive)))
            yield replace(self, positive=self.positive.take(inside))

    def fit(self, cost: float) -> list[SparseRow]:
        """Fit the classifiers of all siblings."""
        documents, count = self.rows.shape[0], len(self.positive)
        weights = np.zeros((count, self.rows.shape[1]), dtype=np.float32)
        working_sets: dict[int, np.ndarray] = {}
        # The similarity of each document with a sibling's positive ones is the product of its features, without the
        # bias, with the sum of theirs: float32 [s, N].
        ones = np.ones(len(self.positive.values), dtype=np.float32)
        of_siblings = sparse.csr_matrix((ones, self.positive.values, self.positive.offsets), shape=(count, documents))
        sums = (of_siblings @ self.rows).toarray()
        sums[:, -1] = 0
        for sibling, similarity in enumerate(self._products(sums)):
            positive = self.positive[sibling]
            if 0 < len(positive) < documents:
                working_sets[sibling] = _working_set(similarity, positive)
            else:
                weights[sibling, -1] = CERTAIN if len(positive) else -CERTAIN

        from axml_ray.members import liblinear  # imports scikit-learn, which estimates do not need

        def fit_one(sibling: int) -> None:
            is_positive = np.zeros(documents, dtype=np.bool_)
            is_positive[self.positive[sibling]] = True
            inside = working_sets[sibling]
            rows = self.rows if len(inside) == documents else self.rows[inside]
            weights[sibling] = liblinear.fit(rows.astype(np.float64), is_positive[inside], cost)

        for sibling in working_sets:
            fit_one(sibling)
        incomplete = [sibling for sibling, inside in working_sets.items() if len(inside) < documents]
        if incomplete:
            for sibling, margins in zip(incomplete, self._products(weights[incomplete]), strict=True):
                inside = working_sets[sibling]
                margins[inside] = -np.inf
                violating = np.flatnonzero(margins > VIOLATION)
                if len(violating) > (most := max(len(inside), MOST_VIOLATING)):
                    violating = violating[_largest(margins[violating], most)]
                if len(violating):
                    working_sets[sibling] = np.union1d(inside, violating)
                    fit_one(sibling)
        smallest = smallest_weight(cost)
        kept = [np.flatnonzero(np.abs(row) > smallest) for row in weights]
        return [(self.columns[rows], weights[sibling, rows]) for sibling, rows in enumerate(kept)]

    def _products(self, vectors: np.ndarray) -> np.ndarray:
        """Return the products of vectors, float32 [n, F'], with the features of all documents, [n, N]."""
        return np.ascontiguousarray((self.rows @ np.ascontiguousarray(vectors.T)).T)


def smallest_weight(cost: float) -> float:
    """Return the absolute value up to which weights are dropped.

    A cost below 1 makes all weights smaller; its square root keeps their number near that of a cost of 1.
    """
    return SMALLEST_WEIGHT * min(1.0, cost) ** 0.5


def _working_set(similarity: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """Choose the documents that a classifier is first fitted on, ascending; all if these would be half of them.

    `similarity` (float32 [N]) is that with the positive documents, whose own is overwritten.
    """
    documents, similar = len(similarity), max(SIMILAR, 2 * len(positive))
    if 2 * (similar + len(positive) + SAMPLED) >= documents:
        return np.arange(documents)
    similarity[positive] = np.inf
    nearest = _largest(similarity, similar + len(positive))
    spread = np.linspace(0, documents - 1, SAMPLED).astype(np.int64)
    return np.unique(np.concatenate([nearest, spread]))


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the `count` largest values, in any order."""
    return np.argpartition(values, len(values) - count)[len(values) - count :]
