"""TF-IDF features of a text, shared by all members of a run that use features.

Not in the paper. Settings add features to the bag of words: the first words, often the title, may count several times;
longer words also by their prefix, so that inflected words match; the longer of the first words also by their letter
n-grams ("runs"), so that compounds with a common part match.

Legend: N documents, V words, P prefixes, R runs of letters, F = V + P + R features.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from scipy import sparse

from axml_ray.core.array_file import open_arrays, save_arrays
from axml_ray.core.ragged import Ragged, is_ragged
from axml_ray.corpus.counts import Counts
from axml_ray.corpus.labels.label_features import apply_tf_idf, bag_of_words, idf_weights, indicator_matrix
from axml_ray.corpus.labels.label_name_texts import name_texts
from axml_ray.corpus.store import Corpus, Split
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.corpus.text.tokenizer import SEPARATOR, UNKNOWN
from axml_ray.settings.members import FeatureSettings

ABOUT = {"format": "axml-ray features", "version": "1"}
FREQUENCY, PREFIXES, RUNS = "frequency", "prefixes", "runs"
LEAD_WEIGHT = 10.0
"""Number of times that each of the first `lead_words` of a text counts."""
BLOCK_TEXTS = 1 << 14
"""Number of training texts whose features are computed together."""
DISTINCT_SHARE = 0.6
"""Distinct features of a text relative to its words, without those of parts of words."""
WORD_BYTES, FEATURE_BYTES, COUNTING_BYTES = 4, 8, 36
"""Bytes of a word of a text, of an entry of a feature matrix, and of an entry while the matrix is computed."""
COUNTED_PER_SECOND = 3.2e6
"""Entries of a feature matrix that a core computes in a second (`benchmarks/results/phases.json`)."""


def matrix_entries(counts: Counts, settings: FeatureSettings) -> int:
    """Estimate the entries of the feature matrix of the training texts."""
    parts = (settings.prefix_letters is not None) * 0.5 * counts.tokens
    parts += (settings.lead_letters is not None) * 5 * settings.lead_words
    return round(counts.documents * (DISTINCT_SHARE * counts.tokens + parts))


def counting_bytes(counts: Counts, settings: FeatureSettings) -> int:
    """Estimate the bytes that a process takes that computes the features of the training texts by `text_blocks`."""
    in_block = min(1.0, BLOCK_TEXTS / counts.documents)
    words = round(counts.documents * counts.tokens)
    return round(WORD_BYTES * words + COUNTING_BYTES * in_block * matrix_entries(counts, settings))


@dataclass(frozen=True, eq=False)
class Featurizer:
    """A transformer of texts into the rows of a TF-IDF feature matrix.

    Attributes:
        frequency: int64 [F], number of training documents that contain each word, then each prefix, then each run.
        documents: number of training documents.
        prefixes: V rows, the prefix ids (from 0) of each word; empty for short words.
        runs: V rows, the run ids (from 0) of each word; empty for short words.
        lead_words: number of first words that count `LEAD_WEIGHT` times, and whose runs count.
    """

    frequency: np.ndarray
    documents: int
    prefixes: Ragged
    runs: Ragged
    lead_words: int = 0

    @classmethod
    def fit(cls, tokens: Ragged, words: Sequence[str], settings: FeatureSettings) -> "Featurizer":
        """Count the features of training documents; `words` is the vocabulary, by id."""
        prefixes = _parts(words, settings.prefix_letters, lambda word, letters: [word[:letters]])
        runs = _parts(words, settings.lead_letters, _runs)
        unfitted = np.zeros(len(words) + _kinds(prefixes) + _kinds(runs), dtype=np.int64)
        featurizer = cls(unfitted, len(tokens), prefixes, runs, settings.lead_words)
        for block in text_blocks(tokens):
            featurizer.frequency[:] += np.bincount(featurizer.counts(block).indices, minlength=len(unfitted))
        return featurizer

    def __len__(self) -> int:
        return len(self.frequency)

    def of(self, texts: TextViews) -> sparse.csr_matrix:
        """Return `matrix` of a batch of texts, computed once for all members."""
        return texts.get_or_compute(("features", id(self)), lambda: self.matrix(texts.original))

    def counts(self, tokens: Ragged) -> sparse.csr_matrix:
        """Count the features of each text's word ids, float32 CSR [N, F]; leading words are weighted."""
        times = None
        if self.lead_words:
            position = np.arange(len(tokens.values)) - np.repeat(tokens.offsets[:-1], tokens.lengths)
            times = np.where(position < self.lead_words, np.float32(LEAD_WEIGHT), np.float32(1))
        counts = bag_of_words(tokens, len(self.prefixes), times)
        if len(self) == len(self.prefixes):
            return counts
        prefixes, runs = self._of_words
        lead = bag_of_words(tokens.cut(self.lead_words), len(self.runs))
        counts = sparse.hstack([counts, counts @ prefixes, lead @ runs], format="csr")
        counts.sort_indices()
        return counts

    def matrix(self, tokens: Ragged) -> sparse.csr_matrix:
        """Return TF-IDF rows of length one, and a last column of ones for the bias: float32 CSR [N, F + 1]."""
        rows = self.counts(tokens)
        apply_tf_idf(rows, self._weights)
        # Insert the bias at the end of each row, which moves the end of row i by i + 1.
        ends = rows.indptr[1:]
        indices, weights = np.insert(rows.indices, ends, len(self)), np.insert(rows.data, ends, np.float32(1))
        offsets = rows.indptr + np.arange(len(tokens) + 1)
        return sparse.csr_matrix((weights, indices, offsets), shape=(len(tokens), len(self) + 1))

    def save(self, path: Path, key: str) -> None:
        """Write the featurizer, atomically, with the cache key of everything that it depends on."""
        about = {name: str(getattr(self, name)) for name in ("documents", "lead_words")}
        arrays = {FREQUENCY: self.frequency}
        for name, parts in {PREFIXES: self.prefixes, RUNS: self.runs}.items():
            arrays |= {name: parts.values, f"{name}.offsets": parts.offsets}
        save_arrays(arrays, path, {**ABOUT, **about}, key)

    @classmethod
    def load(cls, path: Path, words: int) -> "Featurizer":
        """Open a featurizer that `save` wrote, for a vocabulary of `words` words.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is not a featurizer of this version, or was fitted with other words.
        """
        try:
            arrays, about = open_arrays(path, ABOUT)
            documents, lead_words = int(about["documents"]), int(about["lead_words"])
            frequency = arrays[FREQUENCY]
            counted = frequency.dtype == np.int64 and frequency.ndim == 1 and 1 <= documents < 2**31
            if not counted or frequency.min(initial=0) < 0 or frequency.max(initial=0) > documents:
                raise ValueError("the document frequencies of the features are wrong")
            prefixes, runs = (Ragged(arrays[name], arrays[f"{name}.offsets"]) for name in (PREFIXES, RUNS))
            fit = is_ragged(prefixes) and is_ragged(runs) and len(prefixes) == len(runs)
            if not fit or len(prefixes) + _kinds(prefixes) + _kinds(runs) != len(frequency):
                raise ValueError("the parts of words are wrong")
            if len(prefixes) != words:
                raise ValueError(f"made for {len(prefixes):,} words, not {words:,}")
            # Older versions had a setting for the weight.
            if lead_words < 0 or float(about.get("lead_weight", LEAD_WEIGHT)) != LEAD_WEIGHT:
                raise ValueError(f"its first {lead_words} words count {about.get('lead_weight')} times")
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            raise ValueError(f"{path} holds no features of these words: {error}") from None
        return cls(frequency, documents, prefixes, runs, lead_words)

    @cached_property
    def _weights(self) -> np.ndarray:
        """Return the IDF weights, float32 [F]; cached, since the vocabulary is large and a batch may be one text."""
        return idf_weights(self.frequency, self.documents)

    @cached_property
    def _of_words(self) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
        """Return how often each word has each prefix, float32 CSR [V, P], and each run, float32 CSR [V, R]."""
        return indicator_matrix(self.prefixes, _kinds(self.prefixes)), indicator_matrix(self.runs, _kinds(self.runs))


def text_blocks(tokens: Ragged) -> Iterator[Ragged]:
    """Yield texts in blocks: counts and features of a whole corpus would be several times as large as its tokens."""
    for first in range(0, len(tokens), BLOCK_TEXTS):
        yield tokens.take(np.arange(first, min(first + BLOCK_TEXTS, len(tokens))))


def feature_texts(corpus: Corpus, train: Split, settings: FeatureSettings, max_tokens: int) -> Split:
    """Return the texts that feature-based members are fitted on: training documents and, if set, names of labels."""
    if not settings.names_as_texts:
        return train
    return train.followed_by(name_texts(corpus.labels, corpus.tokenizer, max_tokens))


def _runs(word: str, letters: int) -> Iterable[str]:
    """Return all runs of `letters` consecutive letters of a word."""
    return (word[begin : begin + letters] for begin in range(len(word) - letters + 1))


def _parts(words: Sequence[str], letters: int | None, of: Callable[[str, int], Iterable[str]]) -> Ragged:
    """Return the part ids of each word of more than `letters` letters, numbered by spelling; none if it is None."""
    rows: list[list[str]] = [[] for _ in words]
    if letters is not None:
        for number in range(UNKNOWN + 1, len(words)):
            if len(words[number]) > letters and words[number] != SEPARATOR:
                rows[number] = list(of(words[number], letters))
    numbers = {part: number for number, part in enumerate(sorted(set(chain.from_iterable(rows))))}
    return Ragged.from_rows([[numbers[part] for part in row] for row in rows])


def _kinds(parts: Ragged) -> int:
    """Return the number of distinct parts."""
    return int(parts.values.max(initial=-1)) + 1
