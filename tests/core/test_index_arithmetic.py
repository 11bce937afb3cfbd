"""Numbers of nodes, labels, rows and offsets at a hundred million nodes, by arrays that take no memory.

An array of one repeated value has strides of zero, and a sparse file has blocks only where something was written.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy import sparse

from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.evaluation.metrics.rankings import hits, labels_without, rank_without
from axml_ray.members.linear_fit import LinearFit, rows_of_range
from axml_ray.members.name_trie import Pairs, Trie
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.label_table import LabelTable
from axml_ray.network.sharding import Shard
from axml_ray.network.tree_level import Level
from axml_ray.planning.shapes import level_shapes
from axml_ray.settings import TreeSettings
from axml_ray.tree.label_tree import LabelTree
from axml_ray.tree.subtree import cluster_offsets, first_centres

NODES, LAST = 100_000_000, 99_999_999
PARENTS, K = 1 << 24, 8
FAR = 3 << 31
"""An offset beyond what 32 bits hold."""


def repeated(value: int, count: int, dtype: type = np.int32) -> np.ndarray:
    return np.broadcast_to(np.array(value, dtype), (count,))


@pytest.fixture
def first_child(tmp_path: Path) -> np.ndarray:
    """Offsets of a level's children, of which only those of the first and of the last parents are written."""
    offsets = np.memmap(tmp_path / "first_child", np.int64, "w+", shape=(PARENTS + 1,))
    offsets[1] = K
    offsets[-3:] = NODES - 2 * K, NODES - K, NODES
    return offsets


@pytest.fixture
def level(first_child: np.ndarray) -> Level:
    found = Level(5, NODES, first_child)
    vars(found)["block_size"] = K  # computing it would read all offsets
    return found


def test_the_shape_of_the_tree() -> None:
    shapes = level_shapes(NODES, TreeSettings(height=4, cluster_size=8, beam=160))
    assert [shape.nodes for shape in shapes] == [1 << 15, 1 << 18, 1 << 21, 1 << 24, NODES]
    assert shapes[-1].rows == PARENTS and shapes[-1].block == 6


def test_clusters_and_their_first_centres() -> None:
    offsets = cluster_offsets(NODES, 12)
    assert offsets.dtype == np.int64 and offsets[-1] == NODES
    assert set(np.diff(offsets)) == {NODES >> 12, (NODES >> 12) + 1}
    sizes = np.array([NODES, 2])
    centres = first_centres(sizes, 0, 24, np.array([PARENTS - 1, 0]))
    assert (centres >= 0).all() and (centres < sizes[:, None]).all() and (centres[:, 0] != centres[:, 1]).all()


@pytest.mark.parametrize("workers", [1, 64])
def test_candidates_of_the_last_parents(level: Level, workers: int) -> None:
    shard = Shard((PARENTS - 1) % workers, workers)
    parents = np.array([[0, PARENTS - 1, -1], [PARENTS - 1, PARENTS - 2, 0]], dtype=np.int32)
    found = Candidates.from_parents(parents, level, shard)
    assert found.rows is not None and found.rows[-1] == (PARENTS - 1) // workers
    held = found.parents.numpy() == PARENTS - 1
    assert held.any(axis=1).all() and found.exists.view(2, -1, K).numpy()[held].all()
    document, slot = found.positives(level, np.array([0, 1]), np.array([LAST, LAST - 2])).numpy()
    assert document.tolist() == [0, 1]
    assert (slot % K).tolist() == [K - 1, K - 3]


def test_rows_and_slots_of_a_label_table(first_child: np.ndarray) -> None:
    shard = Shard(63, 64)
    with torch.device("meta"):
        table = LabelTable(NODES, PARENTS, K, 1024, shard)
    assert table.weight.numel() == PARENTS // 64 * K * 1024 > 2**30
    row, slot = table._locate(torch.tensor([LAST, NODES - K - 1]), torch.from_numpy(first_child))
    assert row.tolist() == [(PARENTS - 1) // 64, (PARENTS - 2) // 64]
    assert slot.tolist() == [K - 1, K - 1]
    assert shard.size(NODES) == len(range(63, NODES, 64)) and int(shard.ids(NODES)[-1]) == NODES - 1


def large_tree() -> LabelTree:
    """A tree of two levels whose labels are all leaves of the last cluster; its arrays are not those of a tree."""
    tree = object.__new__(LabelTree)
    object.__setattr__(tree, "label_order", repeated(LAST, NODES))
    object.__setattr__(tree, "first_child", (np.array([0, PARENTS]), np.array([0, NODES])))
    vars(tree)["_node_of_label"] = (repeated(PARENTS - 1, NODES), repeated(LAST, NODES))
    return tree


def test_true_nodes_of_documents() -> None:
    labels, offsets = np.full(200, LAST, dtype=np.int32), np.arange(101, dtype=np.int64) * 2
    for level, node in ((1, PARENTS - 1), (2, LAST)):
        nodes, ends = large_tree().node_labels(level, labels, offsets)
        assert nodes.dtype == np.int32 and nodes.tolist() == [node] * 100
        assert ends.tolist() == list(range(101))


def test_ranges_of_nodes_with_many_documents() -> None:
    nodes = 1_000
    documents = Ragged(repeated(0, nodes * NODES), np.arange(nodes + 1, dtype=np.int64) * NODES)
    tree = object.__new__(LabelTree)
    fit = LinearFit(tree, sparse.csr_matrix((1, 1), dtype=np.float32), [documents])
    ranges = list(fit.ranges())
    assert rows_of_range(nodes * NODES) < NODES and len(ranges) == nodes  # one node each
    assert ranges[-1].last == nodes


def test_ragged_rows_far_from_the_first() -> None:
    rows = Ragged(repeated(7, FAR + 3), np.array([0, FAR, FAR + 3]))
    assert rows.lengths.tolist() == [FAR, 3]
    assert rows[1].tolist() == [7, 7, 7]
    taken = rows.take(np.array([1, 1]))
    assert taken.values.tolist() == [7] * 6 and taken.offsets.tolist() == [0, 3, 6]
    with pytest.raises(pa.ArrowInvalid):  # not offsets that wrap around
        rows.to_arrow()


def test_rankings_of_the_last_labels() -> None:
    documents = 60  # documents · labels > 2³¹
    top = np.tile(np.array([[LAST, 5, -1]], dtype=np.int32), (documents, 1))
    truth = Ragged(np.tile(np.array([5, LAST - 1], np.int32), documents), np.arange(documents + 1) * 2)
    assert hits(top, truth.values, truth.offsets).tolist() == [[False, True, False]] * documents
    ranking = TopK(top, np.tile(np.array([[3, 2, 0]], np.float32), (documents, 1)))
    assert rank_without(truth, ranking).labels.tolist() == [[LAST, -1, -1]] * documents
    assert labels_without(truth, truth).lengths.sum() == 0
    allowed = ranking.among(repeated(1, NODES, np.bool_))
    assert allowed.labels.tolist() == top.tolist()


def test_names_of_the_last_labels_in_texts() -> None:
    stems = np.arange(10, dtype=np.int32)
    names, labels = Ragged.from_rows([[3], [4, 5]]), np.array([LAST, LAST - 1], dtype=np.int32)
    texts = Ragged.from_rows([[3, 4, 5]] * 60)
    pairs = Pairs.of(Trie.of(names, labels, stems), texts, NODES)
    assert pairs.labels.tolist() == [LAST - 1, LAST] * 60
    assert pairs.documents.tolist() == np.repeat(np.arange(60), 2).tolist()
    assert pairs.true(Ragged.from_rows([[LAST]] * 60)).tolist() == [False, True] * 60
