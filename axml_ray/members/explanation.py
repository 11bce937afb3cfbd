"""Explanations of a member's score: the path to the label in its tree, with the attention to each word."""

from dataclasses import dataclass, field

import numpy as np

from axml_ray.core.ragged import Ragged


@dataclass(frozen=True, kw_only=True)
class Step:
    """A node on the path to a label, with its attention to each word."""

    level: int
    """d: 1 for the children of the root; the last level is the label itself."""
    labels: tuple[str, ...]
    """Names of the most frequent labels below the node, at most three; of a leaf, the name of its label."""
    size: int
    """Number of labels below the node."""
    probability: float
    """Probability of the node given its parent, by the network of the level."""
    weights: np.ndarray = field(compare=False)
    """float32 [words], the node's attention to each word of the text; 0 for words beyond those that networks read."""

    @property
    def name(self) -> str:
        """Return the labels and the number of further labels, as one line."""
        beyond = self.size - len(self.labels)
        return ", ".join(self.labels) + (f" and {beyond:,} more" if beyond else "")


TreePath = tuple[Step, ...]
"""Steps from the top of a tree to a label."""


@dataclass(frozen=True)
class ExplainedText:
    """A text to be explained.

    Attributes:
        words: int32 [n], word ids, at least one.
        real: number of `words` that are in the text; 0 for an empty text, which is read as one unknown word.
    """

    words: np.ndarray
    real: int

    @property
    def tokens(self) -> Ragged:
        """Return the word ids as a batch of one text."""
        return Ragged.from_rows([self.words])
