"""What a member can tell of why a text has a label: the path to the label in its tree, with attention to words."""

from dataclasses import dataclass, field

import numpy as np

from axml_ray.corpus.translation import Translation
from axml_ray.ragged import Ragged


@dataclass(frozen=True, kw_only=True)
class Step:
    """A node on the path to a label, with the attention that it pays to each word."""

    level: int
    """d, from 1 below the root; the last one is the label itself."""
    labels: tuple[str, ...]
    """Names of the most frequent labels below the node, at most three; at the leaf, the label's."""
    size: int
    """Labels below the node."""
    probability: float
    """The level's network's probability of the node."""
    weights: np.ndarray = field(compare=False)
    """float32 [words], attention of the node to each word of the text; 0 beyond the words that networks read."""

    @property
    def name(self) -> str:
        """The labels, and how many more there are, as one line."""
        beyond = self.size - len(self.labels)
        return ", ".join(self.labels) + (f" and {beyond:,} more" if beyond else "")


TreePath = tuple[Step, ...]
"""Steps from the top of a tree to a label."""


@dataclass(frozen=True)
class ExplainedText:
    """One text to be explained.

    Attributes:
        words: int32 [n], word ids, at least one.
        real: how many of them are words of the text; 0 for an empty text, which is read as one unknown word.
        translated: the text as networks read it, one row of m word ids; the same words where there is no dictionary.
        source: int64 [m], the place in `words` of the word that each translated one stands for.
    """

    words: np.ndarray
    real: int
    translated: Ragged
    source: np.ndarray

    @property
    def tokens(self) -> Ragged:
        """The word ids as a batch of one text."""
        return Ragged.from_rows([self.words])

    @classmethod
    def of(cls, words: np.ndarray, real: int, translation: Translation | None) -> "ExplainedText":
        """The text with its translation, where the corpus has a dictionary."""
        tokens = Ragged.from_rows([words])
        if translation is None:
            return cls(words, real, tokens, np.arange(len(words)))
        return cls(words, real, *translation.translated_with_positions(tokens))
