"""The first values of the word embedding: random, from a file, or learned from the training texts.

Words without a vector start uniform with the spread of the words that have one, so that noise doesn't outweigh
them; where none has one, in (-1, 1) as the authors' program does. Padding is zero.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from axml_ray.corpus.tokenizer import PADDING, UNKNOWN
from axml_ray.corpus.translation import Translation
from axml_ray.corpus.vector_files import known_vectors
from axml_ray.ragged import Ragged
from axml_ray.settings import SettingsError

CHUNK = 1 << 14


def random_vectors(words: int, dimension: int, seed: int, scale: float = 1.0) -> np.ndarray:
    """float32 [words, dimension], uniform in (-scale, scale), padding zero."""
    random = np.random.default_rng(seed)
    vectors = np.empty((words, dimension), dtype=np.float32)
    for begin in range(0, words, CHUNK):
        part = vectors[begin : begin + CHUNK]
        part[:] = random.uniform(-scale, scale, part.shape)
    vectors[PADDING] = 0
    return vectors


def save_vectors(path: Path, vectors: np.ndarray) -> None:
    """Write float32 [words, dimension] as the safetensors file `word_vectors`, without a second copy in memory."""
    header = {"word_vectors": {"dtype": "F32", "shape": list(vectors.shape), "data_offsets": [0, vectors.nbytes]}}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(np.ascontiguousarray(vectors, dtype="<f4").data)


def read_vectors(path: Path, words: list[str], seed: int) -> tuple[np.ndarray, float]:
    """Vectors of a published file; see `vector_files` for its forms.

    Args:
        path: the file.
        words: the vocabulary, by id.
        seed: of the words that the file doesn't know.

    Returns:
        float32 [len(words), dimension], and the share of `words` that the file knows.

    Raises:
        SettingsError: a file is missing or isn't what it should be, or knows none of the words.
    """
    known, vectors = known_vectors(path, words)
    if not known.any():
        raise SettingsError(
            f"corpus.word_vectors: {path}: knows none of the {len(words):,} words of the corpus; is it of another "
            "language, or in upper case?"
        )
    return _fill(known, vectors, len(words), seed)


class TokenFiles:
    """A restartable stream of the documents of Parquet files as lists of ids, one file held at a time; translated where
    there is a translation.
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
    """A restartable stream of documents as lists of ids, the form gensim reads."""

    def __init__(self, tokens: Ragged):
        self._tokens = tokens

    def __iter__(self) -> Iterator[list[int]]:
        return (self._tokens[row].tolist() for row in range(len(self._tokens)))


def train_vectors(
    tokens: Ragged | TokenFiles, words: int, dimension: int, *, epochs: int, seed: int, window: int = 5
) -> tuple[np.ndarray, float]:
    """Skip-gram vectors with negative sampling (gensim), learned from the training documents.

    Args:
        tokens: the training documents, in memory or in files.
        words: size of the vocabulary.
        dimension: of the vectors.
        epochs: passes over the documents.
        seed: repeats the result, with one thread as here; between processes rounding (1e-4) was seen to differ.
        window: words of context on either side.

    Returns:
        float32 [words, dimension], and the share of words that occur in `tokens`.
    """
    from gensim.models import Word2Vec  # slow to import, and most tasks of a preparation have no use for it

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
    # A uniform variable in (-s, s) has standard deviation s / sqrt(3).
    scale = float(vectors.std()) * 3**0.5 if len(vectors) else 1.0
    table = random_vectors(words, vectors.shape[1], seed, scale)
    table[known] = vectors
    table[PADDING] = 0
    return table, float(known[UNKNOWN:].mean())
