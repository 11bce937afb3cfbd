"""Inspection of a tree: its levels in numbers, and the clusters around a label.

Legend: L labels, F features, n_d nodes of level d.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.corpus.text.composition import composed
from axml_ray.tree.label_tree import LabelTree


@dataclass(frozen=True, kw_only=True)
class LevelSummary:
    """A level of clusters in numbers; each triple is the minimum, mean and maximum over its nodes."""

    level: int
    """d, from 1 below the root."""
    nodes: int
    """n_d."""
    children: tuple[int, float, int]
    """Children of a node, at the next level."""
    labels: tuple[int, float, int]
    """Labels below a node."""
    similarity: float
    """Mean cosine of a label to the normalised sum of its node's labels."""


def label_starts(tree: LabelTree, level: int) -> np.ndarray:
    """Return where the labels below each node of a level begin in `label_order`, and L at the end.

    Args:
        tree: a tree.
        level: 0 (the root) to H + 1.

    Returns:
        int64 [n_d + 1].
    """
    nodes = 1 if level == 0 else tree.level_sizes[level - 1]
    starts = np.arange(nodes + 1, dtype=np.int64)
    for first_child in tree.first_child[level:]:
        starts = first_child[starts]
    return starts


def node_sums(tree: LabelTree, level: int, features: sparse.csr_array) -> sparse.csr_array:
    """Return the sum of the features (float CSR [L, F]) of each node's labels, float CSR [n_d, F]."""
    labels = len(tree.label_order)
    # A CSR matrix of ones whose row of a node has its labels as columns.
    parts = np.ones(labels, features.dtype), tree.label_order, label_starts(tree, level)
    return sparse.csr_array(parts, shape=(len(parts[2]) - 1, labels)) @ features


def summarise_levels(tree: LabelTree, features: sparse.csr_array) -> list[LevelSummary]:
    """Summarise all levels of clusters, from the top.

    Args:
        tree: a tree over L labels.
        features: float CSR [L, F], rows of length one or empty.
    """

    def spread(counts: np.ndarray) -> tuple[int, float, int]:
        return int(counts.min()), float(counts.mean()), int(counts.max())

    rows = []
    for level in range(1, tree.height + 1):
        sums = node_sums(tree, level, features)
        # The similarities of labels to the direction of their sum add up to the length of the sum.
        lengths = np.sqrt(sums.multiply(sums).sum(axis=1))
        rows.append(
            LevelSummary(
                level=level,
                nodes=tree.level_sizes[level - 1],
                children=spread(np.diff(tree.first_child[level])),
                labels=spread(np.diff(label_starts(tree, level))),
                similarity=float(lengths.sum()) / len(tree.label_order),
            )
        )
    return rows


def find_label(index: LabelIndex, name: str) -> int:
    """Return the id of a trained label, given its name or the form in which the corpus writes it.

    Case counts only where labels differ in nothing else.

    Raises:
        SettingsError: no trained label is called that; the message lists similar names.
    """
    ids: dict[str, int] = {}
    folded: dict[str, int] = {}
    for names in (index.labels, index.names):
        for number, known in enumerate(names[: index.trained]):
            ids.setdefault(known, number)
            folded.setdefault(known.casefold(), number)
    name = composed(name)
    label = ids.get(name, folded.get(name.casefold()))
    if label is not None:
        return label
    similar = [index.names[folded[known]] for known in difflib.get_close_matches(name.casefold(), folded, n=3)]
    fix = f"did you mean {' or '.join(repr(known) for known in similar)}?" if similar else "names are in labels.parquet"
    raise SettingsError(f"--label: no label with training documents is called {name!r}; {fix}")


def clusters_around(tree: LabelTree, features: sparse.csr_array, label: int, count: int) -> list[np.ndarray]:
    """Return the labels of a label's own cluster, and of the most similar clusters below the same parent.

    Args:
        tree: a tree with at least one level of clusters.
        features: float CSR [L, F], rows of length one or empty.
        label: id of the label.
        count: most clusters to return in addition to its own.

    Returns:
        For each cluster int32 [its labels]; the label's own cluster first, then by decreasing similarity.
    """
    level = tree.height
    starts = label_starts(tree, level)
    cluster = int(np.searchsorted(starts, tree.leaf_of_label[label], side="right")) - 1
    parent = tree.parents(level)[cluster]
    first, last = tree.first_child[level - 1][parent : parent + 2]
    sums = node_sums(tree, level, features)[first:last]
    lengths = np.sqrt(sums.multiply(sums).sum(axis=1))
    # Cosines up to the length of the own cluster's sum, which is the same for all.
    similarity = (sums @ sums[[cluster - first]].T).toarray().ravel() / np.where(lengths > 0, lengths, 1)
    similarity[cluster - first] = np.inf
    nearest = first + np.argsort(-similarity, kind="stable")[: count + 1]
    return [tree.label_order[starts[node] : starts[node + 1]] for node in nearest]


def describe_labels(labels: Sequence[int] | np.ndarray, index: LabelIndex, most: int) -> str:
    """Return the names of the `most` most frequent of some labels as one line, and the number of the others."""
    ranked = index.by_frequency(labels)
    shown = ", ".join(index.names[label] for label in ranked[:most])
    return shown + (f", and {len(ranked) - most:,} more" if len(ranked) > most else "")
