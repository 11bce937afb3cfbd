"""Labels by how often training met them: bands for scores, and finer bins for a curve.

- A band's scores are those of the labels in it, as if there were no others: rankings and truth keep these only, and a
  document counts where one of them is true of it. So they compare how well a system orders frequent labels among
  themselves, and rare ones among themselves.
- The curve looks at the whole rankings instead: of the labels of a frequency among the best five, how many are true
  (precision), and of the true labels of that frequency, how many are among the best five (recall).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from axml_ray.evaluation.rankings import first, hits

DEPTH = 5


@dataclass(frozen=True, slots=True)
class Band:
    """Labels of so many training documents.

    Attributes:
        name: head, torso, tail or unseen.
        least: training documents.
        most: the same; None for no bound.
        inside: bool[L], its labels.
    """

    name: str
    least: int
    most: int | None
    inside: NDArray[np.bool_]


def bands(counts: NDArray[np.int64], *, head_from: int, torso_from: int) -> list[Band]:
    """Head, torso, tail and unseen labels.

    Args:
        counts: int64[L], training documents of each label.
        head_from: least training documents of a head label.
        torso_from: of a torso label; tail labels have fewer, but one at least.
    """
    limits: list[tuple[str, int, int | None]] = [
        ("head", head_from, None),
        ("torso", torso_from, head_from - 1),
        ("tail", 1, torso_from - 1),
        ("unseen", 0, 0),
    ]
    return [
        Band(name, least, most, (counts >= least) & (counts <= (counts.max(initial=0) if most is None else most)))
        for name, least, most in limits
    ]


@dataclass(slots=True)
class ByFrequency:
    """Precision and recall at five by the label's training documents, in bins that double: 0, 1, 2–3, 4–7, ….

    Args:
        counts: int64[L], training documents of each label.
    """

    counts: NDArray[np.int64]
    _tallies: NDArray[np.int64] = field(init=False)
    _bins: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        # Bin b holds the counts from 2^(b-1) to 2^b - 1: the number of binary digits.
        self._bins = np.frexp(self.counts.astype(np.float64))[1].astype(np.int64)
        self._tallies = np.zeros((3, int(self._bins.max(initial=0)) + 1), np.int64)

    def add(self, top: NDArray[np.integer], labels: NDArray[np.integer], offsets: NDArray[np.int64]) -> None:
        """Count a batch of rankings int32[N, K] and their truth, as for `metrics.Scores`."""
        top = first(top, DEPTH)
        predicted, right = top[top >= 0], top[hits(top, labels, offsets)]
        for tally, ids in zip(self._tallies, (predicted, right, labels), strict=True):
            tally += np.bincount(self._bins[ids], minlength=len(tally))

    def result(self) -> list[dict[str, int | float | None]]:
        """A row a bin that has labels, rarest first.

        Returns:
            `from`, `to` (training documents), `labels`, `predicted` and `true` (places among the best five, and true
            labels, over all documents), `precision` and `recall` in percent, None where there is nothing to divide by.
        """
        labels = np.bincount(self._bins, minlength=self._tallies.shape[1])
        rows: list[dict[str, int | float | None]] = []
        for place, (predicted, right, true) in enumerate(self._tallies.T.tolist()):
            if labels[place]:
                rows.append(
                    {
                        "from": 1 << (place - 1) if place else 0,
                        "to": (1 << place) - 1,
                        "labels": int(labels[place]),
                        "predicted": predicted,
                        "true": true,
                        "precision": 100 * right / predicted if predicted else None,
                        "recall": 100 * right / true if true else None,
                    }
                )
        return rows
