"""What linear classifiers see of a text: TF-IDF of its words, and of the first letters of long ones.

Not in the paper. Bags of words don't know where a word stood, and know nothing of a word that they met once:

- the first words, where a title stands, may count several times;
- words of more than so many letters may count by their first letters too, which brings inflected and compound words
  together.

Legend: N documents, V words, P beginnings, F = V + P features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from axml_ray.corpus.label_features import bag_of_words, weigh, word_weights
from axml_ray.corpus.tokenizer import UNKNOWN
from axml_ray.ragged import Ragged
from axml_ray.settings import LinearSettings


@dataclass(frozen=True, eq=False)
class TextFeatures:
    """The features of a corpus' texts.

    Attributes:
        frequency: int64 [F], training documents that hold each word, then each beginning.
        documents: training documents in all.
        beginnings: int32 [V], the beginning of each word, counted from 0; -1 for words that have none.
        lead_words: first words of a text that count more.
        lead_weight: how many times.
    """

    frequency: np.ndarray
    documents: int
    beginnings: np.ndarray
    lead_words: int = 0
    lead_weight: float = 1.0

    @classmethod
    def fit(cls, tokens: Ragged, words: Sequence[str], settings: LinearSettings) -> "TextFeatures":
        """The features of training documents.

        Args:
            tokens: their word ids.
            words: of the vocabulary, by id.
            settings: of the classifiers.
        """
        beginnings, letters = np.full(len(words), -1, dtype=np.int32), settings.prefix_letters
        if letters is not None:
            long = [word for word in range(UNKNOWN + 1, len(words)) if len(words[word]) > letters]
            _, beginnings[long] = np.unique([words[word][:letters] for word in long], return_inverse=True)
        unfitted = np.zeros(len(words) + beginnings.max(initial=-1) + 1, dtype=np.int64)
        found = cls(unfitted, len(tokens), beginnings, settings.lead_words, settings.lead_weight)
        found.frequency[:] = np.bincount(found.counts(tokens).indices, minlength=len(unfitted))
        return found

    def __len__(self) -> int:
        return len(self.frequency)

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
        if len(self) == len(self.beginnings):
            return counts
        counts = sparse.hstack([counts, counts @ self._of_words], format="csr")
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
    def _of_words(self) -> sparse.csr_matrix:
        """Which word has which beginning: float32 CSR [V, P] of ones."""
        has = self.beginnings >= 0
        offsets = np.concatenate([[0], np.cumsum(has)])
        shape = (len(self.beginnings), len(self) - len(self.beginnings))
        return sparse.csr_matrix((np.ones(offsets[-1], np.float32), self.beginnings[has], offsets), shape=shape)
