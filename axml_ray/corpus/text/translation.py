"""Translates the words of one language into another, so that texts of both languages train the same classifiers.

Not in the paper. A dictionary gives candidate translations of a word; the labels of the training documents select one
of them. Let n(w, l) be the number of training documents that contain word w and have label l, p(l) the share of l among
all label assignments, and n(w) the number of label assignments of the documents that contain w. The profile of a word
is

    v(w, l) = sqrt(n(w, l)) · max(0, ln(n(w, l) / (n(w) p(l)))),

counted on documents of the word's own language. The score of the candidate with rank r (from 0) of a word of d(w)
documents is the mean cosine of the profiles of its words and of w, times min(1, d(w) / `CONFIDENT_DOCUMENTS`), plus
`RANK_BONUS` / (1 + r), so that rare words get the dictionary's first translation. The candidate with the highest score
is chosen. Very frequent words, such as articles, are not translated (`COMMON_SHARE`).

Networks read a document of the first language translated into the second; linear classifiers count the words of both.

A document is in the first language if more of its words are only in that language than only in the other.

Legend: N documents, V words, L trained labels.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors import safe_open
from scipy import sparse

from axml_ray.core.files import save_tensors
from axml_ray.core.ragged import Ragged, is_ragged
from axml_ray.corpus.labels.label_features import bag_of_words, indicator_matrix
from axml_ray.corpus.text.dictionary import Dictionary

CONFIDENT_DOCUMENTS = 10
"""Number of documents from which on the cosines of a word count in full."""
RANK_BONUS = 0.03
"""Bonus of the dictionary's first translation."""
COMMON_SHARE, COMMON_DOCUMENTS = 0.15, 100
"""A word is not translated if it is in more than this share and this number of the documents of the first language."""
FIT_DOCUMENTS = 200_000
"""Approximate maximum number of documents on which a translation is fitted."""
_CHUNK_ROWS = 1 << 13


@dataclass(frozen=True, eq=False)
class Translation:
    """The translations of the words of a vocabulary.

    Attributes:
        words: V rows, the translation of each word as word ids; empty if it has none.
        sides: int8 [V], the language of each word, see `Dictionary`.
    """

    words: Ragged
    sides: np.ndarray

    @classmethod
    def fit(cls, dictionary: Dictionary, tokens: Ragged, labels: Ragged, trained: int) -> "Translation":
        """Select the translation of each word with the labels of training documents.

        Args:
            dictionary: candidate translations.
            tokens: word ids of the documents.
            labels: label ids of the documents; those of L or more are ignored.
            trained: L.
        """
        empty = cls(Ragged(np.empty(0, np.int32), np.zeros(len(dictionary.sides) + 1, np.int64)), dictionary.sides)
        first_language = empty.in_first_language(tokens)
        candidates, count = dictionary.candidates, np.diff(dictionary.of_word)
        word = np.repeat(np.arange(len(count)), count)  # the word of each candidate
        target_words, source_words = np.unique(candidates.values), np.flatnonzero(count)
        share = np.bincount(labels.values[labels.values < trained], minlength=trained).astype(np.float64)
        share /= max(1.0, share.sum())

        def profiles(documents: np.ndarray, words: np.ndarray) -> tuple[sparse.csr_matrix, np.ndarray]:
            rows = np.flatnonzero(documents)
            return _profiles(tokens.take(rows), labels.take(rows), share, words, len(count))

        target_profiles, _ = profiles(~first_language, target_words)
        source_profiles, source_documents = profiles(first_language, source_words)
        cosines = _cosines(source_profiles, target_profiles, np.repeat(word, candidates.lengths), candidates.values)
        means = np.add.reduceat(np.r_[cosines, 0], candidates.offsets[:-1])[: len(candidates)] / candidates.lengths
        rank = np.arange(len(candidates)) - dictionary.of_word[word]
        score = means * np.minimum(1, source_documents[word] / CONFIDENT_DOCUMENTS) + RANK_BONUS / (1 + rank)
        order = np.lexsort((rank, -score, word))
        best = order[np.flatnonzero(np.diff(word[order], prepend=-1))]
        most_documents = max(COMMON_DOCUMENTS, COMMON_SHARE * first_language.sum())
        best = best[source_documents[word[best]] <= most_documents]
        chosen = candidates.take(best)
        lengths = np.zeros(len(count), dtype=np.int64)
        lengths[word[best]] = chosen.lengths
        return cls(Ragged(chosen.values, np.concatenate([[0], np.cumsum(lengths)])), dictionary.sides)

    def in_first_language(self, tokens: Ragged) -> np.ndarray:
        """Return whether each document is in the first language, bool [N].

        Args:
            tokens: word ids.
        """
        sums = np.concatenate([[0], np.cumsum(self.sides[tokens.values], dtype=np.int64)])
        is_first: np.ndarray = np.diff(sums[tokens.offsets]) > 0
        return is_first

    def translated(self, tokens: Ragged) -> Ragged:
        """Return the documents, with those in the first language translated into the second.

        Words without a translation, and documents in the second language, are unchanged.

        Args:
            tokens: word ids.
        """
        return self.translated_with_positions(tokens)[0]

    def translated_with_positions(self, tokens: Ragged) -> tuple[Ragged, np.ndarray]:
        """Return the translated documents, and the position of the original of each of their words.

        Args:
            tokens: word ids.

        Returns:
            The documents as from `translated`, and int64 [their words], positions in `tokens.values`.
        """
        lengths = self.words.lengths_of(tokens.values)
        changed = (lengths > 0) & np.repeat(self.in_first_language(tokens), tokens.lengths)
        new_lengths = np.where(changed, lengths, 1)
        starts = np.concatenate([[0], np.cumsum(new_lengths)])  # of each original word among the translated ones
        values = np.empty(starts[-1], dtype=np.int32)
        values[starts[:-1][~changed]] = tokens.values[~changed]
        translations = self.words.take(tokens.values[changed])
        shifts = np.repeat(starts[:-1][changed] - translations.offsets[:-1], translations.lengths)
        values[shifts + np.arange(len(translations.values))] = translations.values
        return Ragged(values, starts[tokens.offsets]), np.repeat(np.arange(len(new_lengths)), new_lengths)

    def save(self, path: Path) -> None:
        """Write the translation as a safetensors file."""
        import torch  # slow to import, and the other passes of preparation don't need it

        arrays = {"values": self.words.values, "offsets": self.words.offsets, "sides": self.sides}
        save_tensors({name: torch.from_numpy(array) for name, array in arrays.items()}, path)

    @classmethod
    def load(cls, path: Path, words: int) -> "Translation":
        """Load a translation that `save` wrote.

        Args:
            path: path of the file.
            words: V.

        Raises:
            ValueError: the file holds something else.
        """
        with safe_open(path, framework="np") as file:
            if set(file.keys()) != {"values", "offsets", "sides"}:
                raise ValueError("it holds no translation")
            loaded = cls(Ragged(file.get_tensor("values"), file.get_tensor("offsets")), file.get_tensor("sides"))
        rows = loaded.words
        if (
            not is_ragged(rows)
            or len(rows) != words
            or rows.values.max(initial=0) >= words
            or (loaded.sides.dtype, loaded.sides.shape) != (np.int8, (words,))
        ):
            raise ValueError(f"it holds no translation of {words:,} words")
        return loaded

    def counts(self, tokens: Ragged, counts: sparse.csr_matrix) -> sparse.csr_matrix:
        """Add the translations of words to word counts; a translation counts as often as its original.

        Args:
            tokens: word ids of the documents.
            counts: float32 CSR [N, V], word counts of the documents.

        Returns:
            float32 CSR [N, V].
        """
        first_language = sparse.diags(self.in_first_language(tokens).astype(np.float32))
        return (counts + first_language @ counts @ self._translation_matrix).tocsr()

    @cached_property
    def _translation_matrix(self) -> sparse.csr_matrix:
        """Float32 CSR [V, V]: number of occurrences of each word (column) in the translation of each word (row)."""
        return indicator_matrix(self.words, len(self.sides))


def _profiles(
    tokens: Ragged, labels: Ragged, share: np.ndarray, words: np.ndarray, size: int
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Compute the profiles v(w, l) of some words, scaled to length one.

    Args:
        tokens: word ids of the documents of one language.
        labels: label ids of these documents.
        share: float64 [L], the share p(l) of each label.
        words: the words whose profiles are needed; those of others are empty.
        size: V.

    Returns:
        float32 CSR [V, L], and int64 [V], the number of documents that contain each word.
    """
    contains = bag_of_words(tokens, size)
    contains.data[:] = 1
    documents = np.bincount(contains.indices, minlength=size)
    is_needed = np.zeros(size, dtype=np.float32)
    is_needed[words] = 1
    contains = contains @ sparse.diags(is_needed)
    contains.eliminate_zeros()
    profiles = (contains.T.tocsr() @ indicator_matrix(labels, len(share))).tocsr()
    expected = np.repeat(np.asarray(profiles.sum(axis=1)).ravel(), np.diff(profiles.indptr)) * share[profiles.indices]
    profiles.data = (np.sqrt(profiles.data) * np.maximum(0, np.log(profiles.data / expected))).astype(np.float32)
    profiles.eliminate_zeros()
    norms = np.sqrt(np.asarray(profiles.multiply(profiles).sum(axis=1)).ravel())
    return (sparse.diags(1 / np.maximum(norms, 1e-12)) @ profiles).tocsr(), documents


def _cosines(
    left: sparse.csr_matrix, right: sparse.csr_matrix, left_rows: np.ndarray, right_rows: np.ndarray
) -> np.ndarray:
    """Return the dot products of pairs of rows of length one, float64 [pairs]."""
    parts = [np.empty(0)]
    for start in range(0, len(left_rows), _CHUNK_ROWS):
        end = start + _CHUNK_ROWS
        product = left[left_rows[start:end]].multiply(right[right_rows[start:end]])
        parts.append(np.asarray(product.sum(axis=1), dtype=np.float64).ravel())
    return np.concatenate(parts)
