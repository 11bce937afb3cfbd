"""Initial word vectors of the embedding layer: random, from a file, or learned from the training texts.

Words without a vector are initialised uniformly with the standard deviation of the words that have one, so that random
vectors do not dominate. If no word has one, values are uniform in (-1, 1), as in the authors' program. The vector of
the padding is zero.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from axml_ray.corpus.tokenizer import PADDING, UNKNOWN
from axml_ray.corpus.translation import Translation
from axml_ray.corpus.vector_files import load_known_vectors
from axml_ray.ragged import Ragged
from axml_ray.settings import SettingsError

CHUNK = 1 << 14


def random_vectors(words: int, dimension: int, seed: int, scale: float = 1.0) -> np.ndarray:
    """Draw float32 [words, dimension], uniform in (-scale, scale), with zero padding."""
    random = np.random.default_rng(seed)
    vectors = np.empty((words, dimension), dtype=np.float32)
    for begin in range(0, words, CHUNK):
        part = vectors[begin : begin + CHUNK]
        part[:] = random.uniform(-scale, scale, part.shape)
    vectors[PADDING] = 0
    return vectors


def save_vectors(path: Path, vectors: np.ndarray) -> None:
    """Write float32 [words, dimension] as tensor `word_vectors` of a safetensors file, without a copy in memory."""
    header = {"word_vectors": {"dtype": "F32", "shape": list(vectors.shape), "data_offsets": [0, vectors.nbytes]}}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(np.ascontiguousarray(vectors, dtype="<f4").data)


def read_vectors(path: Path, words: list[str], seed: int) -> tuple[np.ndarray, float]:
    """Read published word vectors; see `vector_files` for the formats.

    Args:
        path: path of the file.
        words: the vocabulary, by id.
        seed: seed for the words that are not in the file.

    Returns:
        float32 [len(words), dimension], and the share of `words` that are in the file.

    Raises:
        SettingsError: a file is missing or invalid, or contains none of the words.
    """
    known, vectors = load_known_vectors(path, words)
    if not known.any():
        raise SettingsError(
            f"corpus.word_vectors: {path}: knows none of the {len(words):,} words of the corpus; is it of another "
            "language, or in upper case?"
        )
    return _fill(known, vectors, len(words), seed)


class TokenFiles:
    """An iterable over the documents of Parquet files as lists of ids, with one file at a time in memory.

    Args:
        files: files of a split.
        translation: translation of the corpus, if the documents are to be translated.
    """

    def __init__(self, files: Sequence[Path], translation: Translation | None = None):
        self._files, self._translation = files, translation

    def __iter__(self) -> Iterator[list[int]]:
        for file in self._files:
            tokens = Ragged.from_arrow(pq.read_table(file, columns=["tokens"])["tokens"])
            yield from _Sentences(tokens if self._translation is None else self._translation.translated(tokens))

    def __len__(self) -> int:
        return sum(pq.read_metadata(file).num_rows for file in self._files)


class _Sentences:
    """An iterable over documents as lists of ids, the input of gensim."""

    def __init__(self, tokens: Ragged):
        self._tokens = tokens

    def __iter__(self) -> Iterator[list[int]]:
        return (self._tokens[row].tolist() for row in range(len(self._tokens)))


def train_vectors(
    tokens: Ragged | TokenFiles, words: int, dimension: int, *, epochs: int, seed: int, window: int = 5
) -> tuple[np.ndarray, float]:
    """Learn skip-gram vectors with negative sampling (gensim) from the training documents.

    Args:
        tokens: the training documents, in memory or in files.
        words: size of the vocabulary.
        dimension: dimension of the vectors.
        epochs: number of passes over the documents.
        seed: seed; with one thread, as here, the result is reproducible up to rounding (1e-4) between processes.
        window: number of context words on each side.

    Returns:
        float32 [words, dimension], and the share of words that occur in `tokens`.
    """
    from gensim.models import Word2Vec  # imported here because it is slow and most tasks do not need it

    model = Word2Vec(
        sg=1, negative=5, vector_size=dimension, window=window, min_count=1, sample=1e-4, workers=1, seed=seed
    )
    sentences = _Sentences(tokens) if isinstance(tokens, Ragged) else tokens
    model.build_vocab(sentences)
    model.train(sentences, total_examples=len(tokens), epochs=epochs)
    known = np.zeros(words, dtype=bool)
    ids = np.array(model.wv.index_to_key, dtype=np.int64)
    known[ids] = True
    known[PADDING] = False
    ordered = np.empty((words, dimension), dtype=np.float32)
    ordered[ids] = model.wv.vectors
    return _fill(known, ordered[known], words, seed)


def _fill(known: np.ndarray, vectors: np.ndarray, words: int, seed: int) -> tuple[np.ndarray, float]:
    """Return all vectors, float32 [words, dimension], and the share of known words; see the module's docstring.

    Args:
        known: bool [words], whether a word has a vector.
        vectors: float32 [known words, dimension].
        words: size of the vocabulary.
        seed: seed for the words without a vector.
    """
    # A uniform variable in (-s, s) has standard deviation s / sqrt(3).
    scale = float(vectors.std()) * 3**0.5 if len(vectors) else 1.0
    table = random_vectors(words, vectors.shape[1], seed, scale)
    table[known] = vectors
    table[PADDING] = 0
    return table, float(known[UNKNOWN:].mean())
