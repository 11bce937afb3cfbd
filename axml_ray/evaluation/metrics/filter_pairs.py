"""Pairs of a test document and a label that an evaluation leaves out, as published scores on some data sets do.

In the LF data sets of the Extreme Classification Repository a document may be a label too, and that it has itself is no
prediction. `filter_labels_test.txt` lists such pairs: a line is the number of a document, which is its line of the test
file counted from 0, a blank, and the number of a label. They are left out of predictions and of true labels.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged


def read_pairs(path: Path, documents: int, labels: Sequence[str]) -> Ragged:
    """Read the ids of the labels that are left out of each document.

    Args:
        path: the file.
        documents: number of test documents.
        labels: the labels of the corpus, by id; pairs with others are ignored.

    Raises:
        SettingsError: the file cannot be read, a line is not two numbers, there is no such document, or no label of the
            file is in the corpus.
    """
    place = f"evaluation.filter_pairs: {path}"
    try:
        pairs = np.loadtxt(path, dtype=np.int64, ndmin=2, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise SettingsError(f"{place}: {reason}; a line is the numbers of a document and of a label") from None
    if pairs.shape[1] != 2 or not 0 <= pairs[:, 0].min(initial=0) <= pairs[:, 0].max(initial=0) < documents:
        raise SettingsError(
            f"{place}: a line is the number of a document, from 0 to {documents - 1:,}, a blank, and that of a label"
        )
    numbers, inverse = np.unique(pairs[:, 1], return_inverse=True)
    named = set(map(str, numbers.tolist()))
    id_of = {label: number for number, label in enumerate(labels) if label in named}
    ids = np.array([id_of.get(str(number), -1) for number in numbers.tolist()], dtype=np.int64)[inverse]
    known = ids >= 0
    if not known.any():
        raise SettingsError(f"{place}: none of its labels is in the corpus, whose labels are such as {labels[0]!r}")
    keys = np.unique(pairs[known, 0] * len(labels) + ids[known])
    lengths = np.bincount(keys // len(labels), minlength=documents)
    return Ragged((keys % len(labels)).astype(np.int32), np.concatenate([[0], np.cumsum(lengths)]))
