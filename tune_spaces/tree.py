"""The shallow and wide tree: how high, how large its clusters, how wide the beam, clustered by what; how many trees.

    --space tune_spaces.tree           all of it
    --space tune_spaces.tree:shape     the shape of a tree, for trials of one tree
    --space tune_spaces.tree:or_flat   the same, or no tree, where a text can be scored against all labels

A name is the path of a setting. What is drawn may depend on what was drawn before it, so a flat tree has no clusters.
"""

from axml_ray.tuning.space import Draw

CANDIDATES = 1024
"""Most nodes of a level that are scored for a text: C · K. They decide what a level costs."""


def space(draw: Draw) -> None:
    """A tree's shape, and how many trees vote: worth drawing against the cost of prediction."""
    shape(draw)
    draw.suggest_int("ensemble.trees", 1, 3)


def shape(draw: Draw) -> None:
    """H, K = M, C, the kind of tree, and what it is clustered by."""
    draw.suggest_int("tree.height", 1, 3)
    _clusters(draw)


def or_flat(draw: Draw) -> None:
    """As `shape`, or the paper's network without a tree."""
    if draw.suggest_int("tree.height", 0, 3):
        _clusters(draw)


def _clusters(draw: Draw) -> None:
    size = draw.suggest_categorical("tree.cluster_size", [8, 16, 32, 64])
    # A beam of smaller clusters may be wider at the same cost.
    draw.suggest_int("tree.beam", 8, CANDIDATES // size, log=True)
    draw.suggest_categorical("tree.kind", ["balanced", "kmeans"])
    draw.suggest_categorical("tree.features", ["tfidf", "word_vectors", "label_text"])
