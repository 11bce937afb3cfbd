"""A page of a whole label tree, to zoom into: one HTML file that needs nothing else.

Clusters are rectangles whose area is their number of labels. A click opens a cluster; a search finds the cluster of a
label.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.evaluation.reports.html_file import write_html
from axml_ray.tree.inspection import label_starts
from axml_ray.tree.label_tree import LabelTree

MOST_LABELS = 200_000
"""Most labels of a page; of a larger tree, each cluster keeps its most frequent labels."""

Node = dict[str, Any]
"""A cluster: `n` (labels below), and `c` (child clusters) or `l` (labels)."""


def write_tree_page(path: Path, tree: LabelTree, index: LabelIndex, title: str) -> None:
    """Write the page atomically.

    Args:
        path: file to write; its directories are created.
        tree: a tree over the trained labels of `index`.
        index: names and training documents of the labels.
        title: title of the page.
    """
    root, shown = nested_clusters(tree, MOST_LABELS)
    labels = [[index.names[label], int(index.counts[label])] for label in shown]
    write_html(path, "tree_page.html.jinja", package="axml_ray.tree", title=title, labels=labels, root=root)


def nested_clusters(tree: LabelTree, most_labels: int) -> tuple[Node, list[int]]:
    """Return the root with all clusters below it, and the ids of the labels that are kept, ascending.

    Args:
        tree: a tree over L labels.
        most_labels: about how many labels to keep, at least one of each cluster: its most frequent ones.

    Returns:
        The root, whose `l` are positions in the list of kept labels; and that list.
    """
    starts = label_starts(tree, tree.height)
    clusters = len(starts) - 1
    of_each = len(tree.label_order) if len(tree.label_order) <= most_labels else max(1, most_labels // clusters)
    # Label ids are numbered by decreasing frequency, except that those of a continued corpus come first.
    members = [np.sort(tree.label_order[first:last])[:of_each] for first, last in pairwise(starts)]
    shown = np.sort(np.concatenate(members))
    nodes: list[Node] = [
        {"n": int(size), "l": np.searchsorted(shown, labels).tolist()}
        for size, labels in zip(np.diff(starts), members, strict=True)
    ]
    for first_child in reversed(tree.first_child[: tree.height]):
        children = (nodes[first:last] for first, last in pairwise(first_child))
        nodes = [{"n": sum(child["n"] for child in group), "c": group} for group in children]
    [root] = nodes
    return root, shown.tolist()
