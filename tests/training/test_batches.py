"""Run: pytest tests/training/test_batches.py"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.network.attention_xml import Level
from axml_ray.ragged import Ragged
from axml_ray.training.batches import (
    POOL,
    LevelData,
    batch_of,
    by_length,
    choose_parents,
    shuffled,
    training_batches,
)

FLAT = Level(1, 6, None)
DEEP = Level(2, 11, np.array([0, 3, 4, 8, 10, 11]))  # blocks of four


def lengths_of(documents: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 500, documents)


class TestShuffled:
    @given(st.integers(0, 700), st.integers(1, 9), st.integers(0, 3))
    def test_every_document_exactly_once(self, documents, batch_size, epoch):
        batches = shuffled(lengths_of(documents), batch_size, seed=3, epoch=epoch)
        assert sorted(np.concatenate(batches).tolist() if batches else []) == list(range(documents))
        assert max(map(len, batches), default=0) <= batch_size
        # small ones only where a pool ends
        assert sum(len(batch) < batch_size for batch in batches) <= 1
        assert len(batches) == -(-documents // batch_size)

    def test_by_seed_and_epoch(self):
        lengths = lengths_of(300)

        def order(seed: int, epoch: int) -> list[int]:
            return np.concatenate(shuffled(lengths, 4, seed, epoch)).tolist()

        assert order(1, 0) == order(1, 0)
        orders = [order(seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
        assert len({tuple(one) for one in orders}) == 4

    def test_other_documents_meet_every_epoch(self):
        lengths = lengths_of(4 * POOL * 10)
        companies = [{frozenset(batch.tolist()) for batch in shuffled(lengths, 4, 0, epoch)} for epoch in (0, 1)]
        assert len(companies[0] & companies[1]) < 0.02 * len(companies[0])

    def test_saves_most_of_the_padding(self):
        lengths = lengths_of(2_000)
        batches = shuffled(lengths, 8, 0, 0)
        assert sum(lengths[batch].max() * len(batch) for batch in batches) < 1.05 * lengths.sum()
        # but batches don't come by length
        longest = [lengths[batch].max() for batch in batches]
        assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.2


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_scoring_covers_every_document_longest_first(workers):
    lengths = lengths_of(50)
    shares = [by_length(lengths, 7, rank, workers) for rank in range(workers)]
    assert sorted(row for share in shares for batch in share for row in batch) == list(range(50))
    for share in shares:
        inside = lengths[np.concatenate(share)]
        assert (np.diff(inside) <= 0).all()


def data_of(documents: int, level: Level) -> LevelData:
    random = np.random.default_rng(1)
    tokens = Ragged.from_rows(random.integers(1, 90, length) for length in random.integers(1, 9, documents))
    positives = Ragged.from_rows(np.sort(random.permutation(level.nodes)[: random.integers(0, 5)]) for _ in tokens)
    parents = None
    if level.first_child is not None:
        parents = np.stack([random.permutation(5)[:3] for _ in range(documents)])
    return LevelData(tokens, positives, parents)


class TestBatch:
    @given(st.lists(st.integers(0, 19), min_size=1, max_size=6, unique=True))
    def test_all_nodes(self, rows):
        data = data_of(20, FLAT)
        batch = batch_of(data, FLAT, np.array(rows))
        assert batch.rows.tolist() == rows and batch.size == len(rows) and batch.parents is None
        for place, row in enumerate(rows):
            words = data.tokens[row].tolist()
            assert batch.lengths[place] == len(words)
            assert batch.tokens[place].tolist() == words + [0] * (batch.tokens.shape[1] - len(words))
        longest = max(len(data.tokens[row]) for row in rows)
        assert batch.tokens.shape[1] % 8 == 0 and longest <= batch.tokens.shape[1] < longest + 8
        expected = [(place, node) for place, row in enumerate(rows) for node in data.positives[row].tolist()]
        assert [tuple(pair) for pair in batch.positives.T.tolist()] == expected

    @given(st.lists(st.integers(0, 19), min_size=1, max_size=6, unique=True))
    def test_places_among_candidates(self, rows):
        data = data_of(20, DEEP)
        batch = batch_of(data, DEEP, np.array(rows), 17)
        assert batch.size == 17 and np.array_equal(batch.parents, data.parents[rows])
        expected = set()
        for document, row in enumerate(rows):
            for column, parent in enumerate(data.parents[row]):
                for child in range(4):
                    node = DEEP.first_child[parent] + child
                    if node < DEEP.first_child[parent + 1] and node in data.positives[row]:
                        expected.add((document, column * 4 + child))
        found = [tuple(pair) for pair in batch.positives.T.tolist()]
        assert len(found) == len(set(found)) and set(found) == expected

    def test_places_by_hand(self):
        data = LevelData(
            Ragged.from_rows([[5, 6], [7]]), Ragged.from_rows([[1, 7, 8], [3, 10]]), np.array([[2, 0], [4, 1]])
        )
        batch = batch_of(data, DEEP, np.array([1, 0]))
        # document 1: blocks 10··· and 3···; document 0: blocks 4567 and 012·, and 8 is no candidate
        assert sorted(batch.positives.T.tolist()) == [[0, 0], [0, 4], [1, 3], [1, 5]]


class TestWorkers:
    @pytest.mark.parametrize("level", [FLAT, DEEP], ids=["flat", "deep"])
    @pytest.mark.parametrize("workers", [2, 3])
    def test_shares_are_the_same_batches(self, level, workers):
        data = data_of(53, level)  # 13 batches of 4 and one of 1, which several workers leave out

        def epoch(rank: int, count: int) -> list:
            found = training_batches(data, level, batch_size=4, seed=2, epoch=1, rank=rank, workers=count)
            return list(found)

        alone = [batch for batch in epoch(0, 1) if batch.size >= workers]
        assert len(alone) == 13
        shares = [epoch(rank, workers) for rank in range(workers)]
        for whole, *parts in zip(alone, *shares, strict=True):
            assert sorted(row for part in parts for row in part.rows.tolist()) == sorted(whole.rows.tolist())
            assert all(len(part.rows) for part in parts)
            assert {part.size for part in parts} == {whole.size}
            assert sum(part.positives.shape[1] for part in parts) == whole.positives.shape[1]


def literal_parents(predicted: list[int], true: list[int], keep: int) -> list[int]:
    known = [node for node in predicted if node in true]
    unknown = [node for node in true if node not in predicted]
    others = [node for node in predicted if node not in true]
    return (known + unknown + others)[:keep]


@given(st.data(), st.integers(1, 12))
def test_choose_parents(data, nodes):
    keep = data.draw(st.integers(1, nodes))
    width = data.draw(st.integers(keep, nodes))
    documents = data.draw(st.integers(1, 4))
    predicted = [data.draw(st.permutations(range(nodes)))[:width] for _ in range(documents)]
    true = [sorted(data.draw(st.sets(st.integers(0, nodes - 1)))) for _ in range(documents)]
    found = choose_parents(np.array(predicted, dtype=np.int64), Ragged.from_rows(true), keep)
    assert found.dtype == np.int64 and found.shape == (documents, keep)
    for chosen, best, labels in zip(found.tolist(), predicted, true, strict=True):
        assert chosen == literal_parents(list(best), labels, keep)
        assert len(set(chosen)) == keep


def test_choose_parents_by_hand():
    predicted = np.array([[4, 1, 3, 0], [2, 0, 5, 1], [0, 1, 2, 3]])
    positives = Ragged.from_rows([[3, 5], [0, 1, 2, 5], []])
    assert choose_parents(predicted, positives, 3).tolist() == [[3, 5, 4], [2, 0, 5], [0, 1, 2]]
