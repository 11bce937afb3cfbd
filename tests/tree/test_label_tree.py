"""Run: pytest tests/tree/test_label_tree.py"""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from scipy import sparse

from axml_ray.tree import label_tree as module
from axml_ray.tree.clustering import balanced_clusters, normalise_rows
from axml_ray.tree.label_tree import LabelTree, level_depths

METADATA = {"format": "axml-ray label tree", "version": "1"}


def eight_labels() -> LabelTree:
    """Two levels of clusters: {5, 0 | 3 | 1} and {2, 7 | 4, 6}.

    level 1          0                    1
    level 2     0      1    2         3       4
    leaves     0 1     2    3        4 5     6 7
    labels     5 0     3    1        2 7     4 6
    """
    return LabelTree(
        label_order=np.array([5, 0, 3, 1, 2, 7, 4, 6], np.int32),
        first_child=(np.array([0, 2]), np.array([0, 3, 5]), np.array([0, 2, 3, 4, 6, 8])),
    )


def random_features(labels: int, seed: int = 0) -> sparse.csr_array:
    rng = np.random.default_rng(seed)
    return sparse.random_array((labels, 40), density=0.15, rng=rng, format="csr", dtype=np.float32) * 7


def same_tree(one: LabelTree, other: LabelTree) -> bool:
    return np.array_equal(one.label_order, other.label_order) and all(
        np.array_equal(a, b) for a, b in zip(one.first_child, other.first_child, strict=True)
    )


def walk_up(tree: LabelTree, level: int, documents: list[list[int]]) -> list[list[int]]:
    """Algorithm 2, literally: from each label's leaf, parent by parent, to the level."""
    result = []
    for labels in documents:
        nodes = set()
        for label in labels:
            if label >= len(tree.label_order):
                continue
            node = tree.label_order.tolist().index(label)
            for below in range(tree.height + 1, level, -1):
                offsets = tree.first_child[below - 1]
                node = next(i for i in range(len(offsets) - 1) if offsets[i] <= node < offsets[i + 1])
            nodes.add(node)
        result.append(sorted(nodes))
    return result


def ragged(documents: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    labels = np.array([label for document in documents for label in document], np.int32)
    return labels, np.cumsum([0, *map(len, documents)], dtype=np.int64)


def test_the_papers_three_examples():
    assert [2**x for x in level_depths(670_091, 3, 8)] == [2_048, 16_384, 131_072]
    assert [2**x for x in level_depths(501_008, 1, 64)] == [8_192]
    assert [2**x for x in level_depths(2_812_281, 3, 8)] == [8_192, 65_536, 524_288]


def test_levels_that_would_be_the_root_are_left_out():
    assert level_depths(30, 3, 4) == (1, 3)  # depths 3, 1, -1
    assert level_depths(16, 2, 4) == (2,)  # depths 2, 0
    assert level_depths(8, 3, 8) == ()
    assert level_depths(670_091, 0, 8) == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 8), "at least 1 label"),
        ((9, -1, 8), "height is -1"),
        ((9, 1, 12), "not a power of two: use 8 or 16"),
        ((9, 1, 3), "use 2 or 4"),
        ((9, 1, 1), "use 2 or 4"),
        ((9, 1, 0), "use 2 or 4"),
    ],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        level_depths(*arguments)


def test_eight_labels_by_hand():
    tree = eight_labels()
    assert tree.height == 2
    assert tree.level_sizes == (2, 5, 8)
    assert tree.leaf_of_label.tolist() == [1, 3, 4, 2, 6, 0, 7, 5]
    assert [tree.parents(level).tolist() for level in (1, 2, 3)] == [
        [0, 0],
        [0, 0, 0, 1, 1],
        [0, 0, 1, 2, 3, 3, 4, 4],
    ]
    assert [tree.max_children(level) for level in (0, 1, 2)] == [2, 3, 2]
    labels, offsets = ragged([[6, 2, 7], [], [8, 900], [0, 5, 1, 0]])
    expected = {1: [[1], [], [], [0]], 2: [[3, 4], [], [], [0, 2]], 3: [[4, 5, 7], [], [], [0, 1, 3]]}
    for level, documents in expected.items():
        nodes, ends = tree.node_labels(level, labels, offsets)
        assert nodes.dtype == np.int32 and ends.dtype == np.int64
        assert [part.tolist() for part in np.split(nodes, ends[1:-1])] == documents


def test_levels_out_of_range():
    tree = eight_labels()
    none = np.empty(0, np.int32), np.zeros(1, np.int64)
    for call in (
        lambda: tree.parents(0),
        lambda: tree.parents(4),
        lambda: tree.max_children(3),
        lambda: tree.max_children(-1),
        lambda: tree.node_labels(0, *none),
        lambda: tree.node_labels(4, *none),
    ):
        with pytest.raises(ValueError, match=r"level -?\d is not one of"):
            call()


def test_node_labels_of_no_documents_and_of_wrong_input():
    tree = eight_labels()
    nodes, offsets = tree.node_labels(1, np.empty(0, np.int32), np.zeros(1, np.int64))
    assert nodes.tolist() == [] and offsets.tolist() == [0]
    for offsets in ([], [1, 2], [0, 1], [0, 3, 2]):
        with pytest.raises(ValueError, match="offsets must rise from 0"):
            tree.node_labels(1, np.array([0, 1], np.int32), np.array(offsets, np.int64))
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        tree.node_labels(1, np.array([0, -1], np.int32), np.array([0, 2]))


@given(
    labels=st.integers(1, 120),
    height=st.integers(0, 4),
    cluster_size=st.sampled_from([2, 4, 8]),
    seed=st.integers(0, 2**40),
    documents=st.lists(st.lists(st.integers(0, 130), max_size=8), max_size=6),
    at_once=st.sampled_from([1, 2, 1 << 12]),
)
@settings(max_examples=60, deadline=None)
def test_any_tree(tmp_path_factory, labels, height, cluster_size, seed, documents, at_once):
    tree = LabelTree.build(random_features(labels), height=height, cluster_size=cluster_size, seed=seed)
    depths = level_depths(labels, height, cluster_size)
    assert tree.height == len(depths) <= height
    assert tree.level_sizes == (*(2**depth for depth in depths), labels)
    assert sorted(tree.label_order) == list(range(labels))
    assert np.array_equal(tree.label_order[tree.leaf_of_label], np.arange(labels))
    assert all(tree.max_children(level) <= cluster_size for level in range(1, tree.height + 1))
    sizes = np.diff(tree.first_child[-1])
    assert sizes.max() - sizes.min() <= 1
    for level in range(1, tree.height + 2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "DOCUMENTS_AT_ONCE", at_once)
            nodes, offsets = tree.node_labels(level, *ragged(documents))
        parts = [nodes[start:end].tolist() for start, end in pairwise(offsets)]
        assert parts == walk_up(tree, level, documents)
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    tree.save(path)
    assert same_tree(LabelTree.load(path), tree)


def test_nodes_of_documents_take_little_more_memory_than_their_result():
    """Two million documents have 72 million labels: an int64 index of them is half a gibibyte."""
    random = np.random.default_rng(0)
    documents, each = 100_000, 20
    labels = random.integers(0, 40_000, documents * each, dtype=np.int32)
    tree = LabelTree.from_cuts(np.arange(40_000), [np.arange(0, 40_001, 10)])
    tree.node_labels(1, labels[:each], np.array([0, each]))  # caches the nodes of labels
    tracemalloc.start()
    nodes, _ = tree.node_labels(1, labels, np.arange(0, len(labels) + 1, each))
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert nodes.nbytes <= held < nodes.nbytes + 3 * 8 * documents
    assert peak - held < 6 * len(labels)


def algorithm_1(deep: list[list[list[int]]], height: int, c: int) -> list[tuple[list[int], ...]]:
    """Paper, Algorithm 1, on T₀ given as the clusters of each depth: the paths of clusters down to each leaf's parent.

    Nodes are (depth, place); the parent of (d, i) in T₀ is (d - 1, i // 2), that of the root is itself.
    """
    ancestor = lambda node, steps: (max(node[0] - steps, 0), node[1] >> min(steps, node[0]))  # noqa: E731
    chosen = [{(len(deep) - 1, place) for place in range(len(deep[-1]))}]
    parent = {}
    for h in range(1, height + 1):
        above = {ancestor(node, c) for node in chosen[-1]} if h < height else {(0, 0)}
        for node in chosen[-1]:
            parent[node] = ancestor(node, c) if h < height else (0, 0)
        chosen.append(above)
    paths = []
    for node in sorted(chosen[0]):
        path = [node]
        while path[-1] != (0, 0):
            path.append(parent[path[-1]])
        paths.append(tuple(deep[depth][place] for depth, place in reversed(path) if depth > 0))
    return paths


@given(
    labels=st.integers(2, 300),
    height=st.integers(1, 5),
    c=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_compressing_is_algorithm_1(labels, height, c, seed):
    features = random_features(labels, seed=seed)
    depth = 0
    while -(-labels // 2**depth) > 2**c:
        depth += 1
    deep = []
    for d in range(depth + 1):
        order, offsets = balanced_clusters(normalise_rows(features), d, seed)
        deep.append([sorted(part.tolist()) for part in np.split(order, offsets[1:-1])])
    tree = LabelTree.build(features, height=height, cluster_size=2**c, seed=seed)
    below = tree.first_child[-1]
    paths = []
    for node in range(len(below) - 1 if tree.height else 0):
        path, start, end = [], node, node + 1
        for level in range(tree.height, 0, -1):
            first, last = start, end
            for offsets in tree.first_child[level:]:
                first, last = offsets[first], offsets[last]
            path.append(sorted(tree.label_order[first:last].tolist()))
            start = tree.parents(level)[start]
            end = start + 1
        paths.append(tuple(reversed(path)))
    assert paths == [path for path in algorithm_1(deep, height, c) if path]
    assert all(tree.max_children(level) <= 2**c for level in range(1, tree.height + 1))


@pytest.mark.parametrize(("labels", "sizes"), [(1, (1,)), (2, (2,)), (9, (2, 9)), (4_200, (16, 128, 1_024, 4_200))])
def test_any_number_of_labels(labels, sizes):
    tree = LabelTree.build(random_features(labels), height=3, cluster_size=8, seed=0)
    assert tree.level_sizes == sizes


def test_two_labels_in_clusters_of_two_need_no_clusters():
    tree = LabelTree.build(random_features(2), height=1, cluster_size=2, seed=0)
    assert tree.height == 0 and tree.label_order.tolist() == [0, 1]


def test_a_flat_tree_keeps_the_order_of_labels():
    tree = LabelTree.build(random_features(300), height=0, cluster_size=8, seed=0)
    assert tree.label_order.tolist() == list(range(300))
    assert [offsets.tolist() for offsets in tree.first_child] == [[0, 300]]


@pytest.mark.parametrize("value", [0.0, 2.5])
def test_labels_that_are_all_alike(value):
    tree = LabelTree.build(sparse.csr_array(np.full((50, 3), value)), height=2, cluster_size=4, seed=0)
    assert tree.label_order.tolist() == list(range(50))
    assert tree.level_sizes == (4, 16, 50)


def test_the_seed_decides_and_the_scale_does_not():
    features = random_features(500)
    first, again, other = (LabelTree.build(features, height=2, cluster_size=4, seed=seed) for seed in (0, 0, 1))
    assert same_tree(first, again)
    assert not same_tree(first, other)
    scaled = features.multiply(2.0 ** np.arange(-5, 5)[np.arange(500) % 10, None]).tocsr()
    assert same_tree(first, LabelTree.build(scaled, height=2, cluster_size=4, seed=0))


def test_saving_replaces_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "tree.safetensors"
    LabelTree.build(random_features(5), height=0, cluster_size=2, seed=0).save(path)
    eight_labels().save(str(path))
    assert same_tree(LabelTree.load(str(path)), eight_labels())
    assert [file.name for file in tmp_path.iterdir()] == ["tree.safetensors"]


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "tree.safetensors"
    eight_labels().save(path)

    def full_disk(_):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        LabelTree.build(random_features(5), height=0, cluster_size=2, seed=0).save(path)
    assert same_tree(LabelTree.load(path), eight_labels())
    assert [file.name for file in tmp_path.iterdir()] == ["tree.safetensors"]


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        LabelTree.load(tmp_path / "none.safetensors")


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"not a tree"])
def test_files_of_another_kind_are_refused(tmp_path, content):
    path = tmp_path / "tree.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"tree\.safetensors is not a label tree"):
        LabelTree.load(path)


@pytest.mark.fault("truncated label tree", "files")
def test_every_truncated_file_is_refused(tmp_path):
    path = tmp_path / "tree.safetensors"
    eight_labels().save(path)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="is not a label tree"):
            LabelTree.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label_order": np.array([5, 0, 3, 1, 2, 7, 4, 4], np.int32)}, "not a permutation of 0 to 7"),
        ({"label_order": np.array([5, 0, 3, 1, 2, 7, 4, -1], np.int32)}, "not a permutation"),
        ({"label_order": np.array([5, 0, 3, 1, 2, 7, 4, 2**31 - 1], np.int32)}, "not a permutation"),
        ({"label_order": np.arange(8)}, "label_order is int64"),
        ({"label_order": np.arange(7, dtype=np.int32)}, "ends at 8, but there are 7 labels"),
        ({"label_order": np.empty(0, np.int32)}, r"not int32\[L\], L >= 1"),
        ({"first_child.0": np.array([1, 2])}, "first_child.0 starts at 1"),
        ({"first_child.0": np.array([0, 3])}, r"first_child.1 is int64\[3\], not int64\[4\]"),
        ({"first_child.1": np.array([0, 5, 5])}, "first_child.1 gives node 1 of level 1 no children"),
        ({"first_child.1": np.array([0, 6, 5])}, "no children"),
        ({"first_child.2": np.array([0, 2, 3, 4, 6, 9])}, "ends at 9"),
        ({"first_child.2": np.array([0, 2, 3, 4, 6, 8], np.int32)}, "first_child.2 is int32"),
        ({"first_child.4": np.array([0, 1])}, "it holds"),
        ({"surplus": np.array([0, 1])}, "it holds"),
    ],
)
def test_arrays_that_are_no_tree_are_refused(tmp_path, change, message):
    tree = eight_labels()
    tensors = {f"first_child.{level}": offsets for level, offsets in enumerate(tree.first_child)}
    path = tmp_path / "odd.safetensors"
    save_file({"label_order": tree.label_order, **tensors} | change, path, metadata=METADATA)
    with pytest.raises(ValueError, match=rf"odd\.safetensors is not a label tree: .*{message}"):
        LabelTree.load(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "its format is None"),
        ({"format": "model"}, "its format is 'model'"),
        (METADATA | {"version": "2"}, "its version is '2', not '1'"),
    ],
)
def test_other_formats_and_versions_are_refused(tmp_path, metadata, message):
    path = tmp_path / "odd.safetensors"
    flat = {"label_order": np.zeros(1, np.int32), "first_child.0": np.array([0, 1])}
    save_file(flat, path, metadata=metadata)
    with pytest.raises(ValueError, match=message):
        LabelTree.load(path)
    save_file({}, path, metadata=METADATA)
    with pytest.raises(ValueError, match="it holds"):
        LabelTree.load(path)
