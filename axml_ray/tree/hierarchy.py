"""A tree from a given hierarchy of labels, such as a thesaurus of subjects or a taxonomy of products.

The file has lines of `label<TAB>parent`, with labels as the corpus writes them. Parents may be labels or other names. A
name that is no child of another, or whose line has no parent, is at the top.

Nodes of a hierarchy have from one to thousands of children, so it is not used as a tree as it is. Its labels are put
into one order in which the labels below every node are a run. This order is cut into clusters of at most K labels, and
of more than K/2 except the last, each cut being where the highest nodes end. So no inner node other than the root has
more than K children, and small families share a cluster with those nearest to them in the hierarchy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.text.composition import composed
from axml_ray.tree.clustering import balanced_clusters

TOP = ""
"""The parent of names without a parent."""


@dataclass(frozen=True)
class Hierarchy:
    """A hierarchy of names.

    Attributes:
        path: the file that it was read from.
        parents: the parent of each name, `TOP` if it has none. It has no cycles.
    """

    path: Path
    parents: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> "Hierarchy":
        """Read and check a file of lines `label<TAB>parent`.

        Raises:
            SettingsError: the file cannot be read or is empty, a line is not `label<TAB>parent`, a label has two
                parents, or a label is its own ancestor. The message names the line and how to fix it.
        """
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"tree.hierarchy: {path} cannot be read ({error}); check the path") from None
        parents: dict[str, str] = {}
        line_of: dict[str, int] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            label, _, parent = (part.strip() for part in composed(line).partition("\t"))
            place = f"tree.hierarchy: {path}:{number}"
            if "\t" not in line:
                raise SettingsError(f"{place}: found no tab; write label, tab, parent")
            if not label:
                raise SettingsError(f"{place}: no label before the tab; write label, tab, parent")
            if "\t" in parent:
                raise SettingsError(f"{place}: more than one tab; write one line a label, with one parent")
            if parents.get(label, parent) != parent:
                raise SettingsError(
                    f"{place}: the parent of {label!r} is {parent!r} here and {parents[label]!r} on line "
                    f"{line_of[label]}; keep one of the two"
                )
            parents[label] = parent
            line_of.setdefault(label, number)
        if not parents:
            raise SettingsError(f"tree.hierarchy: {path} is empty; write lines of label, tab, parent")
        cycle = _find_cycle(parents)
        if cycle:
            shown = " → ".join([*cycle[:5], *(["…"] if len(cycle) > 5 else []), cycle[0]])
            raise SettingsError(
                f"tree.hierarchy: {path}:{line_of[cycle[0]]}: {cycle[0]!r} is its own ancestor ({shown}); "
                "change the parent of one of these"
            )
        return cls(path, parents)

    def missing_labels(self, labels: Sequence[str]) -> list[int]:
        """Return the ids of those of the corpus's labels that the file does not name.

        Raises:
            SettingsError: it names none of them.
        """
        named = self.parents.keys() | set(self.parents.values())
        missing = [i for i, label in enumerate(labels) if label not in named]
        if len(missing) == len(labels):
            raise SettingsError(
                f"tree.hierarchy: {self.path} names none of the corpus's {len(labels):,} labels (like {labels[0]!r}); "
                "write labels as the corpus does, not their readable names"
            )
        return missing

    def order(
        self, labels: Sequence[str], features: sparse.csr_array, cluster_size: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Order all labels so that the labels below every node of the hierarchy are a run.

        A node's own label comes first, then its children that have no labels below them, then the other children, in
        the order of the file. If the children without labels below are too many for a cluster, they are ordered by
        similarity. Labels that the file does not name come last, as if they were the children of one node.

        Args:
            labels: all labels, by id.
            features: features by which children are ordered, float64 CSR [L, F], rows of length one or empty.
            cluster_size: most labels of a cluster.
            seed: not negative.

        Returns:
            order: int64 [L], label ids.
            shared_depth: int64 [L]; entry i is the depth (0 for the top) of the lowest node that labels i - 1 and i of
                the order are both below, and 0 for the first label. Cuts are made where it is smallest.

        Raises:
            SettingsError: the file names none of the labels.
        """
        missing = self.missing_labels(labels)
        ids = {label: i for i, label in enumerate(labels)}
        children = self._children(ids)
        for family in children.values():
            childless = np.array([ids[name] for name in family if name not in children], dtype=np.int64)
            ordered = [labels[i] for i in _order_by_similarity(childless, features, cluster_size, seed)]
            family[:] = ordered + [name for name in family if name in children]
        # Walking the tree, the lowest common node of two labels is the parent of the highest name passed between them.
        order, shared_depth, lowest = [], [], 0
        for depth, name in _walk(children):
            lowest = min(lowest, depth - 1)
            if name in ids:
                order.append(ids[name])
                shared_depth.append(lowest)
                lowest = len(self.parents) + 1  # deeper than any name
        rest = _order_by_similarity(np.array(missing, dtype=np.int64), features, cluster_size, seed)
        order += rest.tolist()
        shared_depth += [0, *[1] * (len(rest) - 1)][: len(rest)]
        return np.array(order, dtype=np.int64), np.array(shared_depth, dtype=np.int64)

    def _children(self, ids: Mapping[str, int]) -> dict[str, list[str]]:
        """Return the children of each name, in the order of the file, without those that no label is below or at."""
        needed: set[str] = set()
        for label in ids:
            name = label
            while name not in needed and name != TOP:
                needed.add(name)
                name = self.parents.get(name, TOP)
        children: dict[str, list[str]] = {}
        tops = [name for name in dict.fromkeys(self.parents.values()) if name != TOP and name not in self.parents]
        for name in [*self.parents, *tops]:
            if name in needed:
                children.setdefault(self.parents.get(name, TOP), []).append(name)
        return children


def cut_runs(shared_depth: np.ndarray, ranges: np.ndarray, most: int) -> np.ndarray:
    """Cut runs of labels where the highest nodes of the hierarchy end.

    Args:
        shared_depth: int64 [L], as returned by `Hierarchy.order`.
        ranges: int64 [n + 1], where the runs start, and L.
        most: most labels of a piece. All pieces but the last of a run have more than `most // 2`.

    Returns:
        int64 [pieces + 1], where the pieces start, and L. Each run starts a piece.
    """
    starts = []
    for first, last in zip(ranges[:-1].tolist(), ranges[1:].tolist(), strict=True):
        starts.append(first)
        while last - first > most:
            possible = shared_depth[first + most // 2 + 1 : first + most + 1]
            # Of equally good cuts the last, so that pieces are large: argmin finds the first of the reversed ones.
            first += most - int(possible[::-1].argmin())
            starts.append(first)
    return np.array([*starts, ranges[-1]], dtype=np.int64)


def _walk(children: Mapping[str, Sequence[str]]) -> Iterator[tuple[int, str]]:
    """Yield all names below the top with their depths (1 for its children), depth first, parents before children."""
    stack = [(1, name) for name in reversed(children.get(TOP, ()))]
    while stack:
        depth, name = stack.pop()
        yield depth, name
        stack += [(depth + 1, child) for child in reversed(children.get(name, ()))]


def _order_by_similarity(labels: np.ndarray, features: sparse.csr_array, cluster_size: int, seed: int) -> np.ndarray:
    """Return the labels (int64 [n]), similar ones next to each other if they are too many for one cluster."""
    if len(labels) <= cluster_size:
        return labels
    depth = (len(labels) - 1).bit_length() - (cluster_size - 1).bit_length()
    return labels[balanced_clusters(features[labels], max(depth, 0), seed)[0]]


def _find_cycle(parents: Mapping[str, str]) -> list[str]:
    """Return names each of which is followed by its parent, and the last by the first; empty if there is no cycle."""
    acyclic: set[str] = set()
    for name in parents:
        path: dict[str, None] = {}
        while name in parents and name not in acyclic:
            if name in path:
                names = list(path)
                return names[names.index(name) :]
            path[name] = None
            name = parents[name]
        acyclic.update(path)
    return []
