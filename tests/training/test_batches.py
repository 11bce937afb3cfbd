"""Run: pytest tests/training/test_batches.py"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.core.ragged import Ragged
from axml_ray.network.backends.cpu_backend import LIMITS, CpuBackend
from axml_ray.network.sharding import Shard
from axml_ray.network.tree_level import Level
from axml_ray.training import batches as batches_module
from axml_ray.training.batches import (
    POOL,
    Batch,
    LevelData,
    TrueNodes,
    make_batch,
    order_by_worker,
    padded_tokens,
    shuffle_batches,
    training_batches,
)
from axml_ray.training.beam_search import choose_parents, scoring_batches
from axml_ray.training.distributed import DistributedContext
from axml_ray.tree.label_tree import LabelTree

FLAT = Level(1, 6, None)
DEEP = Level(2, 11, np.array([0, 3, 4, 8, 10, 11]))  # blocks of four


def lengths_of(documents: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 500, documents)


class TestShuffled:
    @given(st.integers(0, 700), st.integers(1, 9), st.integers(0, 3))
    def test_every_document_exactly_once(self, documents, batch_size, epoch):
        batches = shuffle_batches(lengths_of(documents), batch_size, seed=3, epoch=epoch)
        assert sorted(np.concatenate(batches).tolist() if batches else []) == list(range(documents))
        assert max(map(len, batches), default=0) <= batch_size
        assert len(batches) == -(-documents // batch_size)
        # Only the last pool has smaller ones, all of about the same size.
        rest = [len(batch) for batch in batches if len(batch) < batch_size]
        assert len(rest) < 2 * POOL and max(rest, default=0) - min(rest, default=0) <= 1
        assert min(rest, default=batch_size) > batch_size * (1 - 1 / max(len(batches), 1)) - 1
        if documents >= batch_size * POOL:
            assert min(rest, default=batch_size) >= batch_size - 1

    def test_by_seed_and_epoch(self):
        lengths = lengths_of(300)

        def order(seed: int, epoch: int) -> list[int]:
            return np.concatenate(shuffle_batches(lengths, 4, seed, epoch)).tolist()

        assert order(1, 0) == order(1, 0)
        orders = [order(seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
        assert len({tuple(one) for one in orders}) == 4

    def test_other_documents_meet_every_epoch(self):
        lengths = lengths_of(4 * POOL * 10)
        companies = [{frozenset(batch.tolist()) for batch in shuffle_batches(lengths, 4, 0, epoch)} for epoch in (0, 1)]
        assert len(companies[0] & companies[1]) < 0.02 * len(companies[0])

    def test_saves_most_of_the_padding(self):
        lengths = lengths_of(2_000)
        batches = shuffle_batches(lengths, 8, 0, 0)
        assert sum(lengths[batch].max() * len(batch) for batch in batches) < 1.05 * lengths.sum()
        # but batches don't come by length
        longest = [lengths[batch].max() for batch in batches]
        assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.2


def test_scoring_covers_every_document_longest_first(monkeypatch):
    lengths = lengths_of(50)
    monkeypatch.setattr(CpuBackend, "limits", replace(LIMITS, scoring_documents=7))
    batches = scoring_batches(lengths, 1, DistributedContext())
    assert [len(batch) for batch in batches] == [7] * 7 + [1]
    rows = np.concatenate(batches)
    assert sorted(rows) == list(range(50)) and (np.diff(lengths[rows]) <= 0).all()


@given(st.lists(st.integers(0, 99), min_size=1, max_size=9, unique=True), st.integers(1, 4))
def test_workers_order(rows, workers):
    found = [order_by_worker(np.array(rows), Shard(rank, workers)) for rank in range(workers)]
    for order, _ in found:
        assert np.array_equal(order, found[0][0])
    assert sorted(found[0][0].tolist()) == sorted(rows)
    # what workers encode, one after the other, is the order; one too many encodes the first, for nothing
    for rank, (_, encoded) in enumerate(found):
        assert encoded.tolist() == (rows[rank::workers] or rows[:1])
    own = [encoded for rank, (_, encoded) in enumerate(found) if rank < len(rows)]
    assert np.array_equal(np.concatenate(own), found[0][0])


def test_padded_tokens():
    tokens = Ragged.from_rows([[1], [2] * 9, [3, 4]])
    found = padded_tokens(tokens, np.array([2, 0]), 2)
    assert found.tolist() == [[3, 4] + [0] * 6, [1] + [0] * 7] and found.dtype == torch.int64
    assert padded_tokens(tokens, np.array([0]), 9).shape == (1, 16)  # as wide as the longest of another worker


def data_of(documents: int, level: Level) -> LevelData:
    random = np.random.default_rng(1)
    tokens = Ragged.from_rows(random.integers(1, 90, length) for length in random.integers(1, 9, documents))
    positives = Ragged.from_rows(np.sort(random.permutation(level.nodes)[: random.integers(0, 5)]) for _ in tokens)
    parents = None
    if level.first_child is not None:
        parents = np.stack([random.permutation(5)[:3] for _ in range(documents)])
        parents[::4, 1] = -1  # some have fewer
    return LevelData(tokens, positives, parents)


class TestBatch:
    @given(st.lists(st.integers(0, 19), min_size=1, max_size=6, unique=True))
    def test_all_nodes(self, rows):
        data = data_of(20, FLAT)
        batch = make_batch(data, FLAT, np.array(rows))
        assert batch.rows.tolist() == batch.documents.numpy().tolist() == rows and batch.size == len(rows)
        assert batch.candidates is None and batch.count == 6 * len(rows)
        assert torch.equal(batch.lengths, batch.own_lengths)
        for place, row in enumerate(rows):
            words = data.tokens[row].tolist()
            assert batch.lengths[place] == len(words)
            assert batch.tokens[place].tolist() == words + [0] * (batch.tokens.shape[1] - len(words))
        words, places = batch.unique_ids
        assert torch.equal(words[places].view_as(batch.tokens), batch.tokens)
        assert words.tolist() == sorted(set(batch.tokens.flatten().tolist()))
        longest = max(len(data.tokens[row]) for row in rows)
        assert batch.tokens.shape[1] % 8 == 0 and longest <= batch.tokens.shape[1] < longest + 8
        expected = [(place, node) for place, row in enumerate(rows) for node in data.positives[row].tolist()]
        assert [tuple(pair) for pair in batch.positives.T.tolist()] == expected

    @given(st.lists(st.integers(0, 19), min_size=1, max_size=6, unique=True))
    def test_places_among_candidates(self, rows):
        data = data_of(20, DEEP)
        batch = make_batch(data, DEEP, np.array(rows))
        assert batch.size == len(rows) and np.array_equal(batch.candidates.parents, data.parents[rows])
        assert batch.count == int(batch.candidates.exists.sum())
        expected = set()
        for document, row in enumerate(rows):
            for column, parent in enumerate(data.parents[row]):
                for child in range(4 if parent >= 0 else 0):
                    node = DEEP.first_child[parent] + child
                    if node < DEEP.first_child[parent + 1] and node in data.positives[row]:
                        expected.add((document, column * 4 + child))
        found = [tuple(pair) for pair in batch.positives.T.tolist()]
        assert len(found) == len(set(found)) and set(found) == expected

    def test_places_by_hand(self):
        data = LevelData(
            Ragged.from_rows([[5, 6], [7]]), Ragged.from_rows([[1, 7, 8], [3, 10]]), np.array([[2, 0], [4, 1]])
        )
        batch = make_batch(data, DEEP, np.array([1, 0]))
        # document 1: blocks 10··· and 3···; document 0: blocks 4567 and 012·, and 8 is no candidate
        assert sorted(batch.positives.T.tolist()) == [[0, 0], [0, 4], [1, 3], [1, 5]]


def truth_of(batch: Batch, level: Level, shard: Shard) -> set[tuple[int, int]]:
    """Documents and their true nodes, read from what a shard scores."""
    found = set()
    for place, column in batch.positives.T.tolist():
        if batch.candidates is None:
            node = column * shard.count + shard.rank
        else:
            assert batch.candidates.exists[place, column]
            node = int(level.first_child[int(batch.candidates.parents[place, column // 4])]) + column % 4
        found.add((int(batch.rows[place]), node))
    assert len(found) == batch.positives.shape[1]
    return found


@pytest.mark.parametrize("level", [FLAT, DEEP], ids=["flat", "deep"])
class TestEpoch:
    @pytest.mark.parametrize("workers", [1, 2, 3, 5])
    def test_shares_make_the_whole(self, level, workers):
        data = data_of(53, level)  # 13 batches of 4 and one of 1

        def epoch(rank: int, count: int) -> list[Batch]:
            return list(training_batches(data, level, batch_size=4, seed=2, epoch=1, shard=Shard(rank, count)))

        alone = epoch(0, 1)
        assert sorted(np.concatenate([batch.rows for batch in alone]).tolist()) == list(range(53))
        shares = [epoch(rank, workers) for rank in range(workers)]
        for whole, *parts in zip(alone, *shares, strict=True):
            assert sorted(parts[0].rows.tolist()) == whole.rows.tolist()
            for part in parts:
                assert np.array_equal(part.rows, parts[0].rows) and part.count == whole.count
                # states of all workers are joined: one width, and the lengths of all
                assert part.tokens.shape[1] == whole.tokens.shape[1]
                assert part.lengths.tolist() == data.tokens.lengths[part.rows].tolist()
                for words, length, row in zip(
                    part.tokens, part.own_lengths.tolist(), part.documents.numpy(), strict=True
                ):
                    assert words[:length].tolist() == data.tokens[row].tolist() and not words[length:].any()
                words, places = part.unique_ids
                assert torch.equal(words[places].view_as(part.tokens), part.tokens)
            encoded = [part.documents.numpy() for rank, part in enumerate(parts) if rank < whole.size]
            assert np.array_equal(np.concatenate(encoded), parts[0].rows)
            truths = [truth_of(part, level, Shard(rank, workers)) for rank, part in enumerate(parts)]
            assert sum(map(len, truths)) == len(set.union(*truths))
            assert set.union(*truths) == truth_of(whole, level, Shard())
            if whole.candidates is not None:
                assert sum(int(part.candidates.exists.sum()) for part in parts) == whole.count

    @pytest.mark.parametrize("start", [0, 1, 5, 13, 14])
    def test_goes_on_where_it_was(self, level, start):
        data = data_of(53, level)
        options = {"batch_size": 4, "seed": 2, "epoch": 1}
        whole = list(training_batches(data, level, **options))
        rest = list(training_batches(data, level, start=start, **options))
        assert len(whole) == 14 and len(rest) == 14 - start
        for one, other in zip(whole[start:], rest, strict=True):
            assert np.array_equal(one.rows, other.rows) and torch.equal(one.positives, other.positives)
            assert torch.equal(one.tokens, other.tokens)

    def test_may_be_left_early(self, level):
        for batch in training_batches(data_of(53, level), level, batch_size=4, seed=2, epoch=1):
            assert batch.size
            break

    def test_an_error_arrives(self, level):
        data = data_of(53, level)
        broken = LevelData(data.tokens, data.positives.take(np.arange(9)), data.parents)
        with pytest.raises(IndexError):
            list(training_batches(broken, level, batch_size=4, seed=2, epoch=1))

    def test_on_another_device(self, level):
        batch = make_batch(data_of(9, level), level, np.array([3, 1]))
        assert batch.to(torch.device("cpu")).tokens is batch.tokens
        moved = batch.to(torch.device("meta"))
        tensors = [moved.tokens, *moved.unique_ids, moved.own_lengths, moved.lengths, moved.positives]
        tensors += [] if moved.candidates is None else [moved.candidates.exists, moved.candidates.row_index]
        assert {tensor.device.type for tensor in tensors} == {"meta"}
        assert np.array_equal(moved.rows, batch.rows) and moved.count == batch.count


def test_true_nodes_are_the_ancestors_of_labels(monkeypatch):
    monkeypatch.setattr(batches_module, "COUNTED_DOCUMENTS", 2)
    tree = LabelTree.from_cuts(np.array([3, 1, 0, 2, 4]), [np.array([0, 2, 5])])
    labels = Ragged.from_rows([[0, 1], [], [4, 5], [2, 3], [1, 2, 3, 4]])  # label 5 has no training document
    for number in (1, 2):
        nodes = TrueNodes(tree, number, labels)
        expected = Ragged(*tree.node_labels(number, labels.values, labels.offsets))
        assert np.array_equal(nodes.values, expected.values) and np.array_equal(nodes.offsets, expected.offsets)
        assert nodes.lengths.tolist() == expected.lengths.tolist()
        rows = np.array([4, 1, 3])
        assert [row.tolist() for row in nodes.take(rows)] == [expected[row].tolist() for row in rows]
        assert [row.tolist() for row in nodes.take(rows, 1)] == [expected[row][:1].tolist() for row in rows]


@given(st.data(), st.integers(1, 12))
def test_choose_parents(data, nodes):
    keep = data.draw(st.integers(1, nodes))
    width = data.draw(st.integers(keep, nodes))
    documents = data.draw(st.integers(1, 4))
    lengths = [data.draw(st.integers(0, width)) for _ in range(documents)]
    predicted = [data.draw(st.permutations(range(nodes)))[:length] for length in lengths]
    true = [sorted(data.draw(st.sets(st.integers(0, nodes - 1)))) for _ in range(documents)]
    padded = np.array([[*nodes_of, *[-1] * (width - len(nodes_of))] for nodes_of in predicted], dtype=np.int64)
    found = choose_parents(padded, Ragged.from_rows(true), keep)
    assert found.dtype == np.int64 and found.shape == (documents, keep)
    for chosen, best, labels in zip(found.tolist(), predicted, true, strict=True):
        hits, false = [node for node in best if node in labels], [node for node in best if node not in labels]
        expected = [*hits, *(node for node in labels if node not in best), *false][:keep]
        assert chosen == [*expected, *[-1] * (keep - len(expected))]
        assert len(set(expected)) == len(expected)


def test_choose_parents_by_hand():
    predicted = np.array([[4, 1, 3, 0], [2, 0, 5, 1], [0, 1, 2, 3]])
    positives = Ragged.from_rows([[3, 5], [0, 1, 2, 5], []])
    assert choose_parents(predicted, positives, 3).tolist() == [[3, 5, 4], [2, 0, 5], [0, 1, 2]]
