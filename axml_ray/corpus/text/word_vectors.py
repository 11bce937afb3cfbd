"""Initial word vectors of the embedding layer: random, from a file, or learned from the texts (see `cooccurrence`).

Words without a vector are initialised uniformly with the standard deviation of the words that have one, so that random
vectors do not dominate. If no word has one, values are uniform in (-1, 1), as in the authors' program. The vector of
the padding is zero.
"""

import json
from pathlib import Path

import numpy as np

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.text.tokenizer import PADDING, UNKNOWN
from axml_ray.corpus.text.vector_files import load_known_vectors

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
    """Read published word vectors (`vector_files`) of a vocabulary; those of words that are not in the file are drawn.

    Returns float32 [len(words), dimension], and the share of `words` that are in the file.

    Raises:
        SettingsError: a file is missing or invalid, contains none of the words, or a vector that is not finite.
    """
    known, vectors = load_known_vectors(path, words)
    if not known.any():
        raise SettingsError(
            f"corpus.word_vectors: {path}: knows none of the {len(words):,} words of the corpus; is it of another "
            "language, or in upper case?"
        )
    if not np.isfinite(vectors).all():
        word = words[np.flatnonzero(known)[~np.isfinite(vectors).all(axis=1)][0]]
        raise SettingsError(f"corpus.word_vectors: {path}: the vector of {word!r} has NaN or infinity; remove it")
    return fill_unknown(known, vectors, len(words), seed)


def fill_unknown(known: np.ndarray, vectors: np.ndarray, words: int, seed: int) -> tuple[np.ndarray, float]:
    """Return all vectors, float32 [words, dimension], and the share of known words; see the module's docstring.

    `known` (bool [words]) is whether a word has a vector; `vectors` are those of known words.
    """
    # A uniform variable in (-s, s) has standard deviation s / sqrt(3).
    scale = float(vectors.std()) * 3**0.5 if len(vectors) else 1.0
    table = random_vectors(words, vectors.shape[1], seed, scale)
    table[known] = vectors
    table[PADDING] = 0
    return table, float(known[UNKNOWN:].mean())
