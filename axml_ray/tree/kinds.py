"""The kinds of label trees that `tree.kind` chooses from: balanced, and random ones of the same shape as a control."""

import numpy as np

from axml_ray.corpus.store import Corpus
from axml_ray.settings import TreeSettings
from axml_ray.tree.clustering import cluster_offsets
from axml_ray.tree.halving import MapFunction
from axml_ray.tree.label_tree import LabelTree, level_depths


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
    """
    labels, height, size = corpus.trained, settings.height, settings.cluster_size
    depths = level_depths(labels, height, size)
    if settings.kind == "random" or not depths:
        order = np.random.default_rng(seed).permutation(labels) if depths else np.arange(labels)
        return LabelTree.from_cuts(order, [cluster_offsets(labels, depth) for depth in depths])
    return LabelTree.build(
        corpus.clustering_features(),
        height=height,
        cluster_size=size,
        seed=seed,
        threads=threads,
        parallel_map=parallel_map,
    )
