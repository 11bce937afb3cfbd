"""Words of one language that count as their translations too: texts of two languages then teach the same classifiers.

Not in the paper. A dictionary says what a word may mean; which of its translations it has in these texts, their labels
tell. With n(w, l) the training documents that hold word w and have label l, p(l) the share of l among all labels of
documents, and n(w) the labels of all documents that hold w, a word's profile is

    v(w, l) = sqrt(n(w, l)) · max(0, ln(n(w, l) / (n(w) p(l)))),

counted on documents of the word's own language. Of the candidates of w, the one is taken whose words have the largest
mean cosine with w, times min(1, d(w) / 10) for a word of d(w) documents, plus 0.03 / (1 + r) for the r-th of the
dictionary, from 0: words that few documents hold mean what the dictionary says first. Words that more than `COMMON` of
the documents hold, such as articles, are left alone.

Networks read a document of the first language in words of the second; classifiers count both.

A document is of the first language if it has more words of that language alone than of the other alone.

Legend: N documents, V words, L trained labels.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from scipy import sparse

from axml_ray.corpus.dictionary import Dictionary
from axml_ray.corpus.label_features import bag_of_words, indicators
from axml_ray.files import save_tensors
from axml_ray.ragged import Ragged, is_ragged

ENOUGH, FIRST = 10, 0.03
COMMON, RARE = 0.15, 100
"""Share of the documents of the first language that hold a word, and how many of them, from which on it isn't
translated: an article's meanings are many, and say nothing."""
FITTED = 200_000
"""Documents whose labels are counted, at most."""
_AT_A_TIME = 1 << 13


@dataclass(frozen=True, eq=False)
class Translation:
    """What the words of one language are in another.

    Attributes:
        words: V rows, the translation of each word as word ids; none where it has none.
        sides: int8 [V], as of `Dictionary`.
    """

    words: Ragged
    sides: np.ndarray

    @classmethod
    def fit(cls, dictionary: Dictionary, tokens: Ragged, labels: Ragged, trained: int) -> "Translation":
        """The translations that training documents bear out.

        Args:
            dictionary: of their vocabulary.
            tokens: word ids of the documents.
            labels: theirs; those from `trained` on are left out.
            trained: L.
        """
        empty = cls(Ragged(np.empty(0, np.int32), np.zeros(len(dictionary.sides) + 1, np.int64)), dictionary.sides)
        foreign = empty.foreign(tokens)
        candidates, count = dictionary.candidates, np.diff(dictionary.of_word)
        word = np.repeat(np.arange(len(count)), count)  # of each candidate
        used = np.unique(candidates.values), np.flatnonzero(count)
        share = np.bincount(labels.values[labels.values < trained], minlength=trained).astype(np.float64)
        share /= max(1.0, share.sum())
        theirs, own = (
            _profiles(tokens.take(np.flatnonzero(rows)), labels.take(np.flatnonzero(rows)), share, some, len(count))
            for rows, some in zip((~foreign, foreign), used, strict=True)
        )
        cosines = _cosines(own[0], theirs[0], np.repeat(word, candidates.lengths), candidates.values)
        means = np.add.reduceat(np.r_[cosines, 0], candidates.offsets[:-1])[: len(candidates)] / candidates.lengths
        rank = np.arange(len(candidates)) - dictionary.of_word[word]
        score = means * np.minimum(1, own[1][word] / ENOUGH) + FIRST / (1 + rank)
        order = np.lexsort((rank, -score, word))
        first = order[np.flatnonzero(np.diff(word[order], prepend=-1))]
        first = first[own[1][word[first]] <= max(RARE, COMMON * foreign.sum())]
        chosen = candidates.take(first)
        lengths = np.zeros(len(count), dtype=np.int64)
        lengths[word[first]] = chosen.lengths
        return cls(Ragged(chosen.values, np.concatenate([[0], np.cumsum(lengths)])), dictionary.sides)

    def foreign(self, tokens: Ragged) -> np.ndarray:
        """Which documents are of the first language, bool [N].

        Args:
            tokens: word ids.
        """
        sums = np.concatenate([[0], np.cumsum(self.sides[tokens.values], dtype=np.int64)])
        found: np.ndarray = np.diff(sums[tokens.offsets]) > 0
        return found

    def translated(self, tokens: Ragged) -> Ragged:
        """Documents of the first language in words of the second, where these are known; the others as they are.

        Args:
            tokens: word ids.
        """
        return self.with_places(tokens)[0]

    def with_places(self, tokens: Ragged) -> tuple[Ragged, np.ndarray]:
        """As `translated`, and which of the words before, all documents' in a row, each word stands for: int64.

        Args:
            tokens: word ids.
        """
        lengths = self.words.lengths_of(tokens.values)
        changed = (lengths > 0) & np.repeat(self.foreign(tokens), tokens.lengths)
        length = np.where(changed, lengths, 1)
        ends = np.concatenate([[0], np.cumsum(length)])
        values = np.empty(ends[-1], dtype=np.int32)
        values[ends[:-1][~changed]] = tokens.values[~changed]
        of_changed = self.words.take(tokens.values[changed])
        starts = np.repeat(ends[:-1][changed] - of_changed.offsets[:-1], of_changed.lengths)
        values[starts + np.arange(len(of_changed.values))] = of_changed.values
        return Ragged(values, ends[tokens.offsets]), np.repeat(np.arange(len(length)), length)

    def save(self, path: Path) -> None:
        """Write it as safetensors."""
        arrays = {"values": self.words.values, "offsets": self.words.offsets, "sides": self.sides}
        save_tensors({name: torch.from_numpy(array) for name, array in arrays.items()}, path)

    @classmethod
    def load(cls, path: Path, words: int) -> "Translation":
        """What `save` wrote.

        Args:
            path: of the file.
            words: V.

        Raises:
            ValueError: it holds something else.
        """
        with safe_open(path, framework="np") as file:
            if set(file.keys()) != {"values", "offsets", "sides"}:
                raise ValueError("it holds no translation")
            found = cls(Ragged(file.get_tensor("values"), file.get_tensor("offsets")), file.get_tensor("sides"))
        rows = found.words
        if (
            not is_ragged(rows)
            or len(rows) != words
            or rows.values.max(initial=0) >= words
            or (found.sides.dtype, found.sides.shape) != (np.int8, (words,))
        ):
            raise ValueError(f"it doesn't say what {words:,} words are in the other language")
        return found

    def counts(self, tokens: Ragged, counts: sparse.csr_matrix) -> sparse.csr_matrix:
        """Word counts of documents, float32 CSR [N, V], with their words' translations, which count as often.

        Args:
            tokens: word ids.
            counts: float32 CSR [N, V], without.
        """
        foreign = sparse.diags(self.foreign(tokens).astype(np.float32))
        return (counts + foreign @ counts @ self._of_words).tocsr()

    @cached_property
    def _of_words(self) -> sparse.csr_matrix:
        """How often each word is in the translation of each, float32 CSR [V, V]."""
        return indicators(self.words, len(self.sides))


def _profiles(
    tokens: Ragged, labels: Ragged, share: np.ndarray, words: np.ndarray, size: int
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Profiles of length one of some words, float32 CSR [V, L], empty for the others; and the documents of each."""
    held = bag_of_words(tokens, size)
    held.data[:] = 1
    documents = np.bincount(held.indices, minlength=size)
    wanted = np.zeros(size, dtype=np.float32)
    wanted[words] = 1
    held = held @ sparse.diags(wanted)
    held.eliminate_zeros()
    found = (held.T.tocsr() @ indicators(labels, len(share))).tocsr()
    expected = np.repeat(np.asarray(found.sum(axis=1)).ravel(), np.diff(found.indptr)) * share[found.indices]
    found.data = (np.sqrt(found.data) * np.maximum(0, np.log(found.data / expected))).astype(np.float32)
    found.eliminate_zeros()
    norms = np.sqrt(np.asarray(found.multiply(found).sum(axis=1)).ravel())
    return (sparse.diags(1 / np.maximum(norms, 1e-12)) @ found).tocsr(), documents


def _cosines(own: sparse.csr_matrix, theirs: sparse.csr_matrix, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Of pairs of rows, float64 [n]."""
    parts = [np.empty(0)]
    for start in range(0, len(rows), _AT_A_TIME):
        end = start + _AT_A_TIME
        product = own[rows[start:end]].multiply(theirs[others[start:end]])
        parts.append(np.asarray(product.sum(axis=1), dtype=np.float64).ravel())
    return np.concatenate(parts)
