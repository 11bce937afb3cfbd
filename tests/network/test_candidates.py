"""Run: pytest tests/network/test_candidates.py"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.label_table import LabelTable
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level

FIRST_CHILD = np.array([0, 3, 4, 8, 10, 11])  # 5 parents of 3, 1, 4, 2 and 1 children


def level_of(first_child: np.ndarray) -> Level:
    return Level(2, int(first_child[-1]), first_child)


@st.composite
def lists(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Ragged lists of distinct parents, -1 anywhere, and where the parents' children begin."""
    children = draw(st.lists(st.integers(1, 5), min_size=1, max_size=9))
    width = draw(st.integers(1, len(children)))
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        chosen = draw(st.permutations(range(len(children))))[:width]
        rows.append([parent if draw(st.integers(0, 3)) else -1 for parent in chosen])
    return np.array(rows), np.concatenate([[0], np.cumsum(children)])


def nodes_of(one: Candidates, first_child: np.ndarray) -> list[list[tuple[int, int]]]:
    """Each document's candidates, as (column of the parent, node), read from the shard's own fields."""
    block = int(np.diff(first_child).max())
    exists = one.exists.view(*one.parents.shape, block)
    found = []
    for parents, columns, here in zip(one.parents.tolist(), one.beam_columns.tolist(), exists, strict=True):
        row = []
        for parent, column, children in zip(parents, columns, here.tolist(), strict=True):
            assert parent >= 0 or not any(children)
            row += [(column, int(first_child[parent]) + child) for child in range(block) if children[child]]
        found.append(row)
    return found


def literal(parents: np.ndarray, first_child: np.ndarray) -> list[list[tuple[int, int]]]:
    return [
        [(c, node) for c, p in enumerate(row) if p >= 0 for node in range(first_child[p], first_child[p + 1])]
        for row in parents.tolist()
    ]


@given(lists(), st.integers(1, 4))
def test_shards_part_the_candidates_among_them(given_lists, count):
    parents, first_child = given_lists
    together: list[list[tuple[int, int]]] = [[] for _ in parents]
    for rank in range(count):
        one = Candidates.from_parents(parents, level_of(first_child), Shard(rank, count))
        for row, own in zip(together, nodes_of(one, first_child), strict=True):
            row += own
    assert [sorted(row) for row in together] == [sorted(row) for row in literal(parents, first_child)]


@given(lists(), st.integers(1, 4))
def test_places_lead_to_the_rows_that_hold_the_parents(given_lists, count):
    parents, first_child = given_lists
    for rank in range(count):
        shard = Shard(rank, count)
        one = Candidates.from_parents(parents, level_of(first_child), shard)
        real = one.parents >= 0
        held = shard.ids(len(first_child) - 1)
        assert torch.equal(held[one.rows[one.row_index[real]]], one.parents[real])
        # those that the documents have and no other: what is touched is moved by the optimizer
        asked = sorted({p for p in parents.flatten().tolist() if p >= 0 and p % count == rank})
        assert held[one.rows].tolist() == asked
        assert not one.row_index[~real].any()
        # no wider than the document with most
        most = max(sum(p >= 0 and p % count == rank for p in row) for row in parents.tolist())
        assert one.parents.shape[1] == (parents.shape[1] if count == 1 else max(1, most))


@given(lists(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_positives_are_the_true_nodes_among_the_candidates(given_lists, count, random):
    parents, first_child = given_lists
    size = int(first_child[-1])
    truth = [sorted(random.sample(range(size), random.randint(0, size))) for _ in parents]
    documents = np.repeat(np.arange(len(truth)), [len(row) for row in truth])
    nodes = np.array([node for row in truth for node in row], dtype=np.int64)
    block = int(np.diff(first_child).max())
    found = []
    for rank in range(count):
        one = Candidates.from_parents(parents, level_of(first_child), Shard(rank, count))
        positives = one.positives(level_of(first_child), documents, nodes)
        assert positives.dtype == torch.int64 and positives.shape[0] == 2
        for document, place in positives.T.tolist():
            assert one.exists[document, place]
            parent = int(one.parents[document, place // block])
            found.append((document, int(first_child[parent]) + place % block))
    expected = [
        (document, node)
        for document, row in enumerate(literal(parents, first_child))
        for _, node in row
        if node in truth[document]
    ]
    assert sorted(found) == sorted(expected)


class TestByHand:
    def test_whole(self):
        one = Candidates.from_parents(np.array([[3, 0], [-1, 2]]), level_of(FIRST_CHILD))
        assert one.parents.tolist() == [[3, 0], [-1, 2]] and one.beam_columns.tolist() == [[0, 1], [0, 1]]
        assert one.rows.tolist() == [0, 2, 3] and one.row_index.tolist() == [[2, 0], [0, 1]]
        assert one.exists.int().tolist() == [[1, 1, 0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1, 1]]

    def test_a_shard(self):
        # rows 0, 1 and 2 of the first of two shards hold parents 0, 2 and 4
        parents = np.array([[3, 4, 0], [1, 4, 3], [2, 4, -1]])
        one = Candidates.from_parents(parents, level_of(FIRST_CHILD), Shard(0, 2))
        assert one.parents.tolist() == [[4, 0], [4, -1], [2, 4]]
        assert (
            one.beam_columns[0].tolist() == [1, 2]
            and one.beam_columns[1, 0] == 1
            and one.beam_columns[2].tolist() == [0, 1]
        )
        assert one.rows.tolist() == [0, 1, 2] and one.row_index.tolist() == [[2, 0], [2, 0], [1, 2]]
        assert one.exists.int().tolist() == [[1, 0, 0, 0, 1, 1, 1, 0], [1] + [0] * 7, [1, 1, 1, 1, 1, 0, 0, 0]]

    def test_what_stands_for_no_parent_touches_no_row(self):
        """Else the first row of each shard would be moved by its old momentum at nearly every step."""
        assert Candidates.from_parents(
            np.array([[4, 1], [4, 3]]), level_of(FIRST_CHILD), Shard(0, 2)
        ).rows.tolist() == [2]
        assert Candidates.from_parents(np.array([[4, -1], [4, 2]]), level_of(FIRST_CHILD)).rows.tolist() == [2, 4]

    def test_a_shard_without_candidates(self):
        one = Candidates.from_parents(np.array([[4, 1], [4, -1]]), level_of(FIRST_CHILD), Shard(2, 3))
        assert one.parents.tolist() == [[-1], [-1]] and one.row_index.tolist() == [[0], [0]]
        assert not len(one.rows) and not one.exists.any() and one.exists.shape == (2, 4)
        assert one.positives(level_of(FIRST_CHILD), np.array([0, 1]), np.array([10, 3])).shape == (2, 0)

    def test_positives(self):
        one = Candidates.from_parents(np.array([[4, 1], [2, -1]]), level_of(FIRST_CHILD))
        # of the first text 10, 3 and 0, which is no candidate; of the second 6, 10, which is none, and 7
        positives = one.positives(level_of(FIRST_CHILD), np.array([0, 0, 0, 1, 1, 1]), np.array([10, 3, 0, 6, 10, 7]))
        assert sorted(positives.T.tolist()) == [[0, 0], [0, 4], [1, 2], [1, 3]]

    def test_on_another_device(self):
        one = Candidates.from_parents(np.array([[3, 0]]), level_of(FIRST_CHILD))
        other = one.to(torch.device("meta"))
        assert {getattr(other, name).device.type for name in one.__dataclass_fields__} == {"meta"}
        assert other.exists.shape == one.exists.shape


class TestTable:
    @pytest.mark.parametrize("shard", [WHOLE, Shard(0, 2), Shard(1, 2), Shard(2, 3), Shard(5, 6)])
    @pytest.mark.parametrize("deep", [False, True], ids=["all nodes", "blocks"])
    def test_holds_its_nodes_and_places_their_vectors(self, shard, deep):
        first_child = torch.from_numpy(FIRST_CHILD) if deep else None
        table = LabelTable(11, 5 if deep else 11, 4 if deep else 1, 2, shard)
        before = table.weight.detach().clone()
        nodes = table.nodes(first_child)
        expected = [
            node
            for row in range(shard.rank, 5 if deep else 11, shard.count)
            for node in (range(FIRST_CHILD[row], FIRST_CHILD[row + 1]) if deep else [row])
        ]
        assert nodes.tolist() == expected
        table.set_vectors(nodes, first_child, torch.stack([nodes, -nodes], 1) + 100.0)
        left = {node: [node + 100.0, 100.0 - node] for node in expected}
        for row, (old, new) in enumerate(zip(before, table.weight.detach(), strict=True)):
            parent = shard.rank + row * shard.count
            for child in range(4 if deep else 1):
                node = int(FIRST_CHILD[parent]) + child if deep else parent
                real = not deep or node < FIRST_CHILD[parent + 1]
                vector = new[2 * child : 2 * child + 2].tolist()
                assert vector == (left.pop(node) if real else old[2 * child : 2 * child + 2].tolist())
        assert not left

    def test_bound_counts_nodes_alone(self):
        table = LabelTable(11, 5, 4, 400)
        bound = (6 / (11 + 400)) ** 0.5
        assert 0.99 * bound < table.weight.abs().max() <= bound
