"""Assigns documents to splits and files, and counts what became of every record; this needs the whole corpus.

It is decided from a few numbers per document, `staging.DOCUMENT_FACTS`. Draws go by a hash of the text, so that
the same texts are drawn wherever they are in the input.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.labels.label_features import FILE_DOCUMENTS as FEATURE_FILE_DOCUMENTS
from axml_ray.settings import SPLITS, CorpusSettings

DROPPED = len(SPLITS)
"""The number that marks a document as belonging to no split."""
TRAIN, VALID, TEST = range(3)
FILE_DOCUMENTS = 8192
"""Number of documents of a Parquet file, except for the last one of a split."""
MIN_TRAIN_PER_VALID = 10
"""Minimum number of training documents, before the draw, per document that is drawn for validation."""


def valid_documents(settings: CorpusSettings, train: int) -> int:
    """Return how many of `train` documents to draw for validation: `valid_documents`, at most a tenth, at least 1."""
    return max(1, min(settings.valid_documents, train // MIN_TRAIN_PER_VALID))


def by_split(splits: np.ndarray) -> dict[str, int]:
    """Count documents by split, given the split of each, int8 [n]."""
    return dict(zip(SPLITS, np.bincount(splits, minlength=DROPPED + 1).tolist(), strict=False))


def assign_splits(
    settings: CorpusSettings,
    split: np.ndarray,
    facts: np.ndarray,
    describe_split: Callable[[str], str],
    largest_valid_draw: int | None = None,
) -> dict[str, Any]:
    """Draw test and validation documents and subsets.

    Args:
        settings: settings of the corpus.
        split: int8 [documents], the split for which each document was given; overwritten with that to which it is
            assigned, or DROPPED.
        facts: `staging.DOCUMENT_FACTS` [documents].
        describe_split: returns the setting and the files of a split, for error messages.
        largest_valid_draw: documents with a larger draw are not taken for validation; None for no limit.

    Returns:
        The counts of duplicates and of documents left out, for the manifest and the report page.

    Raises:
        SettingsError: a split is empty, or has too few documents to draw from.
    """
    for number, name in enumerate(SPLITS):
        if (name == "train" or getattr(settings, name)) and not np.any(split == number):
            raise SettingsError(f"{describe_split(name)}: holds no documents")
    high, low, draw = facts["high"], facts["low"], facts["draw"]
    if settings.draws_test:
        # The leading bits of a digest are uniformly distributed.
        drawn = (split == TRAIN) & ((high >> np.uint64(32)) / 2**32 < settings.test_share)
        split[drawn] = TEST
        if not drawn.any():
            raise SettingsError(
                f"corpus.test_share: {settings.test_share:g} of {len(split):,} documents draws none for the test "
                "split; raise it, or give corpus.test"
            )

    # Before duplicates and draws, so that no text replaces one with labels. If no training document has any, the error
    # that says so comes later.
    without_label = ~facts["labelled"] & facts["labelled"][split == TRAIN].any()
    of_none = by_split(split[without_label])
    split[without_label] = DROPPED

    # Count equal texts; those to drop are all but one: of test, else of validation, else the first of train.
    kept = np.flatnonzero(split != DROPPED)
    order = kept[np.lexsort((kept, -split[kept], low[kept], high[kept]))]
    same = (high[order][1:] == high[order][:-1]) & (low[order][1:] == low[order][:-1])
    repeated = np.concatenate([[False], same])
    within = np.concatenate([[False], same & (split[order][1:] == split[order][:-1])])
    text = np.cumsum(~repeated)
    is_known = np.isin(text, text[split[order] == TRAIN]) & (split[order] != TRAIN)
    duplicates = {
        "within": by_split(split[order[within]]),
        "of": by_split(split[order]),
        "across_splits": int((repeated & ~within).sum()),
        "also_in_train": by_split(split[order[is_known]]),
    }
    left_out: dict[str, Any] = {"duplicates": 0, "not_drawn": 0, "without_label": of_none}
    if settings.drop_duplicates:
        split[order[repeated]] = DROPPED
        left_out["duplicates"] = int(repeated.sum())

    in_draw_order = np.argsort(draw, kind="stable")
    if not settings.valid:
        train = in_draw_order[split[in_draw_order] == TRAIN]
        if len(train) < 2:
            raise SettingsError(
                f"{describe_split('train')}: holds {len(train)} documents, too few to draw validation documents from; "
                "give more, or corpus.valid"
            )
        count = valid_documents(settings, len(train))
        if largest_valid_draw is not None:
            count = min(count, int((draw[train] <= np.uint64(largest_valid_draw)).sum()))
        if 0 < count < len(train) and draw[train[count]] == draw[train[count - 1]]:
            # Equal texts have equal draws. Those that the end would divide stay in train, unless no other is drawn.
            count = int(np.searchsorted(draw[train], draw[train[count]])) or count
        split[train[:count]] = VALID
    if settings.max_train_documents is not None:
        surplus = in_draw_order[split[in_draw_order] == TRAIN][settings.max_train_documents :]
        split[surplus] = DROPPED
        left_out["not_drawn"] = len(surplus)
    return {"duplicates": duplicates, "left_out": left_out}


@dataclass(frozen=True)
class FileLayout:
    """Maps the files of a corpus to the documents of the staged blocks.

    Attributes:
        paths: the staged blocks, in the order of the input.
        splits: for each block, int8 [documents], the split of each document, or DROPPED.
        starts: for each split, int64 [blocks + 1], the number of its documents in the blocks before each block.
    """

    paths: list[str]
    splits: list[np.ndarray]
    starts: dict[str, np.ndarray]

    @classmethod
    def from_splits(cls, paths: list[str], splits: list[np.ndarray]) -> "FileLayout":
        """Lay out the documents of blocks whose splits are known."""
        counts = {name: [int((split == i).sum()) for split in splits] for i, name in enumerate(SPLITS)}
        return cls(paths, splits, {name: np.concatenate([[0], np.cumsum(c)]).astype(int) for name, c in counts.items()})

    def documents(self, split: str) -> int:
        """Return the number of documents of a split."""
        return int(self.starts[split][-1])

    def file_groups(self) -> list[tuple[str, range]]:
        """Return split and file numbers for each task: the files whose label features go into one feature file."""
        group_size = FEATURE_FILE_DOCUMENTS // FILE_DOCUMENTS
        groups = []
        for name in SPLITS:
            files = -(-self.documents(name) // FILE_DOCUMENTS)
            groups += [(name, range(i, min(i + group_size, files))) for i in range(0, files, group_size)]
        return groups

    def block_rows(self, split: str, begin: int, end: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the block numbers, and the rows in each block, of documents `begin` to `end - 1` of a split."""
        starts = self.starts[split]
        first = int(np.searchsorted(starts, begin, side="right")) - 1
        for number in range(first, len(self.paths)):
            if starts[number] >= end:
                return
            rows = np.flatnonzero(self.splits[number] == SPLITS.index(split))
            low, high = max(begin - starts[number], 0), min(end - starts[number], len(rows))
            if high > low:
                yield number, rows[low:high]
