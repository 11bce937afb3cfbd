"""Texts and labels in memory, as scikit-learn's estimators get them: lists, and columns and tables of other libraries.

pandas, polars, pyarrow and Hugging Face `datasets` are recognised by their attributes: none has to be installed.

Legend: N texts, C classes.
"""

from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
from scipy import sparse

from axml_ray.corpus.records.records import Fields
from axml_ray.corpus.records.values import INDICATORS, are_one_hot, is_missing, storable
from axml_ray.corpus.text.composition import composed

FLOATS = ("float16", "float32", "halffloat", "float")
"""Types of numbers with fewer digits than a double, as NumPy and Arrow call them."""
LabelledText = tuple[str, tuple[str, ...]]
"""A text and its labels."""


def column_names(values: Any) -> list[Any] | None:
    """Return the names of a table's columns; None if it is no table."""
    names = getattr(values, "column_names", None)  # pyarrow, datasets
    names = getattr(values, "columns", None) if names is None else names  # pandas, polars
    return None if names is None else list(names)


def column_of(values: Any, name: str) -> list[Any]:
    """Return a column as a list: an array or table with one column, or any iterable that has an order.

    Raises:
        TypeError, ValueError: it is a single string, something without an order, or has several columns.
    """
    if sparse.issparse(values):
        raise TypeError(f"{name}: expected a column of texts, found a sparse matrix")
    columns, shape = column_names(values), tuple(getattr(values, "shape", (0,)))
    if columns is not None:
        if len(columns) != 1:
            raise ValueError(
                f"{name}: expected one column, found a table of {len(columns)}: {', '.join(map(str, columns))}"
            )
        values = values[columns[0]]
    elif len(shape) == 2 and shape[-1] == 1:
        values = np.asarray(values)[:, 0]
    elif len(shape) != 1:
        raise ValueError(f"{name}: expected one column, found an array of the shape {shape}")
    elif isinstance(values, str | bytes | Mapping | Set) or not (
        hasattr(values, "__iter__") or hasattr(values, "__getitem__")
    ):
        raise TypeError(f"{name}: expected a list, found a single {type(values).__name__}; put it into a list")
    if str(getattr(values, "dtype", getattr(values, "type", ""))) in FLOATS:
        return list(np.asarray(values))  # as doubles, 510.7 would become 510.70001220703125
    for convert in ("to_pylist", "tolist"):
        if hasattr(values, convert):
            return list(getattr(values, convert)())
    return list(values)


def read_labels(y: Any, names: Sequence[Any] | np.ndarray | None = None) -> tuple[list[list[Any]], np.ndarray | None]:
    """Return the labels of each text, and the classes of an indicator matrix, else None.

    Args:
        y: one of

            - an indicator matrix [N, C] of zeros and ones: sparse, an array, or a table, whose columns are the classes;
            - an array or table [N, M] of strings, with up to M labels for each text;
            - a column with a list of labels for each text, or with one label for each text.

            None and NaN are no label.
        names: names of the classes, which replace those of an indicator matrix, unless a table has the same names in
            another order.

    Raises:
        TypeError, ValueError: `y` is none of these, or `names` do not fit its columns.
    """
    if y is None:
        raise ValueError("y: requires y to be passed, but the target y is None; give the labels of each text")
    known = column_names(y)
    if sparse.issparse(y) or (known and hasattr(y, "sparse")):  # pandas has it where all columns are sparse
        matrix = sparse.csc_matrix(y if known is None else y.sparse.to_coo())
        matrix.eliminate_zeros()
        if not (matrix.data == 1).all():
            raise ValueError("y: an indicator matrix has zeros and ones only")
        return _read_indicator(matrix, known, names)
    if known is not None:
        if len(set(known)) < len(known):
            raise ValueError("y: two columns have the same name")
        columns = [np.asarray(y[name]) for name in known]
    elif len(getattr(y, "shape", ())) == 2:
        columns = list(np.asarray(y).T)
    else:
        return _read_rows(column_of(y, "y")), None
    if not columns:
        raise ValueError("y: has no columns; give the labels of each text")
    ones = [rows for rows in map(_ones_of, columns) if rows is not None]
    if len(ones) == len(columns):
        if len(columns) == 1 and names is None and columns[0].dtype != bool:
            raise ValueError(
                "y: one column of 0 and 1 may be one label for each text or the indicator of one class; give a column "
                "of one dimension, such as y.ravel(), or the name of the class by classes="
            )
        starts, rows = np.cumsum([0, *map(len, ones)]), np.concatenate(ones)
        matrix = sparse.csc_matrix((np.ones(len(rows)), rows, starts), shape=(len(columns[0]), len(columns)))
        return _read_indicator(matrix, known, names)
    if len(columns) == 1:
        return _read_rows(columns[0].tolist()), None
    table = [column.tolist() for column in columns]
    cells = [cell for column in table for cell in column if not is_missing(cell)]
    if not all(isinstance(cell, str) for cell in cells):
        number, wrong = next(
            (number, cell)
            for number, column in enumerate(table)
            for cell in column
            if not (isinstance(cell, Real | np.bool_) and cell in (0, 1))
        )
        name = number if known is None else known[number]
        raise ValueError(f"y: expected zeros and ones only, or strings only; column {name!r} has {wrong!r}")
    if cells and set(cells) <= {"0", "1"}:
        raise ValueError("y: has the strings '0' and '1'; convert them to numbers, y.astype(int)")
    return [[cell for cell in row if not is_missing(cell)] for row in zip(*table, strict=True)], None


def _ones_of(column: np.ndarray) -> np.ndarray | None:
    """Return the rows of a column of zeros and ones that have a one; None if it has anything else."""
    if column.dtype.kind == "O":
        cells = column.tolist()
        if not all(isinstance(cell, Real | np.bool_) for cell in cells):
            return None
        column = np.array(cells, dtype=np.float64)
    is_flag = column.dtype.kind in "biuf" and ((column == 0) | (column == 1)).all()
    return np.flatnonzero(column) if is_flag else None


def _read_indicator(
    matrix: sparse.csc_matrix, known: list[Any] | None, names: Sequence[Any] | np.ndarray | None
) -> tuple[list[list[Any]], np.ndarray]:
    """Return the labels of each row of an indicator matrix, and the classes."""
    if known is not None and names is not None and sorted(map(str, known)) == sorted(map(str, names)):
        names = None
    columns, source = matrix.shape[1], "y" if names is None else "classes"
    own: list[Any] = list(range(columns) if known is None else known) if names is None else list(names)
    are_numbers = all(isinstance(name, int | np.integer) and not isinstance(name, bool) for name in own)
    classes: np.ndarray = np.array(own) if are_numbers else np.array([str(name) for name in own], dtype=object)
    labels = list(map(label_of, classes.tolist()))
    if len(labels) != columns or len(set(labels)) != columns:
        raise ValueError(f"{source}: expected {columns} different names, one for each column (given: {len(labels)})")
    rows = matrix.tocsr()
    rows.sort_indices()
    return [[labels[column] for column in rows.indices[a:b]] for a, b in pairwise(rows.indptr)], classes


def _read_rows(rows: list[Any]) -> list[list[Any]]:
    """Return the labels of each text of a column, either lists or one label for each; anything else is an error."""
    present = [row for row in rows if not is_missing(row)]
    is_single = bool(present) and all(isinstance(row, str | Real) for row in present)
    labels: list[list[Any]] = []
    for number, row in enumerate(rows):
        if is_missing(row):
            labels.append([])
        elif is_single:
            if isinstance(row, str) and row.strip()[:1] == "[" and row.strip()[-1:] == "]":
                raise ValueError(f"y[{number}]: the string of a list, {row!r}; convert it, as with ast.literal_eval")
            labels.append([row])
        elif isinstance(row, Set):
            labels.append(sorted(row, key=str))  # sets of equal content may have another order
        elif isinstance(row, str | bytes | Mapping) or not hasattr(row, "__iter__"):
            raise TypeError(f"y[{number}]: expected a list of labels, found {row!r}; one label is a list of one")
        else:
            labels.append(column_of(row, f"y[{number}]"))
    return labels


def check_not_one_hot(labels: list[list[Any]]) -> None:
    """Check that the labels of texts are not the rows of an indicator matrix, which is a ValueError."""
    values = (each for row in labels for each in row)
    is_indicator = all(
        each in INDICATORS if isinstance(each, str) else isinstance(each, Real | np.bool_) and each in (-1, 0, 1)
        for each in values
    )
    if is_indicator and are_one_hot(np.array([len(row) for row in labels])):
        raise ValueError("y: the lists hold a 0 or 1 for each label; give np.array(y), or lists of the labels")


def labelled_texts(texts: list[Any], labels: list[list[Any]]) -> list[LabelledText]:
    """Return texts with their labels as the corpus would read them.

    Raises:
        TypeError, ValueError: a text is no string, a label neither string nor number, or the numbers of rows differ.
    """
    if len(texts) != len(labels):
        raise ValueError(f"X has {len(texts):,} rows and y {len(labels):,}; give the labels of each text")
    labelled: list[LabelledText] = []
    for number, (text, row) in enumerate(zip(texts, labels, strict=True)):
        if not isinstance(text, str):
            raise TypeError(f"X[{number}]: expected a text, found {type(text).__name__}")
        try:
            content, names, _ = Fields().read({"text": text, "labels": row})
        except ValueError as error:
            raise ValueError(f"y[{number}]: {error}") from None
        labelled.append((content, tuple(dict.fromkeys(map(composed, names)))))
    return labelled


def label_of(name: object) -> str:
    """Return the label of a class as the corpus stores it."""
    return composed(storable(str(name))).strip()
