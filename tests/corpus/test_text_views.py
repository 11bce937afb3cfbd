"""The forms of a batch of texts. Run: pytest tests/corpus/test_text_views.py"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.text.text_views import TextViews

texts_of = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=30), max_size=4).map(Ragged.from_rows)


@given(texts_of, st.one_of(st.none(), st.integers(1, 40)))
def test_padded_texts_are_those_that_networks_read(texts, most):
    views = TextViews(texts)
    tokens, lengths = views.padded(most)
    read = [row[:most].tolist() for row in texts]
    assert (tokens.dtype, lengths.dtype, len(tokens), len(lengths)) == (np.int64, np.int64, len(texts), len(texts))
    width = tokens.shape[1]
    assert width % 8 == 0 and width - 8 < max(map(len, read), default=1) <= width
    assert lengths.tolist() == [len(row) for row in read]
    assert tokens.tolist() == [row + [0] * (width - len(row)) for row in read]


def test_each_view_is_computed_once():
    views = TextViews(Ragged.from_rows([[2, 3, 4], [5]]))
    assert len(views) == 2
    for most in (None, 2):
        assert views.padded(most)[0] is views.padded(most)[0]
    assert views.padded(None)[1].tolist() == [3, 1] and views.padded(2)[1].tolist() == [2, 1]


def test_kept_by_key():
    views = TextViews(Ragged.from_rows([[2]]))
    assert [views.get_or_compute(key, lambda key=key: [key]) for key in ("a", ("b", 1), "a")] == [
        ["a"],
        [("b", 1)],
        ["a"],
    ]
    assert views.get_or_compute("a", lambda: pytest.fail("computed again")) == ["a"]
    with pytest.raises(ZeroDivisionError):
        views.get_or_compute("fails", lambda: 1 / 0)
    assert views.get_or_compute("fails", lambda: "later") == "later"


def test_threads_share_one_view():
    views, calls, threads = TextViews(Ragged.from_rows([[2]])), [], 8
    barrier = threading.Barrier(threads)

    def slow() -> object:
        calls.append(1)
        time.sleep(0.05)
        # A view may be made from another, in the same thread.
        return views.get_or_compute("inner", object)

    def ask(_: int) -> object:
        barrier.wait(10)
        return views.get_or_compute("outer", slow)

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(ask, range(threads)))
    assert len(calls) == 1 and all(each is found[0] for each in found)
