"""Growth of a label tree: new labels join the clusters of a tree that networks were trained on. Not in the paper.

Clusters, their levels and the old labels stay as they are, so that all weights of the old networks keep their meaning;
only the leaf level gets more leaves. A new label joins the cluster whose centroid is nearest by cosine, as long as
that has room: a network's label table pads every cluster to the size of the largest, so one cluster must not take all
new labels.

Legend: L labels of the grown tree, F features, n clusters.
"""

import numpy as np
from scipy import sparse

from axml_ray.tree.clustering import normalise_rows
from axml_ray.tree.inspection import node_sums
from axml_ray.tree.label_tree import LabelTree

LABELS_AT_ONCE = 256
"""New labels whose similarities to all clusters are computed at a time."""


def grow_tree(tree: LabelTree, features: sparse.csr_array, cluster_size: int) -> LabelTree:
    """Return a tree of more labels, in which the new ones have joined the nearest clusters.

    New labels join one after the other by id. Of equally near clusters, and for a label without features, the one with
    the fewest labels is taken, then the first. The most labels of a cluster are the largest of 2K, the size of the
    largest old cluster, and the mean size of the grown clusters.

    Args:
        tree: a tree over the labels 0 to L_old - 1, which keep their ids.
        features: [L, F], sparse, one row for each label, new labels last; rows may be empty.
        cluster_size: K, most labels of a cluster of a tree built anew.

    Returns:
        A tree over L labels. Each cluster has its old labels in their order, then the new ones in that of their ids. A
        tree without clusters gets the new labels at its end.

    Raises:
        ValueError: there are fewer features than labels in the tree, or a feature is not finite.
    """
    old, labels = len(tree.label_order), features.shape[0]
    if labels < old:
        raise ValueError(f"features of {labels} labels for a tree of {old}: a tree can't lose labels")
    joined = np.zeros(labels - old, dtype=np.int64)  # the cluster that each new label joins
    if tree.height:
        rows = normalise_rows(features)
        centroids = normalise_rows(node_sums(tree, tree.height, rows[:old])).T.tocsr()
        sizes = np.diff(tree.first_child[-1])
        most = max(2 * cluster_size, int(sizes.max()), -(-labels // len(sizes)))
        for start in range(old, labels, LABELS_AT_ONCE):
            similarities = (rows[start : start + LABELS_AT_ONCE] @ centroids).toarray()
            for label, similarity in enumerate(similarities, start):
                similarity[sizes >= most] = -np.inf
                nearest = np.flatnonzero(similarity == similarity.max())
                cluster = nearest[sizes[nearest].argmin()]
                joined[label - old] = cluster
                sizes[cluster] += 1
    cluster_of_leaf = np.concatenate([tree.parents(tree.height + 1).astype(np.int64), joined])
    label_order = np.concatenate([tree.label_order, np.arange(old, labels, dtype=np.int32)])
    sizes = np.bincount(cluster_of_leaf, minlength=len(tree.first_child[-1]) - 1)
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    # A stable sort keeps the old leaves of a cluster before the new ones, both in their order.
    label_order = label_order[np.argsort(cluster_of_leaf, kind="stable")]
    return LabelTree(label_order=label_order, first_child=(*tree.first_child[:-1], offsets))


def previous_leaves(old: LabelTree, grown: LabelTree) -> np.ndarray:
    """Return the leaf that each leaf of a grown tree had in the old tree, int64 [L], -1 for that of a new label."""
    known = grown.label_order < len(old.label_order)
    leaves = np.full(len(grown.label_order), -1, dtype=np.int64)
    leaves[known] = old.leaf_of_label[grown.label_order[known]]
    return leaves
