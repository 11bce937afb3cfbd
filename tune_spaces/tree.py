"""The shallow and wide tree: how high, how large its clusters, how wide the beam, clustered by what; how many trees.

    --space tune_spaces.tree          all of it
    --space tune_spaces.tree:shape    the shape of a tree, trials of one tree

A name is the path of a setting. What is drawn may depend on what was drawn before it, so a flat tree has no clusters.
"""

from axml_ray.tuning.space import Draw


def space(draw: Draw) -> None:
    """A tree's shape, and how many trees vote: worth drawing against the cost of prediction."""
    shape(draw)
    draw.suggest_int("ensemble.trees", 1, 3)


def shape(draw: Draw) -> None:
    """H, K = M, C, the kind of tree, and what it is clustered by."""
    height = draw.suggest_int("tree.height", 0, 2)
    if height == 0:
        return
    size = draw.suggest_categorical("tree.cluster_size", [8, 16, 32, 64])
    # Candidates decide the cost of a level: a beam of smaller clusters may be wider.
    draw.suggest_int("tree.beam", 8, max(16, 1024 // size), log=True)
    draw.suggest_categorical("tree.kind", ["balanced", "kmeans"])
    draw.suggest_categorical("tree.features", ["tfidf", "word_vectors", "label_text"])
