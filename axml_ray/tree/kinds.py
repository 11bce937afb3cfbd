"""The kinds of label trees that `tree.kind` chooses from. All are trained and searched alike.

| kind | clusters | most children of an inner node other than the root |
|---|---|---|
| `balanced` | balanced 2-means, compressed (paper, section 2.2) | K |
| `kmeans` | K-way k-means of any size (Bonsai), large clusters halved | 2K at the last level, about as many above |
| `hierarchy` | runs of related labels of a given hierarchy | K |
| `random` | the shape of `balanced`, labels drawn at random: a control | K |

Every kind bounds the children of a node, since a network's label table stores as many vectors for every parent as the
largest family has children.
"""

import logging

import numpy as np

from axml_ray.corpus.store import Corpus
from axml_ray.settings import TreeSettings
from axml_ray.tree.clustering import cluster_offsets, normalise_rows
from axml_ray.tree.features import clustering_features
from axml_ray.tree.halving import MapFunction
from axml_ray.tree.hierarchy import Hierarchy, cut_runs
from axml_ray.tree.label_tree import LabelTree, level_depths
from axml_ray.tree.shallow_kmeans import kmeans_levels

log = logging.getLogger(__name__)


def check_hierarchy(settings: TreeSettings, corpus: Corpus | None = None) -> None:
    """Check the file of a given hierarchy, if there is one, before anything is built from it.

    Args:
        settings: the tree's settings.
        corpus: the corpus, once it is prepared, to compare the file's labels with.

    Raises:
        SettingsError: the file is not a hierarchy, or names none of the corpus's labels.
    """
    if settings.hierarchy is not None:
        hierarchy = Hierarchy.read(settings.hierarchy)
        if corpus is not None:
            missing = hierarchy.missing_labels(corpus.labels.labels[: corpus.trained])
            if missing:
                log.info(
                    "%s does not name %s of %s labels", settings.hierarchy, f"{len(missing):,}", f"{corpus.trained:,}"
                )


def build_tree(
    corpus: Corpus, settings: TreeSettings, seed: int, *, threads: int = 1, parallel_map: MapFunction | None = None
) -> LabelTree:
    """Build the tree over a corpus's trained labels that the settings ask for.

    Args:
        corpus: a prepared corpus.
        settings: the tree's settings.
        seed: not negative; the same seed gives the same tree.
        threads: number of threads that work on a `balanced` tree, as in `balanced_clusters`.
        parallel_map: maps tasks of a `balanced` tree over processes, likewise.

    Raises:
        SettingsError: the hierarchy's file is wrong, or names none of the corpus's labels.
    """
    labels, size = corpus.trained, settings.cluster_size
    depths = level_depths(labels, settings.height, size)
    if settings.kind == "random" or not depths:
        order = np.random.default_rng(seed).permutation(labels) if depths else np.arange(labels)
        return LabelTree.from_cuts(order, [cluster_offsets(labels, depth) for depth in depths])
    features = clustering_features(corpus, settings.features)
    if settings.kind == "balanced":
        return LabelTree.build(
            features,
            height=settings.height,
            cluster_size=size,
            seed=seed,
            threads=threads,
            parallel_map=parallel_map,
        )
    rows = normalise_rows(features)
    if settings.kind == "kmeans":
        return LabelTree.from_cuts(*kmeans_levels(rows, tuple(2**depth for depth in depths), seed))
    assert settings.hierarchy is not None  # the settings refuse kind `hierarchy` without a file
    names = corpus.labels.labels[:labels]
    order, shared_depth = Hierarchy.read(settings.hierarchy).order(names, rows, size, seed)
    # Every cluster holds more than half of the most labels that it may, so at each level above, a node of K clusters
    # holds at least as many labels as K / 2 full ones: hence the factor size // 2 for a level.
    ranges, cuts = np.array([0, labels]), []
    for level in reversed(range(len(depths))):
        ranges = cut_runs(shared_depth, ranges, size * (size // 2) ** level)
        cuts.append(ranges)
    return LabelTree.from_cuts(order, cuts)
