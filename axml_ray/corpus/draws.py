"""Which split each document goes to, and what became of every record: what needs a look at the whole corpus.

It is decided on a few numbers a document: the digest of its text and the number it is drawn by. So equal seeds draw
equal texts, wherever they stand.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from axml_ray.settings import SPLITS, CorpusSettings, SettingsError

DROPPED = len(SPLITS)
TRAIN, VALID, TEST = range(3)
LEAST_TRAIN_PER_VALID = 10
"""Documents of train, validation included, for each that is drawn for validation."""


@dataclass
class Summary:
    """Counts for the manifest and the corpus page; every record that was read is in one of them."""

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

    def leave_out_unlabelled(self, split: np.ndarray, labelled: np.ndarray) -> None:
        """Drop documents without a known label, in place; `split` int8 and `labelled` bool, [documents of a block]."""
        for number, name in enumerate(SPLITS):
            self.unlabelled[name] += int(((split == number) & ~labelled).sum())
        split[~labelled] = DROPPED

    def count_kept(self, splits: list[np.ndarray], about: list[np.ndarray]) -> None:
        """Count the documents that go into the corpus."""
        for number, name in enumerate(SPLITS):
            chosen = [rows[split == number] for split, rows in zip(splits, about, strict=True)]
            self.kept[name] = sum(map(len, chosen))
            self.empty[name] = sum(int((rows["words"] == 0).sum()) for rows in chosen)
            self.cut[name] = sum(int(rows["cut"].sum()) for rows in chosen)

    def result(self, labels: dict[str, int]) -> dict[str, Any]:
        """What the manifest keeps under `summary`."""
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
    """How many of `train` documents are drawn for validation: `valid_documents`, but at most a tenth, at least one."""
    return max(1, min(settings.valid_documents, train // LEAST_TRAIN_PER_VALID))


def assign_splits(
    settings: CorpusSettings, splits: list[np.ndarray], about: list[np.ndarray], place: Callable[[str], str]
) -> Summary:
    """Choose test and validation documents and subsets, in place.

    Args:
        settings: what to draw.
        splits: of each block, int8 [documents]: the split each was given for; what it goes to afterwards, or DROPPED.
        about: of each block, what is known of its documents (`staging.ABOUT`).
        place: names the setting and files of a split.

    Raises:
        SettingsError: a split is empty, or holds too few documents to draw from.
    """
    if not splits:
        raise SettingsError(f"{place('train')}: holds no documents")
    split = np.concatenate(splits)
    high, low, draw = (np.concatenate([rows[name] for rows in about]) for name in ("high", "low", "draw"))
    summary = Summary(read=len(split))
    for number, name in enumerate(SPLITS):
        if getattr(settings, name) and not np.any(split == number):
            raise SettingsError(f"{place(name)}: holds no documents")
    if settings.draws_test:
        # The first bytes of the digest are as good as a uniform number.
        drawn = (split == TRAIN) & ((high >> np.uint64(32)) / 2**32 < settings.test_share)
        split[drawn] = TEST
        if not drawn.any():
            raise SettingsError(
                f"corpus.test_share: {settings.test_share:g} of {len(split):,} documents draws none for the test "
                "split; raise it, or give corpus.test"
            )
    _find_duplicates(split, high, low, summary, drop=settings.drop_duplicates)

    def keep_only(number: int, most: int | None) -> None:
        rows = np.flatnonzero(split == number)
        if most is not None:
            left_out = rows[np.argsort(draw[rows], kind="stable")][most:]
            split[left_out] = DROPPED
            summary.not_drawn += len(left_out)

    if not settings.valid:
        rows = np.flatnonzero(split == TRAIN)
        if len(rows) < 2:
            raise SettingsError(
                f"{place('train')}: holds {len(rows)} documents, too few to draw validation documents from; give more, "
                "or corpus.valid"
            )
        summary.drawn_valid = valid_documents(settings, len(rows))
        split[rows[np.argsort(draw[rows], kind="stable")][: summary.drawn_valid]] = VALID
    keep_only(TRAIN, settings.max_train_documents)
    keep_only(TEST, settings.max_test_documents)
    begin = 0
    for part in splits:
        part[:] = split[begin : begin + len(part)]
        begin += len(part)
    return summary


def _find_duplicates(split: np.ndarray, high: np.ndarray, low: np.ndarray, summary: Summary, *, drop: bool) -> None:
    """Count equal texts; with `drop`, keep one of each: of test first, then of validation, then the first in train."""
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
