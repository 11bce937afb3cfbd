"""Texts and labels in memory: the columns and matrices of other libraries become lists, mistakes name their row."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse

from axml_ray.corpus.records.in_memory import check_not_one_hot, column_of, labelled_texts, read_labels

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


@pytest.mark.parametrize(
    "make", [lambda x: pd.DataFrame({"text": x}), lambda x: pa.table({"text": x}), lambda x: np.array(x)[:, None]]
)
def test_a_table_of_one_column(make):
    assert column_of(make(TEXTS), "X") == TEXTS


def test_a_sparse_matrix():
    with pytest.raises(TypeError, match="X: expected a column of texts, found a sparse matrix"):
        column_of(sparse.eye(2).tocsr(), "X")


@pytest.mark.parametrize("wrong", [pd.DataFrame({"a": TEXTS, "b": TEXTS}), np.ones((2, 2, 1))])
def test_a_table_of_several_columns(wrong):
    with pytest.raises(ValueError, match="X: expected one column"):
        column_of(wrong, "X")


@pytest.mark.parametrize("wrong", ["a cat", b"a cat", {"text": TEXTS}, set(TEXTS), None])
def test_no_column(wrong):
    with pytest.raises(TypeError, match="X: expected a list"):
        column_of(wrong, "X")


@pytest.mark.parametrize(
    "make",
    [
        list,
        Column,
        pd.Series,
        pa.array,
        lambda rows: (tuple(row) for row in rows),
        lambda rows: pd.Series([np.array(row) for row in rows]),
        lambda rows: pd.DataFrame({"labels": rows}),
        lambda rows: pa.table({"labels": rows}),
        lambda rows: [row or None for row in rows],
    ],
)
def test_lists_of_labels(make):
    rows, classes = read_labels(make(LABELS), None)
    assert (rows, classes) == (LABELS, None)


def test_sets_of_labels():
    assert read_labels([{"pets", "cats"}, frozenset()]) == ([["cats", "pets"], []], None)


@pytest.mark.parametrize(
    "make",
    [
        list,
        Column,
        np.array,
        pa.array,
        pd.Series,
        lambda x: pd.Series(x, dtype="category"),
        lambda x: np.array(x, dtype=object),
        lambda x: np.array(x)[:, None],
        lambda x: pd.DataFrame({"label": x}),
        lambda x: pa.table({"label": x}),
    ],
)
def test_one_label_for_each_text(make):
    assert read_labels(make(["pets", "a, b", "pets"])) == ([["pets"], ["a, b"], ["pets"]], None)


@pytest.mark.parametrize("make", [pd.DataFrame, pa.table])
def test_missing_labels_are_none(make):
    table = make({"first": ["pets", "cats", None], "second": ["cats", None, None]})
    assert read_labels(table) == ([["pets", "cats"], ["cats"], []], None)
    assert read_labels(table["second"]) == ([["cats"], [], []], None)


def test_an_array_of_labels():
    rows = [["pets", "cats"], ["pets", "dogs"]]
    assert read_labels(np.array(rows)) == read_labels(np.array(rows, dtype=object)) == (rows, None)


@pytest.mark.parametrize(
    "make",
    [
        np.asarray,
        sparse.csr_matrix,
        sparse.coo_array,
        pd.DataFrame,
        lambda x: x == 1,
        lambda x: x.astype(object),
        float,
    ],
)
def test_an_indicator_matrix(make):
    matrix = MATRIX.astype(float) if make is float else make(MATRIX)
    rows, classes = read_labels(matrix)
    assert rows == [["0", "2"], ["2"], []] and classes.tolist() == [0, 1, 2] and classes.dtype == np.int64
    rows, classes = read_labels(matrix, ["cats", " birds ", "pets"])
    assert rows == [["cats", "pets"], ["pets"], []] and classes.tolist() == ["cats", " birds ", "pets"]


NAMED = pd.DataFrame(MATRIX, columns=["cats", "birds", "pets"])


@pytest.mark.parametrize(
    "table",
    [
        NAMED,
        NAMED.astype(bool),
        NAMED.astype({"birds": bool, "pets": float}),
        NAMED.astype("Int64"),
        NAMED.astype("category"),
        NAMED.astype("Sparse[int8]"),
        pa.Table.from_pandas(NAMED),
        pa.table({name: pa.array(NAMED[name] == 1) for name in NAMED}),
    ],
)
def test_a_table_of_indicators_names_the_classes(table):
    rows, classes = read_labels(table)
    assert rows == [["cats", "pets"], ["pets"], []] and classes.tolist() == ["cats", "birds", "pets"]
    assert read_labels(table, ["a", "b", "c"])[0] == [["a", "c"], ["c"], []]


def test_numbers_and_one_column_name_classes_too():
    rows, classes = read_labels(NAMED.set_axis([10, 20, 30], axis="columns"))
    assert rows == [["10", "30"], ["30"], []] and classes.tolist() == [10, 20, 30]
    assert read_labels(NAMED[["pets"]].astype(bool))[0] == [["pets"], ["pets"], []]
    assert read_labels(NAMED[["pets"]], ["animals"])[0] == [["animals"], ["animals"], []]


def test_one_column_of_numbers_is_an_indicator_only_if_its_class_is_named():
    assert read_labels(np.array([[3], [1]]))[0] == [[3], [1]]
    for column in (np.array([[0], [1]]), np.array([[1.0], [0.0]]), NAMED[["pets"]]):
        with pytest.raises(ValueError, match=r"y\.ravel"):
            read_labels(column)
        assert read_labels(column, ["pets"])[1].tolist() == ["pets"]


def test_columns_of_a_table_in_another_order_keep_their_names():
    rows, classes = read_labels(NAMED[["pets", "cats", "birds"]], ["cats", "birds", "pets"])
    assert rows == [["pets", "cats"], ["pets"], []] and classes.tolist() == ["pets", "cats", "birds"]


@pytest.mark.parametrize(
    ("labels", "names", "error", "message"),
    [
        (None, None, ValueError, "y: requires y"),
        ("pets", None, TypeError, "y: "),
        ({"pets": [0, 1]}, None, TypeError, "y: "),
        ({"pets", "cats"}, None, TypeError, "y: "),
        (np.ones((2, 2, 2)), None, ValueError, "y: "),
        (["pets", ["cats"]], None, TypeError, r"y\[0\]: expected a list"),
        ([["pets"], 3], None, TypeError, r"y\[1\]: expected a list"),
        ([["pets"], {"cats": 1}], None, TypeError, r"y\[1\]: "),
        ([b"pets", b"cats"], None, TypeError, r"y\[0\]: "),
        (["pets", "['cats']"], None, ValueError, r"y\[1\]: the string of a list"),
        (2 * MATRIX, None, ValueError, "y: .*zeros and ones"),
        (sparse.csr_matrix(2 * MATRIX), None, ValueError, "y: .*zeros and ones"),
        (NAMED.replace(0, np.nan), None, ValueError, "y: .*column 'cats' has nan"),
        (NAMED.assign(dogs=["a", "b", "c"]), None, ValueError, "y: .*column 'dogs' has 'a'"),
        (NAMED.astype(str), None, ValueError, "y: .*the strings"),
        (pd.concat([NAMED, NAMED], axis=1), None, ValueError, "y: .*same name"),
        (NAMED[[]], None, ValueError, "y: "),
        (NAMED.set_axis([1, "1", "a"], axis="columns"), None, ValueError, "y: expected 3"),
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
    for rows in ([[0, 1, 0], [1, 0, 0]], [[0.0, 1.0], [1.0, 0.0]], [[True, False], [False, True]], [["0", "1", "0"]]):
        with pytest.raises(ValueError, match=r"np\.array"):
            check_not_one_hot(read_labels(rows, None)[0])
    for rows in ([[0], [1], [0, 1]], [["0", "x", "1"]], [[], []], [[0, 1, 1], [0, 1, 2]]):
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


@pytest.mark.parametrize("make", [np.array, pd.Series, pa.array, lambda x: pa.chunked_array([x])])
def test_numbers_of_four_bytes_are_labels_of_few_digits(make):
    values = np.array([510.7, np.nan, 3], np.float32)
    labels, _ = read_labels(make(values))
    assert [[str(label) for label in row] for row in labels] == [["510.7"], [], ["3.0"]]
