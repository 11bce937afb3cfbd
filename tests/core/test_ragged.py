"""Run: pytest tests/core/test_ragged.py"""

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.core import ragged as module
from axml_ray.core.ragged import Ragged, RaggedView, distinct

ROWS = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=8)


def listed(ragged: Ragged) -> list[list[int]]:
    assert ragged.values.dtype == np.int32 and ragged.offsets.dtype == np.int64
    assert ragged.offsets[0] == 0 and ragged.offsets[-1] == len(ragged.values)
    return [ragged[row].tolist() for row in range(len(ragged))]


@given(ROWS)
def test_rows_come_back(rows):
    ragged = Ragged.from_rows(rows)
    assert listed(ragged) == rows
    assert ragged.lengths.tolist() == [len(row) for row in rows]


@given(ROWS, st.data())
def test_take(rows, data):
    wanted = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10)) if rows else []
    taken = Ragged.from_rows(rows).take(np.array(wanted, dtype=np.int64))
    assert listed(taken) == [rows[i] for i in wanted]


def test_take_copies():
    ragged = Ragged.from_rows([[1, 2], [3]])
    ragged.take(np.array([0])).values[0] = 9
    assert listed(ragged) == [[1, 2], [3]]


@given(ROWS, st.integers(0, 6))
def test_cut(rows, width):
    assert listed(Ragged.from_rows(rows).cut(width)) == [row[:width] for row in rows]


@given(ROWS, st.integers(1, 6), st.integers(0, 6))
def test_blocks_change_nothing(rows, values, width):
    ragged, order = Ragged.from_rows(rows), np.arange(len(rows))[::-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_VALUES", values)
        assert listed(ragged.cut(width)) == [row[:width] for row in rows]
        assert listed(ragged.take(order)) == rows[::-1]


def test_copies_take_little_more_memory_than_their_result() -> None:
    """An int64 index for each value would be twice as large as the tokens of a corpus."""
    ragged = Ragged(np.zeros(8_000_000, np.int32), np.arange(0, 8_000_001, 100))
    assert ragged.cut(100) is ragged
    for copy in (lambda: ragged.cut(50), lambda: ragged.take(np.arange(0, 80_000, 2))):
        tracemalloc.start()
        copied = copy()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert copied.values.nbytes == ragged.values.nbytes // 2
        assert peak < 1.7 * copied.values.nbytes


@given(ROWS, st.data(), st.none() | st.integers(0, 4), st.none() | st.integers(0, 4))
def test_a_view_has_the_rows_it_names(rows, data, width, narrower):
    numbers = st.lists(st.integers(0, len(rows) - 1), max_size=10) if rows else st.just([])
    chosen, taken = (np.array(data.draw(numbers), dtype=np.int64) for _ in range(2))
    view = RaggedView(Ragged.from_rows(rows), chosen, width)
    expected = [rows[row][:width] for row in chosen]
    assert listed(view) == expected and len(view) == len(expected)
    assert view.lengths.tolist() == list(map(len, expected))
    taken = taken[taken < len(chosen)]
    assert view.lengths_of(taken).tolist() == [len(expected[row]) for row in taken]
    assert listed(view.take(taken, narrower)) == [expected[row][:narrower] for row in taken]
    assert listed(RaggedView(view, taken, narrower)) == [expected[row][:narrower] for row in taken]
    assert listed(Ragged.concatenate([view, view])) == 2 * expected


@given(ROWS, st.none() | st.integers(0, 7), st.integers(-3, 3))
def test_padded(rows, width, fill):
    table = Ragged.from_rows(rows).padded(fill, width)
    columns = max(map(len, rows), default=0) if width is None else width
    assert table.dtype == np.int32 and table.shape == (len(rows), columns)
    assert table.tolist() == [(row + [fill] * columns)[:columns] for row in rows]


@given(st.lists(ROWS, max_size=4))
def test_concatenate(parts):
    whole = Ragged.concatenate(Ragged.from_rows(part) for part in parts)
    assert listed(whole) == [row for part in parts for row in part]


@given(ROWS)
def test_to_arrow_and_back(rows):
    column = Ragged.from_rows(rows).to_arrow()
    assert column.type == pa.list_(pa.int32()) and column.to_pylist() == rows
    assert listed(Ragged.from_arrow(column)) == rows


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
@given(st.lists(st.none() | st.lists(st.integers(0, 99), max_size=4), max_size=8), st.data())
def test_from_sliced_arrow_with_nulls(make, rows, data):
    start = data.draw(st.integers(0, len(rows)))
    length = data.draw(st.integers(0, len(rows) - start))
    column = pa.array(rows, make(pa.int32())).slice(start, length)
    assert listed(Ragged.from_arrow(column)) == [row or [] for row in rows[start : start + length]]


@given(st.lists(st.lists(st.none() | st.lists(st.integers(0, 99), max_size=3), max_size=4), max_size=3), st.data())
def test_from_chunked_arrow(chunks, data):
    column = pa.chunked_array(chunks, pa.list_(pa.int64()))
    rows = [row or [] for chunk in chunks for row in chunk]
    start = data.draw(st.integers(0, len(rows)))
    assert listed(Ragged.from_arrow(column.slice(start))) == rows[start:]


@given(st.lists(st.integers(-5, 5)))
def test_distinct(values):
    found = distinct(np.array(values, dtype=np.int64))
    assert found.tolist() == sorted(set(values)) and found.dtype == np.int64


def test_a_null_that_hides_values():
    """Arrow lets a null row point at values; they aren't the row's."""
    offsets, values = pa.array([0, 2, 4, 5], pa.int32()), pa.array([1, 2, 3, 4, 5], pa.int32())
    column = pa.ListArray.from_arrays(offsets, values, mask=pa.array([False, True, False]))
    assert listed(Ragged.from_arrow(column)) == [[1, 2], [], [5]]
