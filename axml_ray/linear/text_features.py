"""What linear classifiers see of a text: TF-IDF of its words, and of parts of its words.

Not in the paper. Bags of words don't know where a word stood, and know nothing of a word that they met once:

- the first words, where a title stands, may count several times;
- words of more than so many letters may count by their first letters too, which brings inflected words and compounds
  with one beginning together;
- words of one language may count as their translations too (`corpus/translation.py`);
- of those of the first words that are longer, every so many letters in a row may count too, which brings compounds
  together that share a part.

Legend: N documents, V words, P beginnings, R runs of letters, F = V + P + R features.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from scipy import sparse

from axml_ray.corpus.label_features import bag_of_words, indicators, weigh, word_weights
from axml_ray.corpus.tokenizer import SEPARATOR, UNKNOWN
from axml_ray.corpus.translation import Translation
from axml_ray.ragged import Ragged
from axml_ray.settings import LinearSettings


@dataclass(frozen=True, eq=False)
class TextFeatures:
    """The features of a corpus' texts.

    Attributes:
        frequency: int64 [F], training documents that hold each word, then each beginning, then each run.
        documents: training documents in all.
        beginnings: [V], the beginning of each word, counted from 0; none of short words.
        runs: [V], the runs of letters of each word, counted from 0; none of short words.
        lead_words: first words of a text that count more, and whose runs count.
        lead_weight: how many times they count.
        translation: of words that count as other words too, if any do.
    """

    frequency: np.ndarray
    documents: int
    beginnings: Ragged
    runs: Ragged
    lead_words: int = 0
    lead_weight: float = 1.0
    translation: Translation | None = None

    @classmethod
    def fit(
        cls, tokens: Ragged, words: Sequence[str], settings: LinearSettings, translation: Translation | None = None
    ) -> "TextFeatures":
        """The features of training documents.

        Args:
            tokens: their word ids.
            words: of the vocabulary, by id.
            settings: of the classifiers.
            translation: of words that count as other words too.
        """
        beginnings = _parts(words, settings.prefix_letters, lambda word, letters: [word[:letters]])
        runs = _parts(words, settings.lead_letters, _runs)
        unfitted = np.zeros(len(words) + kinds(beginnings) + kinds(runs), dtype=np.int64)
        lead = settings.lead_words, settings.lead_weight
        found = cls(unfitted, len(tokens), beginnings, runs, *lead, translation)
        found.frequency[:] = np.bincount(found.counts(tokens).indices, minlength=len(unfitted))
        return found

    def __len__(self) -> int:
        return len(self.frequency)

    def same_as(self, other: "TextFeatures") -> bool:
        """Whether every text has the same features by both."""
        mine, theirs = _arrays(self), _arrays(other)
        return _told(self) == _told(other) and len(mine) == len(theirs) and all(map(np.array_equal, mine, theirs))

    def translated(self, tokens: Ragged) -> Ragged:
        """Documents (word ids) in words of one language, as far as these are known."""
        return tokens if self.translation is None else self.translation.translated(tokens)

    def counts(self, tokens: Ragged) -> sparse.csr_matrix:
        """How often each feature occurs in each text, float32 CSR [N, F].

        Args:
            tokens: word ids.
        """
        times = None
        if self.lead_words:
            place = np.arange(len(tokens.values)) - np.repeat(tokens.offsets[:-1], tokens.lengths)
            times = np.where(place < self.lead_words, np.float32(self.lead_weight), np.float32(1))
        counts = bag_of_words(tokens, len(self.beginnings), times)
        if self.translation is not None:
            counts = self.translation.counts(tokens, counts)
        if len(self) == len(self.beginnings):
            return counts
        beginnings, runs = self._of_words
        lead = bag_of_words(tokens.cut(self.lead_words), len(self.runs))
        counts = sparse.hstack([counts, counts @ beginnings, lead @ runs], format="csr")
        counts.sort_indices()
        return counts

    def rows(self, tokens: Ragged) -> sparse.csr_matrix:
        """TF-IDF vectors of length one, and a last column of ones for the bias: float32 CSR [N, F + 1].

        Args:
            tokens: word ids.
        """
        found = self.counts(tokens)
        weigh(found, self._weights)
        ends = found.indptr[1:]
        indices, weights = np.insert(found.indices, ends, len(self)), np.insert(found.data, ends, np.float32(1))
        return sparse.csr_matrix(
            (weights, indices, found.indptr + np.arange(len(tokens) + 1)), shape=(len(tokens), len(self) + 1)
        )

    @cached_property
    def _weights(self) -> np.ndarray:
        """float32 [F]; a vocabulary is large, a batch of texts may be one."""
        return word_weights(self.frequency, self.documents)

    @cached_property
    def _of_words(self) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
        """How often each word has each beginning, float32 CSR [V, P], and each run, float32 CSR [V, R]."""
        return indicators(self.beginnings, kinds(self.beginnings)), indicators(self.runs, kinds(self.runs))


def _told(features: TextFeatures) -> tuple[float, ...]:
    return features.documents, features.lead_words, features.lead_weight


def _arrays(features: TextFeatures) -> Sequence[np.ndarray]:
    beginnings, runs, other = features.beginnings, features.runs, features.translation
    of_translation = [] if other is None else [other.words.values, other.words.offsets, other.sides]
    return features.frequency, beginnings.values, beginnings.offsets, runs.values, runs.offsets, *of_translation


def _runs(word: str, letters: int) -> Iterable[str]:
    return (word[begin : begin + letters] for begin in range(len(word) - letters + 1))


def _parts(words: Sequence[str], letters: int | None, of: Callable[[str, int], Iterable[str]]) -> Ragged:
    """The parts of words of more than so many letters, numbered by spelling; no word has any for None."""
    rows: list[list[str]] = [[] for _ in words]
    if letters is not None:
        for number in range(UNKNOWN + 1, len(words)):
            if len(words[number]) > letters and words[number] != SEPARATOR:
                rows[number] = list(of(words[number], letters))
    numbers = {part: number for number, part in enumerate(sorted(set(chain.from_iterable(rows))))}
    return Ragged.from_rows([[numbers[part] for part in row] for row in rows])


def kinds(parts: Ragged) -> int:
    """How many different parts words have."""
    return int(parts.values.max(initial=-1)) + 1
