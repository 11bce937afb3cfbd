"""Reads given features of labels, as in `lbl_X_Xf.txt` of the Extreme Classification Repository.

The first line has two counts, of labels and of features. Row i below it has the features of label i as `column:value`
pairs; labels are numbers from 0, or from 1 if the last row belongs to one.
"""

import math
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.labels.name_files import numbered_from
from axml_ray.corpus.readers.line_blocks import Damage, read_lines


def read_feature_rows(path: Path) -> sparse.csr_matrix:
    """Read all rows of a file, plain or compressed: float32 CSR [rows, features + 1], as columns may count from 1.

    Raises:
        SettingsError: the file cannot be read, a line is invalid, or the number of rows is not that of its header.
    """
    columns, values, ends = array("i"), array("f"), array("q", [0])
    rows, features, number = 0, 0, 1
    try:
        for number, line in read_lines(path):
            if isinstance(line, Damage):
                raise ValueError(line.reason)
            if number == 1:
                rows, features = map(int, line.split())
                continue
            if number > rows + 1:
                if line.strip():
                    raise ValueError(f"is a row too many; the first line announces {rows:,}")
                continue
            for column, value in (pair.split(b":") for pair in line.split()):
                columns.append(int(column))
                values.append(float(value))
                if not 0 <= columns[-1] <= features or not math.isfinite(values[-1]):
                    raise ValueError(f"column {columns[-1]} isn't within 0 and {features:,}, or its value isn't finite")
            ends.append(len(columns))
    except OSError as error:
        raise SettingsError(f"corpus.label_features: {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, OverflowError) as error:
        expected = "column:value pairs, below a first line with the numbers of labels and features"
        raise SettingsError(f"corpus.label_features: {path}:{number}: {error}; expected {expected}") from None
    if rows < 1 or len(ends) < rows:  # the last row may be empty, without a line feed
        reason = f"has {len(ends) - 1:,} rows, but its first line announces {rows:,}; it may be cut short"
        raise SettingsError(f"corpus.label_features: {path} {reason}")
    if len(ends) == rows:
        ends.append(len(columns))
    content = np.array(values), np.array(columns), np.array(ends)
    return sparse.csr_matrix(content, shape=(rows, features + 1))


def rows_of_labels(features: sparse.csr_matrix, labels: Sequence[str], trained: int) -> sparse.csr_matrix:
    """Return the rows of the first `trained` of a corpus's labels; a label without a row has no features.

    Raises:
        SettingsError: no trained label has a row.
    """
    rows, first = features.shape[0], numbered_from(labels, features.shape[0])
    row_of_label = {str(first + row): row for row in range(rows)}
    chosen = np.array([row_of_label.get(label, -1) for label in labels[:trained]])
    if (chosen < 0).all():
        raise SettingsError(
            f"corpus.label_features: row i has the features of label i, from {first} to {rows - 1 + first:,}, but the "
            f"corpus has none of these labels; it has such as {labels[0]!r}"
        )
    selection = sparse.csr_matrix((chosen >= 0, (np.arange(trained), chosen.clip(0))), (trained, rows), np.float32)
    return (selection @ features).tocsr()
