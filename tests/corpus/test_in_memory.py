"""Texts and labels in memory: the columns and matrices of other libraries become lists, mistakes name their row."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse

from axml_ray.corpus.in_memory import check_not_one_hot, column_of, is_indicator, labelled_texts, read_labels

TEXTS = ["a cat", "a dog", ""]
LABELS = [["pets", "cats"], ["pets"], []]
MATRIX = np.array([[1, 0, 1], [0, 0, 1], [0, 0, 0]])


class Column:
    """A column of a Hugging Face `Dataset`: it has a length, items, and no method to convert it."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, row):
        return self.values[row]


@pytest.mark.parametrize("make", [list, tuple, Column, pd.Series, pa.array, np.array, lambda x: pa.chunked_array([x])])
def test_texts(make):
    assert column_of(make(TEXTS), "X") == TEXTS


@pytest.mark.parametrize("make", [lambda x: pd.DataFrame({"text": x}), lambda x: np.array(x)[:, None]])
def test_a_table_of_one_column(make):
    assert column_of(make(TEXTS), "X") == TEXTS


def test_a_sparse_matrix():
    with pytest.raises(TypeError, match="X: expected a column of texts, found a sparse matrix"):
        column_of(sparse.eye(2).tocsr(), "X")


@pytest.mark.parametrize("wrong", [pd.DataFrame({"a": TEXTS, "b": TEXTS}), np.ones((2, 2, 1))])
def test_a_table_of_several_columns(wrong):
    with pytest.raises(ValueError, match="X: expected one column"):
        column_of(wrong, "X")


def test_a_single_text():
    with pytest.raises(TypeError, match="X: expected a list"):
        column_of("a cat", "X")


@pytest.mark.parametrize(
    "make", [list, Column, pd.Series, pa.array, lambda rows: pd.Series([np.array(row) for row in rows])]
)
def test_lists_of_labels(make):
    rows, classes = read_labels(make(LABELS), None)
    assert (rows, classes) == (LABELS, None)


def test_sets_of_labels():
    [row], _ = read_labels([{"pets", "cats"}], None)
    assert sorted(row) == ["cats", "pets"]


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix, sparse.csc_array, pd.DataFrame, lambda x: x == 1])
def test_an_indicator_matrix(make):
    assert is_indicator(make(MATRIX)) and not is_indicator(LABELS)
    rows, classes = read_labels(make(MATRIX), None)
    assert rows == [["0", "2"], ["2"], []] and classes.tolist() == [0, 1, 2]
    rows, classes = read_labels(make(MATRIX), ["cats", " birds ", "pets"])
    assert rows == [["cats", "pets"], ["pets"], []] and classes.tolist() == ["cats", " birds ", "pets"]


@pytest.mark.parametrize(
    ("labels", "names", "error", "message"),
    [
        (None, None, ValueError, "y: requires y"),
        (["pets", "cats"], None, TypeError, r"y\[0\]: expected a list"),
        ([["pets"], 3], None, TypeError, r"y\[1\]: expected a list"),
        (2 * MATRIX, None, ValueError, "zeros and ones"),
        (MATRIX, ["cats", "pets"], ValueError, "classes: expected 3"),
        (MATRIX, ["cats", "pets", "pets"], ValueError, "classes: expected 3"),
    ],
)
def test_wrong_labels(labels, names, error, message):
    with pytest.raises(error, match=message):
        read_labels(labels, names)


def test_texts_and_labels_are_as_the_corpus_stores_them():
    assert labelled_texts(["a\0b"], [[" pets", "cats", "pets"]]) == [("a b", ("pets", "cats"))]
    assert labelled_texts(["a"], [[3, 3.0, np.int64(4), None, np.nan]]) == [("a", ("3", "4"))]


def test_lists_of_zeros_and_ones():
    for rows in ([[0, 1, 0], [1, 0, 0]], [[0.0, 1.0], [1.0, 0.0]], [[True, False], [False, True]]):
        with pytest.raises(ValueError, match=r"np\.array"):
            check_not_one_hot(read_labels(rows, None)[0])
    for rows in ([[0], [1], [0, 1]], [["0", "1", "0"]], [[], []], [[0, 1, 1], [0, 1, 2]]):
        check_not_one_hot(rows)


@pytest.mark.parametrize(
    ("texts", "labels", "error", "message"),
    [
        (["a"], [["x"], ["y"]], ValueError, "X has 1 rows and y 2"),
        (["a", None], [["x"], ["y"]], TypeError, r"X\[1\]: expected a text, found NoneType"),
        (["a", "b"], [["x"], [True]], ValueError, r"y\[1\]: label 1 is a boolean"),
    ],
)
def test_mistakes_name_their_row(texts, labels, error, message):
    with pytest.raises(error, match=message):
        labelled_texts(texts, labels)
