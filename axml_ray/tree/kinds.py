"""The trees that `tree.kind` chooses from. All are trained and searched alike.

| kind | clusters | most children of an inner node but the root |
|---|---|---|
| `balanced` | by halves, compressed (paper, Algorithm 1) | K |
| `kmeans` | K-way and of any size (Bonsai), large ones halved | 2K of the last level, about as many above |
| `hierarchy` | runs of related labels of a given hierarchy | K |
| `random` | like `balanced` in shape, of labels drawn at random: a control | K |

A network stores as many rows for every parent as the largest family has children, so each kind bounds them.
"""

import logging

import numpy as np

from axml_ray.corpus.store import Corpus
from axml_ray.settings import TreeSettings
from axml_ray.tree.clustering import cluster_offsets, normalise_rows
from axml_ray.tree.features import clustering_features
from axml_ray.tree.halving import Map
from axml_ray.tree.hierarchy import Hierarchy, cut
from axml_ray.tree.label_tree import LabelTree, level_depths
from axml_ray.tree.shallow_kmeans import kmeans_levels

log = logging.getLogger(__name__)


def check_hierarchy(shape: TreeSettings, corpus: Corpus | None = None) -> None:
    """Find what is wrong with a given hierarchy before anything is built from it; `corpus` once it is prepared.

    Raises:
        SettingsError: the file is wrong, or isn't of the corpus's labels.
    """
    if shape.hierarchy is not None:
        hierarchy = Hierarchy.read(shape.hierarchy)
        if corpus is not None:
            outside = hierarchy.outside(corpus.labels.labels[: corpus.trained])
            if outside:
                log.info("%s doesn't name %s of %s labels", shape.hierarchy, f"{len(outside):,}", f"{corpus.trained:,}")


def build_tree(
    corpus: Corpus, shape: TreeSettings, seed: int, *, threads: int = 1, spread: Map | None = None
) -> LabelTree:
    """The tree over a corpus's trained labels that the settings ask for.

    Args:
        corpus: prepared.
        shape: the tree's settings.
        seed: not negative; the same seed gives the same tree.
        threads, spread: who does the work of `balanced`, as in `balanced_clusters`.

    Raises:
        SettingsError: the hierarchy's file is wrong, or isn't of these labels.
    """
    labels, size = corpus.trained, shape.cluster_size
    depths = level_depths(labels, shape.height, size)
    if shape.kind == "random" or not depths:
        order = np.random.default_rng(seed).permutation(labels) if depths else np.arange(labels)
        return LabelTree.of_cuts(order, [cluster_offsets(labels, depth) for depth in depths])
    features = clustering_features(corpus, shape.features)
    if shape.kind == "balanced":
        return LabelTree.build(
            features, height=shape.height, cluster_size=size, seed=seed, threads=threads, spread=spread
        )
    rows = normalise_rows(features)
    if shape.kind == "kmeans":
        return LabelTree.of_cuts(*kmeans_levels(rows, tuple(2**depth for depth in depths), seed))
    assert shape.hierarchy is not None  # the settings see to that
    names = corpus.labels.labels[:labels]
    order, kinship = Hierarchy.read(shape.hierarchy).order(names, rows, size, seed)
    # A piece has more than half of its most labels, so K pieces fit where K / 2 full ones do.
    ranges, cuts = np.array([0, labels]), []
    for level in reversed(range(len(depths))):
        ranges = cut(kinship, ranges, size * (size // 2) ** level)
        cuts.append(ranges)
    return LabelTree.of_cuts(order, cuts)
