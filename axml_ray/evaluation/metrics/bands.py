"""Scores by label frequency: bands (head, torso, tail, unseen) and a precision and recall curve in finer bins.

- A band is scored as if its labels were the only ones: rankings and true labels are restricted to them, and a document
  counts if it has one of them. So a band's score says how well frequent labels, or rare ones, are ordered among
  themselves.
- The curve uses the whole rankings. Precision: of the labels of a frequency bin that are ranked in the top five, the
  share that is true. Recall: of the true labels of that bin, the share that is in the top five.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from axml_ray.evaluation.metrics.rankings import first_columns, hits

DEPTH = 5
BANDS: tuple[tuple[str, int, int | None], ...] = (
    ("head", 100, None),
    ("torso", 10, 99),
    ("tail", 1, 9),
    ("unseen", 0, 0),
)
"""Name of each band, and the least and the greatest number of training documents of its labels (None: no bound)."""


@dataclass(frozen=True, slots=True)
class Band:
    """The labels whose number of training documents lies in a range; a `max_count` of None is no bound."""

    name: str
    min_count: int
    max_count: int | None
    is_member: NDArray[np.bool_]
    """bool[L], whether each label is in the band."""

    @property
    def row(self) -> dict[str, Any]:
        """The band's name, limits and number of labels, as rows of `metrics.json` and of comparisons begin."""
        return {"name": self.name, "from": self.min_count, "to": self.max_count, "labels": int(self.is_member.sum())}


def frequency_bands(counts: NDArray[np.int64]) -> list[Band]:
    """Divide the labels into `BANDS` by their number of training documents, int64[L]."""
    return [
        Band(name, low, high, (counts >= low) & (counts <= (counts.max(initial=0) if high is None else high)))
        for name, low, high in BANDS
    ]


def band_name(band: Mapping[str, Any]) -> str:
    """Return the name and range of a band's row in `metrics.json`, such as "torso (10–99)"."""
    upper = "" if band["to"] == band["from"] else "+" if band["to"] is None else f"–{band['to']:,}"
    return f"{band['name']} ({band['from']:,}{upper})"


@dataclass(slots=True)
class FrequencyCurve:
    """Precision and recall at five by the label's training documents, in bins that double: 0, 1, 2–3, 4–7, …."""

    counts: NDArray[np.int64]
    """int64[L], training documents of each label."""
    _tallies: NDArray[np.int64] = field(init=False)
    """int64[3, bins]: labels ranked in the top five, those of them that are true, and true labels."""
    _bins: NDArray[np.int64] = field(init=False)
    """int64[L], the bin of each label."""

    def __post_init__(self) -> None:
        # Bin b holds the counts from 2^(b-1) to 2^b - 1: b is the number of binary digits of the count.
        self._bins = np.frexp(self.counts.astype(np.float64))[1].astype(np.int64)
        self._tallies = np.zeros((3, int(self._bins.max(initial=0)) + 1), np.int64)

    def add(self, top: NDArray[np.integer], labels: NDArray[np.integer], offsets: NDArray[np.int64]) -> None:
        """Add a batch of rankings int32[N, K] with their true labels, given as for `metrics.Scores`."""
        top = first_columns(top, DEPTH)
        predicted, correct = top[top >= 0], top[hits(top, labels, offsets)]
        for tally, ids in zip(self._tallies, (predicted, correct, labels), strict=True):
            tally += np.bincount(self._bins[ids], minlength=len(tally))

    def result(self) -> list[dict[str, int | float | None]]:
        """Return one row for each bin that contains labels, rarest labels first.

        Returns:
            `from` and `to` (training documents), `labels`, `predicted` (labels ranked in the top five) and `true` (true
            labels), both over all documents, `precision` and `recall` in percent, None where the denominator is 0.
        """
        labels = np.bincount(self._bins, minlength=self._tallies.shape[1])
        rows: list[dict[str, int | float | None]] = []
        for number, (predicted, correct, true) in enumerate(self._tallies.T.tolist()):
            if labels[number]:
                rows.append(
                    {
                        "from": 1 << (number - 1) if number else 0,
                        "to": (1 << number) - 1,
                        "labels": int(labels[number]),
                        "predicted": predicted,
                        "true": true,
                        "precision": 100 * correct / predicted if predicted else None,
                        "recall": 100 * correct / true if true else None,
                    }
                )
        return rows
