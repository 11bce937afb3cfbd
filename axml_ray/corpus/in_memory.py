"""Texts and labels in memory, as scikit-learn's estimators get them: columns of other libraries, indicator matrices.

The libraries are recognised by their methods, so that none of them has to be installed.

Legend: N texts, C classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from axml_ray.corpus.composition import composed
from axml_ray.corpus.records import Fields, storable

LabelledText = tuple[str, tuple[str, ...]]
"""A text and its labels."""


def column_of(values: Any, name: str) -> list[Any]:
    """Return a column as a list: of pyarrow, NumPy or pandas (also as a table of one column), or any iterable.

    Raises:
        TypeError, ValueError: it is a single string, or a table of several columns.
    """
    if isinstance(values, str):
        raise TypeError(f"{name}: expected a list, found a single string; put it into a list")
    if sparse.issparse(values):
        raise TypeError(f"{name}: expected a column of texts, found a sparse matrix")
    if getattr(values, "ndim", 1) != 1:
        if values.ndim != 2 or values.shape[1] != 1:
            raise ValueError(f"{name}: expected one column, found an array of the shape {values.shape}")
        values = np.asarray(values)[:, 0]
    for convert in ("to_pylist", "tolist"):
        if hasattr(values, convert):
            return list(getattr(values, convert)())
    return list(values)


def is_indicator(y: Any) -> bool:
    """Return whether labels are an indicator matrix, and not a list for each text."""
    return sparse.issparse(y) or getattr(y, "ndim", 1) == 2


def read_labels(y: Any, names: Sequence[str] | None) -> tuple[list[list[Any]], np.ndarray | None]:
    """Return the labels of each text, and the classes of an indicator matrix, else None.

    Args:
        y: a list of labels for each text, or an indicator matrix [N, C].
        names: names of the columns of an indicator matrix.

    Raises:
        TypeError, ValueError: `y` is neither, or `names` do not fit its columns.
    """
    if y is None:
        raise ValueError("y: requires y to be passed, but the target y is None; give the labels of each text")
    if not is_indicator(y):
        rows = column_of(y, "y")
        for number, row in enumerate(rows):
            if isinstance(row, str) or not hasattr(row, "__iter__"):
                raise TypeError(f"y[{number}]: expected a list of labels, found {row!r}; one label is a list of one")
        return [column_of(row, f"y[{number}]") for number, row in enumerate(rows)], None
    matrix = sparse.csr_matrix(y)
    matrix.eliminate_zeros()
    if not (matrix.data == 1).all():
        raise ValueError("y: an indicator matrix has zeros and ones only")
    columns = matrix.shape[1]
    classes = np.arange(columns) if names is None else np.array(list(names), dtype=object)
    labels = list(map(label_of, classes.tolist()))
    if len(labels) != columns or len(set(labels)) != columns:
        raise ValueError(f"classes: expected {columns} different names, one for each column (given: {len(labels)})")
    starts = zip(matrix.indptr, matrix.indptr[1:], strict=False)
    return [[labels[column] for column in matrix.indices[start:end]] for start, end in starts], classes


def labelled_texts(texts: list[Any], labels: list[list[Any]]) -> list[LabelledText]:
    """Return texts with their labels as the corpus would read them.

    Raises:
        TypeError, ValueError: a text or label is no string, a label is empty, or the numbers of rows differ.
    """
    if len(texts) != len(labels):
        raise ValueError(f"X has {len(texts):,} rows and y {len(labels):,}; give the labels of each text")
    found: list[LabelledText] = []
    for number, (text, row) in enumerate(zip(texts, labels, strict=True)):
        if not isinstance(text, str):
            raise TypeError(f"X[{number}]: expected a text, found {type(text).__name__}")
        try:
            text, own, _ = Fields().read({"text": text, "labels": row})
            found.append((text, tuple(dict.fromkeys(map(composed, own)))))
        except ValueError as error:
            raise ValueError(f"y[{number}]: {error}") from None
    return found


def label_of(name: object) -> str:
    """Return the label of a class as the corpus stores it."""
    return composed(storable(str(name))).strip()
