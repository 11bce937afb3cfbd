"""Assigns documents to splits and files, and counts what became of every record; this needs the whole corpus.

It is decided from a few numbers per document, `staging.DOCUMENT_FACTS`. Draws go by a hash of the text, so that
the same texts are drawn wherever they are in the input.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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


@dataclass
class Summary:
    """Counts for the manifest and the report page, by split or, of `rejected`, by reason.

    Every record that was read is counted in exactly one place.
    """

    read: int = 0
    duplicates: dict[str, int] = field(default_factory=dict)
    across: int = 0
    dropped_duplicates: int = 0
    drawn_valid: int = 0
    not_drawn: int = 0
    unlabelled: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    empty: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    assignments: dict[str, int] = field(default_factory=dict)

    def drop_unlabelled(self, split: np.ndarray, labelled: np.ndarray) -> None:
        """Drop those documents of a block, in place, that have no label of the corpus, given int8 and bool
        [documents].
        """
        for number, name in enumerate(SPLITS):
            self.unlabelled[name] += int(((split == number) & ~labelled).sum())
        split[~labelled] = DROPPED

    def count_kept(self, splits: list[np.ndarray], facts: list[np.ndarray]) -> None:
        """Count the documents of the corpus; both lists have one array per block."""
        for number, name in enumerate(SPLITS):
            chosen = [rows[split == number] for split, rows in zip(splits, facts, strict=True)]
            self.kept[name] = sum(map(len, chosen))
            self.empty[name] = sum(int((rows["words"] == 0).sum()) for rows in chosen)
            self.cut[name] = sum(int(rows["cut"].sum()) for rows in chosen)

    def to_manifest(self, labels: dict[str, int]) -> dict[str, Any]:
        """Return the manifest's `summary`; `labels` are the counts that `merging.merge_labels` returned."""
        return {
            "records": self.read + sum(self.rejected.values()),
            "rejected": dict(sorted(self.rejected.items())),
            "documents": self.kept,
            "left_out": {
                "duplicates": self.dropped_duplicates,
                "not_drawn": self.not_drawn,
                "without_label": self.unlabelled,
            },
            "duplicates": {"within": self.duplicates, "across_splits": self.across},
            "empty_texts": self.empty,
            "cut_texts": self.cut,
            "words": self.tokens,
            "label_assignments": self.assignments,
            "labels_dropped_as_rare": labels["all"] - labels["labels"],
            "warnings": self.warnings,
            "labels_unseen_in_train": {"valid": labels["unseen_valid"], "test": labels["unseen_test"]},
        }


def valid_documents(settings: CorpusSettings, train: int) -> int:
    """Return how many of `train` documents to draw for validation: `valid_documents`, at most a tenth, at least 1."""
    return max(1, min(settings.valid_documents, train // MIN_TRAIN_PER_VALID))


def assign_splits(
    settings: CorpusSettings,
    splits: list[np.ndarray],
    facts: list[np.ndarray],
    describe_split: Callable[[str], str],
    largest_valid_draw: int | None = None,
) -> Summary:
    """Draw test and validation documents and subsets.

    Args:
        settings: settings of the corpus.
        splits: for each block, int8 [documents]: the split for which each document was given; overwritten with the
            split to which it is assigned, or DROPPED.
        facts: for each block, `staging.DOCUMENT_FACTS` [documents].
        describe_split: returns the setting and the files of a split, for error messages.
        largest_valid_draw: documents with a larger draw are not taken for validation; None for no limit.

    Raises:
        SettingsError: a split is empty, or has too few documents to draw from.
    """
    if not splits:
        raise SettingsError(f"{describe_split('train')}: holds no documents")
    split = np.concatenate(splits)
    high, low, draw = (np.concatenate([rows[name] for rows in facts]) for name in ("high", "low", "draw"))
    summary = Summary(read=len(split))
    for number, name in enumerate(SPLITS):
        if getattr(settings, name) and not np.any(split == number):
            raise SettingsError(f"{describe_split(name)}: holds no documents")
    if settings.draws_test:
        # The leading bits of a digest are uniformly distributed.
        drawn = (split == TRAIN) & ((high >> np.uint64(32)) / 2**32 < settings.test_share)
        split[drawn] = TEST
        if not drawn.any():
            raise SettingsError(
                f"corpus.test_share: {settings.test_share:g} of {len(split):,} documents draws none for the test "
                "split; raise it, or give corpus.test"
            )
    _mark_duplicates(split, high, low, summary, drop=settings.drop_duplicates)
    if not settings.valid:
        train = np.flatnonzero(split == TRAIN)
        if len(train) < 2:
            raise SettingsError(
                f"{describe_split('train')}: holds {len(train)} documents, too few to draw validation documents from; "
                "give more, or corpus.valid"
            )
        summary.drawn_valid = valid_documents(settings, len(train))
        if largest_valid_draw is not None:
            eligible = int((draw[train] <= np.uint64(largest_valid_draw)).sum())
            summary.drawn_valid = min(summary.drawn_valid, eligible)
        split[_in_draw_order(train, draw)[: summary.drawn_valid]] = VALID
    if settings.max_train_documents is not None:
        surplus = _in_draw_order(np.flatnonzero(split == TRAIN), draw)[settings.max_train_documents :]
        split[surplus] = DROPPED
        summary.not_drawn = len(surplus)
    begin = 0
    for block in splits:
        block[:] = split[begin : begin + len(block)]
        begin += len(block)
    return summary


def _in_draw_order(documents: np.ndarray, draw: np.ndarray) -> np.ndarray:
    return documents[np.argsort(draw[documents], kind="stable")]


def _mark_duplicates(split: np.ndarray, high: np.ndarray, low: np.ndarray, summary: Summary, *, drop: bool) -> None:
    """Count equal texts; with `drop`, keep only one: of test, else of validation, else the first of train."""
    order = np.lexsort((np.arange(len(split)), -split, low, high))
    same = (high[order][1:] == high[order][:-1]) & (low[order][1:] == low[order][:-1])
    repeated = np.concatenate([[False], same])
    sorted_split = split[order]
    within = np.concatenate([[False], same & (sorted_split[1:] == sorted_split[:-1])])
    for number, name in enumerate(SPLITS):
        summary.duplicates[name] = int((within & (sorted_split == number)).sum())
    summary.across = int((repeated & ~within).sum())
    if drop:
        split[order[repeated]] = DROPPED
        summary.dropped_duplicates = int(repeated.sum())


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
