"""A search space of the label tree: height, cluster size, beam width, and the number of trees.

    --space tune_spaces.tree           all of them
    --space tune_spaces.tree:shape     the shape of one tree
    --space tune_spaces.tree:or_flat   the same, or no tree, for corpora whose labels can all be scored for each text

A name is the path of a setting. A draw may depend on earlier ones, so no cluster size is drawn for a flat tree.
"""

from axml_ray.tuning.space import Draw

CANDIDATES = 1024
"""Largest number of candidates of a level for a text, C · K, which determines the cost of the level."""


def space(draw: Draw) -> None:
    """Draw the shape and the number of trees."""
    shape(draw)
    draw.suggest_int("ensemble.trees", 1, 3)


def shape(draw: Draw) -> None:
    """Draw the height H, the cluster size K = M and the beam width C."""
    draw.suggest_int("tree.height", 1, 3)
    _clusters(draw)


def or_flat(draw: Draw) -> None:
    """Draw a shape like `shape`, or no tree: the paper's network over all labels."""
    if draw.suggest_int("tree.height", 0, 3):
        _clusters(draw)


def _clusters(draw: Draw) -> None:
    size = draw.suggest_categorical("tree.cluster_size", [8, 16, 32, 64])
    # With smaller clusters, the beam can be wider at the same number of candidates.
    draw.suggest_int("tree.beam", 8, CANDIDATES // size, log=True)
