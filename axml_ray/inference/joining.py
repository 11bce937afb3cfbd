"""What a tree's networks and its linear classifiers say, joined. Not in the paper.

By `linear.weight` s, a label's score is the mean (1 - s)·n + s·l of what the networks (n) and the classifiers (l) give
it. What both are worth beyond that is learned for all trees together: see `learned_join`.

Shapes: N documents, k labels a document.
"""

from dataclasses import dataclass

import numpy as np

from axml_ray.inference.combining import Ballot, Found, aligned, best_of


@dataclass(frozen=True)
class Join:
    """How a tree joins what its networks and its classifiers say.

    Attributes:
        share: s.
    """

    share: float

    def ranking(self, networks: Found, classifiers: Found, top: int) -> Ballot:
        """One ranking from two, the `top` best labels of each document.

        Args:
            networks: label ids, int32 [N, k], -1 for none, and their scores, float32 [N, k].
            classifiers: likewise. A label that one of both left out counts 0 for it.
            top: labels wanted.
        """
        labels, both = aligned([networks[0], classifiers[0]], [networks[1], classifiers[1]])
        scores = self.scores(both[..., 0], both[..., 1])
        return Ballot(*best_of(labels, top, scores, both[..., 0], both[..., 1]))

    def scores(self, networks: np.ndarray, classifiers: np.ndarray) -> np.ndarray:
        """The mean of both, float64 of their shape."""
        mean: np.ndarray = (1 - self.share) * networks.astype(np.float64) + self.share * classifiers.astype(np.float64)
        return mean
