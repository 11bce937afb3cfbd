import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.core import strings
from axml_ray.core.strings import Strings

words = st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"])), max_size=20)


@given(words, st.integers(-25, 25), st.integers(-25, 25))
def test_strings_read_like_a_tuple(values: list[str], begin: int, end: int) -> None:
    kept, expected = Strings(pa.array(values, pa.string())), tuple(values)
    assert (len(kept), list(kept), kept == expected, expected == kept) == (len(values), values, True, True)
    assert kept[begin:end] == expected[begin:end]
    assert [kept[np.int32(i)] for i in range(-len(values), len(values))] == values * 2
    assert pa.array(kept, pa.string()).to_pylist() == values
    assert pickle.loads(pickle.dumps(kept)) == kept
    assert (kept == Strings(pa.chunked_array([values[:3], values[3:]], pa.string())), kept == "") == (
        True,
        values == [],
    )
    assert kept != (*expected, "x") and (not values or kept != ("x" + values[0], *expected[1:]))


def test_all_strings_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strings, "BLOCK_STRINGS", 3)
    assert list(Strings(pa.array(list("abcdefgh")))) == list("abcdefgh")


def test_a_position_behind_the_end_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        Strings(pa.array(["a"]))[1]
