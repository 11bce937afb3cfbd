"""The first values of the word embedding: random, from a file, or learned from the training texts.

Words without a vector start uniform with the spread of the words that have one, so that noise doesn't outweigh
them; where none has one, in (-1, 1) as the authors' program does. Padding is zero.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gensim.models import Word2Vec

from axml_ray.corpus.tokenizer import PADDING, UNKNOWN
from axml_ray.ragged import Ragged
from axml_ray.settings import SettingsError


def random_vectors(words: int, dimension: int, seed: int, scale: float = 1.0) -> np.ndarray:
    """float32 [words, dimension], uniform in (-scale, scale), padding zero."""
    vectors = np.random.default_rng(seed).uniform(-scale, scale, (words, dimension)).astype(np.float32)
    vectors[PADDING] = 0
    return vectors


def open_vectors(path: Path) -> tuple[np.ndarray, list[str]]:
    """The array in `path`, mapped from disk, and the word of each of its rows.

    Raises:
        SettingsError: a file is missing or isn't what it should be, or the two don't fit together.
    """
    vocabulary = path.with_name("vocab.txt")
    try:
        table = np.lib.format.open_memmap(path, mode="r")
        # Not splitlines(): it would also split at separators that are words of published vocabularies.
        known = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise SettingsError(f"corpus.word_vectors: {path}: {error}; expected an .npy file and vocab.txt") from None
    if table.dtype.kind != "f" or table.ndim != 2:
        raise SettingsError(f"corpus.word_vectors: {path}: expected an .npy array of floats with two dimensions")
    if len(table) != len(known):
        raise SettingsError(
            f"corpus.word_vectors: {path} has shape {table.shape}, {vocabulary} has {len(known)} lines; "
            "expected one row a line"
        )
    return table, known


def read_vectors(path: Path, words: list[str], seed: int) -> tuple[np.ndarray, float]:
    """Vectors of an `.npy` array whose words are the lines of `vocab.txt` beside it.

    Args:
        path: the `.npy` file, float [rows, dimension].
        words: the vocabulary, by id.
        seed: of the words that the file doesn't know.

    Returns:
        float32 [len(words), dimension], and the share of `words` that the file knows.

    Raises:
        SettingsError: a file is missing or isn't what it should be, or the two don't fit together.
    """
    table, known = open_vectors(path)
    row_of = {word: row for row, word in enumerate(known)}
    rows = np.array([row_of.get(word, -1) for word in words])
    return _fill(rows >= 0, np.asarray(table[rows[rows >= 0]], dtype=np.float32), len(words), seed)


class _Sentences:
    """A restartable stream of documents as lists of ids, the form gensim reads."""

    def __init__(self, tokens: Ragged):
        self._tokens = tokens

    def __iter__(self) -> Iterator[list[int]]:
        return (self._tokens[row].tolist() for row in range(len(self._tokens)))


def train_vectors(
    tokens: Ragged, words: int, dimension: int, *, epochs: int, seed: int, window: int = 5
) -> tuple[np.ndarray, float]:
    """Skip-gram vectors with negative sampling (gensim), learned from the training documents.

    Args:
        tokens: the training documents.
        words: size of the vocabulary.
        dimension: of the vectors.
        epochs: passes over the documents.
        seed: repeats the result, with one thread as here; between processes rounding (1e-4) was seen to differ.
        window: words of context on either side.

    Returns:
        float32 [words, dimension], and the share of words that occur in `tokens`.
    """
    model = Word2Vec(
        sg=1, negative=5, vector_size=dimension, window=window, min_count=1, sample=1e-4, workers=1, seed=seed
    )
    model.build_vocab(_Sentences(tokens))
    model.train(_Sentences(tokens), total_examples=len(tokens), epochs=epochs)
    known = np.zeros(words, dtype=bool)
    ids = np.array(model.wv.index_to_key, dtype=np.int64)
    known[ids] = True
    known[PADDING] = False
    ordered = np.empty((words, dimension), dtype=np.float32)
    ordered[ids] = model.wv.vectors
    return _fill(known, ordered[known], words, seed)


def _fill(known: np.ndarray, vectors: np.ndarray, words: int, seed: int) -> tuple[np.ndarray, float]:
    # A uniform variable in (-s, s) has standard deviation s / sqrt(3).
    scale = float(vectors.std()) * 3**0.5 if len(vectors) else 1.0
    table = random_vectors(words, vectors.shape[1], seed, scale)
    table[known] = vectors
    table[PADDING] = 0
    return table, float(known[UNKNOWN:].mean())
