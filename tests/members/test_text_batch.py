"""Run: pytest tests/members/test_text_batch.py"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.members.text_batch import BATCH_COST, length_batches, map_in_threads


def padded_places(tokens: Ragged, rows: np.ndarray) -> int:
    """Places of a batch as networks read it."""
    return TextViews(tokens.take(rows)).padded(None)[0].size


class TestLengthBatches:
    @given(st.lists(st.integers(1, 60), min_size=1, max_size=50), st.integers(1, 20), st.integers(1, 400))
    def test_every_text_once_and_within_bounds(self, lengths, documents, places):
        tokens = Ragged.from_rows(np.arange(1, length + 1) for length in lengths)
        batches = list(length_batches(tokens, documents, places))
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
        longest = [int(tokens.lengths[rows].max()) for rows in batches]
        assert longest == sorted(longest, reverse=True)
        for rows in batches:
            assert len(rows) <= documents
            assert len(rows) == 1 or padded_places(tokens, rows) <= places

    def test_a_batch_for_each_thread(self):
        tokens = Ragged.from_rows([np.arange(1, 100)] * 64)
        counts = {}
        try:
            for threads in (1, 2, 4, 17):
                torch.set_num_threads(threads)
                counts[threads] = [len(rows) for rows in length_batches(tokens)]
        finally:
            torch.set_num_threads(1)
        assert counts == {1: [64], 2: [32, 32], 4: [16] * 4, 17: [8] * 8}

    def test_an_accelerator_gets_large_batches_whatever_the_threads(self):
        tokens = Ragged.from_rows([np.ones(500)] * 400 + [np.ones(8)] * 3_000)
        torch.set_num_threads(4)
        try:
            sizes = [len(rows) for rows in length_batches(tokens, on_accelerator=True)]
        finally:
            torch.set_num_threads(1)
        assert sum(sizes) == 3_400 and sizes[0] == 400 and max(sizes) == 1 << 10

    @given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(1, 9), st.integers(1, 200))
    def test_no_other_cuts_cost_less(self, lengths, documents, places):
        tokens = Ragged.from_rows(np.ones(length) for length in lengths)
        cost = sum(padded_places(tokens, rows) + BATCH_COST for rows in length_batches(tokens, documents, places))
        widths = sorted((-(-length // 8) * 8 for length in lengths), reverse=True)

        def cheapest(start):  # over every way to cut, one batch after the other
            if start == len(widths):
                return 0
            sizes = [size for size in range(1, min(documents, len(widths) - start) + 1)
                     if (size < 8 or size % 8 == 0) and (size == 1 or size * widths[start] <= places)]  # fmt: skip
            return min(size * widths[start] + BATCH_COST + cheapest(start + size) for size in sizes)

        assert cost == cheapest(0)

    def test_no_texts(self):
        assert list(length_batches(Ragged.from_rows([]))) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_the_order_of_the_batches(threads):
    batches = [np.array([number, number + 1]) for number in range(20)]
    try:
        torch.set_num_threads(threads)
        assert list(map_in_threads(lambda rows: int(rows.sum()), batches)) == [2 * number + 1 for number in range(20)]
    finally:
        torch.set_num_threads(1)
