"""Label indexes of tests, made from counts."""

from collections.abc import Mapping, Sequence

import numpy as np

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.labels.label_index import LabelIndex


def index_of(
    train_counts: Mapping[str, int], unseen: Sequence[str] = (), names: Mapping[str, str] | None = None
) -> LabelIndex:
    """Return the index of labels with their numbers of training documents, and of labels of other documents."""
    counts = {**dict.fromkeys(unseen, 0), **train_counts}
    labels = sorted(counts, key=lambda label: (-counts[label], label))
    readable_names = tuple((names or {}).get(label, label) for label in labels)
    return LabelIndex(tuple(labels), readable_names, np.array([counts[label] for label in labels], dtype=np.int64))


def encode(index: LabelIndex, rows: Sequence[Sequence[str]]) -> Ragged:
    """Return the sorted label ids of each document, int32; labels that are not in the index are dropped."""
    ids = {label: i for i, label in enumerate(index.labels)}
    return Ragged.from_rows(sorted({ids[label] for label in row if label in ids}) for row in rows)
