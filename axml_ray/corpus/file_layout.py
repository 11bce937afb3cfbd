"""Assigns documents to the Parquet files of a corpus: a fixed number per file, in the order of the input."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from axml_ray.corpus.labels.label_features import FILE_DOCUMENTS as FEATURE_FILE_DOCUMENTS
from axml_ray.settings import SPLITS

FILE_DOCUMENTS = 8192
"""Number of documents of a file, except for the last one of a split."""


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
