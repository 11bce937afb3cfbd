"""Run: pytest tests/tree/test_growth.py"""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from axml_ray.tree.growth import grow_tree, previous_leaves
from axml_ray.tree.label_tree import LabelTree


def features_of(labels: int, seed: int, empty: bool) -> sparse.csr_array:
    """Random positive features; every third row is empty if `empty`."""
    rows = np.random.default_rng(seed).random((labels, 6)) * (np.random.default_rng(seed + 1).random((labels, 6)) < 0.5)
    if empty:
        rows[::3] = 0
    return sparse.csr_array(rows)


def literal_clusters(tree: LabelTree, dense: np.ndarray, cluster_size: int) -> list[list[int]]:
    """The definition, cluster by cluster in float64."""
    lengths = np.linalg.norm(dense, axis=1, keepdims=True)
    unit = np.divide(dense, lengths, out=np.zeros_like(dense), where=lengths > 0)
    starts = tree.first_child[-1]
    clusters = [tree.label_order[a:b].tolist() for a, b in itertools.pairwise(starts)]
    centroids = [sum(unit[label] for label in cluster) for cluster in clusters]
    centroids = [each / np.linalg.norm(each) if each.any() else each for each in centroids]
    most = max(2 * cluster_size, *map(len, clusters), -(-len(dense) // len(clusters)))
    for label in range(len(tree.label_order), len(dense)):
        free = [i for i, cluster in enumerate(clusters) if len(cluster) < most]
        best = max(float(unit[label] @ centroids[i]) for i in free)
        near = [i for i in free if float(unit[label] @ centroids[i]) >= best - 1e-12]
        clusters[min(near, key=lambda i: (len(clusters[i]), i))].append(label)
    return clusters


@given(
    old=st.integers(1, 60),
    new=st.integers(0, 80),
    height=st.integers(0, 3),
    seed=st.integers(0, 1_000),
    empty=st.booleans(),
)
def test_a_grown_tree(old: int, new: int, height: int, seed: int, empty: bool) -> None:
    features = features_of(old + new, seed, empty)
    tree = LabelTree.build(features[:old], height=height, cluster_size=4, seed=seed)
    grown = grow_tree(tree, features, 4)
    assert np.array_equal(np.sort(grown.label_order), np.arange(old + new))
    assert grown.height == tree.height and grown.level_sizes[:-1] == tree.level_sizes[:-1]
    for before, now in zip(tree.first_child[:-1], grown.first_child[:-1], strict=True):
        assert np.array_equal(before, now)
    known = np.arange(old)
    for before, now in zip(tree.paths(known)[:-1], grown.paths(known)[:-1], strict=True):
        assert np.array_equal(before, now)
    leaves = previous_leaves(tree, grown)
    assert np.array_equal(leaves[grown.leaf_of_label[known]], tree.leaf_of_label[known])
    assert np.count_nonzero(leaves < 0) == new
    starts = grown.first_child[-1]
    clusters = [grown.label_order[a:b].tolist() for a, b in itertools.pairwise(starts)]
    if tree.height:
        assert clusters == literal_clusters(tree, features.toarray(), 4)
    else:
        assert clusters == [[*tree.label_order.tolist(), *range(old, old + new)]]


def test_a_cluster_that_is_full_takes_no_more() -> None:
    tree = LabelTree.from_cuts(np.arange(4), [np.array([0, 2, 4])])
    rows = np.array([[1, 0.0], [1, 0], [0, 1], [0, 1], *[[1, 0.1]] * 4])
    grown = grow_tree(tree, sparse.csr_array(rows), 2)
    assert grown.label_order.tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert grown.first_child[-1].tolist() == [0, 4, 8]


def test_a_tree_cannot_lose_labels() -> None:
    tree = LabelTree.from_cuts(np.arange(4), [np.array([0, 2, 4])])
    with pytest.raises(ValueError, match="3 labels for a tree of 4"):
        grow_tree(tree, sparse.csr_array(np.eye(3)), 2)
