"""What a tree looks like: its levels in numbers, and the clusters around a label.

Legend: L labels, F features, n_d nodes of level d.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from axml_ray.corpus.label_index import LabelIndex
from axml_ray.settings import SettingsError
from axml_ray.tree.label_tree import LabelTree


@dataclass(frozen=True, kw_only=True)
class LevelSummary:
    """A level of clusters in numbers; each triple is the least, the mean and the most of its nodes."""

    level: int
    """d, from 1 below the root."""
    nodes: int
    """n_d."""
    children: tuple[int, float, int]
    """Of a node, at the next level."""
    labels: tuple[int, float, int]
    """Below a node."""
    similarity: float
    """Mean cosine of a label to the normalised sum of its node's labels."""


def label_starts(tree: LabelTree, level: int) -> np.ndarray:
    """Where the labels below each node of a level (0 to H + 1) begin in `label_order`, and L: int64 [n_d + 1]."""
    nodes = 1 if level == 0 else tree.level_sizes[level - 1]
    starts = np.arange(nodes + 1, dtype=np.int64)
    for first_child in tree.first_child[level:]:
        starts = first_child[starts]
    return starts


def node_sums(tree: LabelTree, level: int, features: sparse.csr_array) -> sparse.csr_array:
    """The sum of the features (float CSR [L, F]) of each node's labels: float CSR [n_d, F]."""
    labels = len(tree.label_order)
    parts = np.ones(labels), tree.label_order, label_starts(tree, level)
    return sparse.csr_array(parts, shape=(len(parts[2]) - 1, labels)) @ features


def summaries(tree: LabelTree, features: sparse.csr_array) -> list[LevelSummary]:
    """All levels of clusters, from the top.

    Args:
        tree: over L labels.
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


def find_label(index: LabelIndex, wanted: str) -> int:
    """The id of a trained label by its name, or as the corpus writes it; case doesn't matter.

    Raises:
        SettingsError: no trained label is called that; the message names those whose names are near.
    """
    called: dict[str, int] = {}
    for names in (index.labels, index.names):
        for number, name in enumerate(names[: index.trained]):
            called.setdefault(name.casefold(), number)
    if wanted.casefold() in called:
        return called[wanted.casefold()]
    near = [index.names[called[name]] for name in difflib.get_close_matches(wanted.casefold(), called, n=3)]
    mend = f"did you mean {' or '.join(repr(name) for name in near)}?" if near else "names are in labels.parquet"
    raise SettingsError(f"--label: no label with training documents is called {wanted!r}; {mend}")


def clusters_around(tree: LabelTree, features: sparse.csr_array, label: int, count: int) -> list[np.ndarray]:
    """The cluster of a label and those most like it below the same parent, each int32 [labels], the own one first.

    Args:
        tree: with at least one level of clusters.
        features: float CSR [L, F], rows of length one or empty.
        label: its id.
        count: how many clusters beside its own, at most.
    """
    level = tree.height
    starts = label_starts(tree, level)
    own = int(np.searchsorted(starts, tree.leaf_of_label[label], side="right")) - 1
    parent = tree.parents(level)[own]
    first, last = tree.first_child[level - 1][parent : parent + 2]
    sums = node_sums(tree, level, features)[first:last]
    lengths = np.sqrt(sums.multiply(sums).sum(axis=1))
    likeness = (sums @ sums[[own - first]].T).toarray().ravel() / np.where(lengths > 0, lengths, 1)
    likeness[own - first] = np.inf
    nearest = first + np.argsort(-likeness, kind="stable")[: count + 1]
    return [tree.label_order[starts[node] : starts[node + 1]] for node in nearest]


def described(labels: Sequence[int] | np.ndarray, index: LabelIndex, most: int) -> str:
    """Names of labels, the most frequent first, as one line; no more than `most`, and how many there are beyond."""
    ranked = sorted(int(label) for label in labels)  # ids are ranked by frequency
    shown = ", ".join(index.names[label] for label in ranked[:most])
    return shown + (f", and {len(ranked) - most:,} more" if len(ranked) > most else "")
