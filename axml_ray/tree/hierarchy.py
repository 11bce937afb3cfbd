"""A tree from a given hierarchy of labels: a thesaurus of subjects, a taxonomy of products.

The file has lines of `label<TAB>parent`, labels as the corpus writes them. Parents may be labels or other names; a name
that is nobody's child, or a line without a parent, stands at the top.

A hierarchy has families of one and of thousands, so it isn't taken node by node. Its labels are brought into one order
in which every family is a run, and runs are cut into clusters of at most K labels, and of more than K/2 but for the
last, always where the oldest families part. So no inner node but the root has more than K children, and small families
share a cluster with their next of kin.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from axml_ray.settings import SettingsError
from axml_ray.tree.clustering import balanced_clusters

TOP = ""
"""The parent of all that has none."""


@dataclass(frozen=True)
class Hierarchy:
    """Who stands below whom.

    Attributes:
        path: the file.
        parents: the parent of each name, `TOP` where it has none; without circles.
    """

    path: Path
    parents: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> "Hierarchy":
        """Read and check a file of lines `label<TAB>parent`.

        Raises:
            SettingsError: the file can't be read or is empty, a line isn't as it should be, a label has two parents or
                is its own ancestor.
        """
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"tree.hierarchy: {path} cannot be read: {error}") from None
        parents: dict[str, str] = {}
        seen: dict[str, int] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            label, _, parent = (part.strip() for part in line.partition("\t"))
            place = f"tree.hierarchy: {path}:{number}"
            if "\t" not in line:
                raise SettingsError(f"{place}: found no tab; write label, tab, parent")
            if not label:
                raise SettingsError(f"{place}: no label before the tab; write label, tab, parent")
            if "\t" in parent:
                raise SettingsError(f"{place}: more than one tab; write one line a label, with one parent")
            if parents.get(label, parent) != parent:
                raise SettingsError(
                    f"{place}: {label!r} stands below {parent!r} here and below {parents[label]!r} on line "
                    f"{seen[label]}; keep one of the two"
                )
            parents[label] = parent
            seen.setdefault(label, number)
        if not parents:
            raise SettingsError(f"tree.hierarchy: {path} is empty; write lines of label, tab, parent")
        circle = _circle(parents)
        if circle:
            shown = " → ".join([*circle[:5], *(["…"] if len(circle) > 5 else []), circle[0]])
            raise SettingsError(
                f"tree.hierarchy: {path}:{seen[circle[0]]}: {circle[0]!r} stands below itself ({shown}); "
                "change the parent of one of these"
            )
        return cls(path, parents)

    def outside(self, labels: Sequence[str]) -> list[int]:
        """The ids of those labels that the file doesn't name.

        Raises:
            SettingsError: it names none.
        """
        named = self.parents.keys() | set(self.parents.values())
        found = [i for i, label in enumerate(labels) if label not in named]
        if len(found) == len(labels):
            raise SettingsError(
                f"tree.hierarchy: {self.path} names none of the corpus's {len(labels):,} labels, as {labels[0]!r}; "
                "write labels as the corpus does, not their readable names"
            )
        return found

    def order(
        self, labels: Sequence[str], features: sparse.csr_array, cluster_size: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """All labels so that every family is a run.

        A family's label comes first, then those of its children that have no labels below them, then its larger
        branches, in the order of the file. Children without labels below that are too many for a cluster are brought
        next to those like them. Labels that the file doesn't name come last, as one family.

        Args:
            labels: by id.
            features: what like children are found by, float64 CSR [L, F], rows of length one or empty.
            cluster_size: most labels of a cluster.
            seed: not negative.

        Returns:
            order: int64 [L].
            kinship: int64 [L]; kinship[i] is how many steps below the top the families of labels i - 1 and i of the
                order part, 0 at the first.

        Raises:
            SettingsError: the file names none of the labels.
        """
        outside = self.outside(labels)
        ids = {label: i for i, label in enumerate(labels)}
        children = self._branches(ids)
        for family in children.values():
            twigs = np.array([ids[name] for name in family if name not in children], dtype=np.int64)
            alike = [labels[i] for i in _by_likeness(twigs, features, cluster_size, seed)]
            family[:] = alike + [name for name in family if name in children]
        order, kinship, nearest = [], [], 0
        for depth, name in _walk(children):
            nearest = min(nearest, depth - 1)
            if name in ids:
                order.append(ids[name])
                kinship.append(nearest)
                nearest = len(labels)
        rest = _by_likeness(np.array(outside, dtype=np.int64), features, cluster_size, seed)
        order += rest.tolist()
        kinship += [0, *[1] * (len(rest) - 1)][: len(rest)]
        return np.array(order, dtype=np.int64), np.array(kinship, dtype=np.int64)

    def _branches(self, ids: Mapping[str, int]) -> dict[str, list[str]]:
        """The children of each name, in the order of the file, as far as they lead to labels."""
        wanted: set[str] = set()
        for label in ids:
            name = label
            while name not in wanted and name != TOP:
                wanted.add(name)
                name = self.parents.get(name, TOP)
        children: dict[str, list[str]] = {}
        tops = [name for name in dict.fromkeys(self.parents.values()) if name != TOP and name not in self.parents]
        for name in [*self.parents, *tops]:
            if name in wanted:
                children.setdefault(self.parents.get(name, TOP), []).append(name)
        return children


def cut(kinship: np.ndarray, ranges: np.ndarray, most: int) -> np.ndarray:
    """Cut runs of labels where the oldest families part, into pieces of more than most // 2 labels but for the last.

    Args:
        kinship: int64 [L], as `Hierarchy.order` gives it.
        ranges: int64 [n + 1], where the runs start, and L.
        most: labels of a piece.

    Returns:
        int64 [pieces + 1], where they start, and L. Each run ends a piece.
    """
    starts = []
    for first, last in zip(ranges[:-1].tolist(), ranges[1:].tolist(), strict=True):
        starts.append(first)
        while last - first > most:
            places = kinship[first + most // 2 + 1 : first + most + 1]
            # Of equally old partings the last, so that pieces are large.
            first += most - int(places[::-1].argmin())
            starts.append(first)
    return np.array([*starts, ranges[-1]], dtype=np.int64)


def _walk(children: Mapping[str, Sequence[str]]) -> Iterator[tuple[int, str]]:
    """All names below the top, parents first, with their steps from it."""
    stack = [(1, name) for name in reversed(children.get(TOP, ()))]
    while stack:
        depth, name = stack.pop()
        yield depth, name
        stack += [(depth + 1, child) for child in reversed(children.get(name, ()))]


def _by_likeness(labels: np.ndarray, features: sparse.csr_array, cluster_size: int, seed: int) -> np.ndarray:
    """The labels (int64 [n]), like ones together where they are too many for a cluster."""
    if len(labels) <= cluster_size:
        return labels
    depth = (len(labels) - 1).bit_length() - (cluster_size - 1).bit_length()
    return labels[balanced_clusters(features[labels], max(depth, 0), seed)[0]]


def _circle(parents: Mapping[str, str]) -> list[str]:
    """Names that stand below themselves, each before its parent; empty where there are none."""
    sound: set[str] = set()
    for name in parents:
        path: dict[str, None] = {}
        while name in parents and name not in sound:
            if name in path:
                names = list(path)
                return names[names.index(name) :]
            path[name] = None
            name = parents[name]
        sound.update(path)
    return []
