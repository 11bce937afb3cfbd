"""Reads published word vectors as a stream, so that only the vectors of the vocabulary's words are in memory.

| format | recognised by |
|---|---|
| `.npy`, with the words in `vocab.txt` in the same directory | the suffix |
| word2vec text, fastText `.vec`: `<words> <dimension>`, then lines of word and values | the first line |
| GloVe: lines of word and values | anything else |

All but the first may be compressed; see `text_streams`.
"""

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.readers.text_streams import open_decompressed
from axml_ray.corpus.text.composition import composed

_BUFFER_BYTES = 1 << 20
LONGEST_LINE = 1 << 20


def dimension_of(path: Path) -> int:
    """Return the dimension of the vectors in a file, after checking that it begins like a file of word vectors.

    Raises:
        SettingsError: the file is missing, or does not contain word vectors.
    """
    if path.suffix == ".npy":
        return int(open_array(path)[0].shape[1])
    with _opened(path) as file:
        return _header(path, file)[1]


def load_known_vectors(path: Path, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Load the vectors of those of `words` that are in a file.

    If a word occurs repeatedly, its first vector is taken, except that `.npy` files take the last one.

    Returns:
        bool [words], whether each word is in the file; float32 [words in the file, dimension], their vectors.

    Raises:
        SettingsError: the file is missing, invalid, or truncated.
    """
    if path.suffix == ".npy":
        table, file_words = open_array(path)
        row_of = {composed(word): row for row, word in enumerate(file_words)}
        rows = np.array([row_of.get(word, -1) for word in words], dtype=np.int64)
        return rows >= 0, np.asarray(table[rows[rows >= 0]], dtype=np.float32)
    id_of = {word.encode(): i for i, word in enumerate(words)}
    with _opened(path) as file:
        try:
            count, dimension = _header(path, file)
            vectors = np.empty((len(words), dimension), dtype=np.float32)
            known = np.zeros(len(words), dtype=bool)
            for word, values, line in _read_lines(path, file, count, dimension):
                word_id = id_of.get(word)
                if word_id is None and not word.isascii():
                    word_id = id_of.get(composed(word.decode(errors="ignore")).encode())
                if word_id is not None and not known[word_id]:
                    # Only here, so that the vectors of words that are not needed cost no time.
                    try:
                        vectors[word_id] = np.array(values.split(b" "), np.float32)
                    except ValueError:
                        raise _wrong(path, f"line {line}: expected {dimension} numbers after the word") from None
                    known[word_id] = True
        except (EOFError, OSError) as error:
            raise _wrong(path, f"truncated or corrupt: {error}") from None
    return known, vectors[known]


def open_array(path: Path) -> tuple[np.ndarray, list[str]]:
    """Open an `.npy` file, memory-mapped, and read the word of each row from `vocab.txt`.

    Raises:
        SettingsError: a file is missing or invalid, or the two have different numbers of words.
    """
    vocabulary = path.with_name("vocab.txt")
    try:
        table = np.lib.format.open_memmap(path, mode="r")
        # Not splitlines(), which also splits at Unicode separators that are words of published vocabularies.
        words = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise _wrong(path, f"{error}; expected an .npy file and vocab.txt") from None
    if table.dtype.kind != "f" or table.ndim != 2:
        raise _wrong(path, "expected an .npy array of floats with two dimensions")
    if len(table) != len(words):
        raise SettingsError(
            f"corpus.word_vectors: {path} has shape {table.shape}, {vocabulary} has {len(words)} lines; "
            "expected one row a line"
        )
    return table, words


def _wrong(path: Path, reason: str) -> SettingsError:
    return SettingsError(f"corpus.word_vectors: {path}: {reason}")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, decompressed; errors in the block become a SettingsError."""
    try:
        with open_decompressed(path) as file:
            content = io.BufferedReader(file, _BUFFER_BYTES)  # type: ignore[type-var]
            if content.peek(3)[:3] == codecs.BOM_UTF8:
                content.read(3)
            yield content
    except SettingsError:
        raise
    except (EOFError, OSError, ValueError) as error:
        raise _wrong(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _header(path: Path, file: BinaryIO) -> tuple[int | None, int]:
    """Read the number of words (None if not given) and the dimension; afterwards `file` is at the first word."""
    ahead = file.peek(_BUFFER_BYTES)[:_BUFFER_BYTES]  # type: ignore[attr-defined]
    first, _, rest = ahead.partition(b"\n")
    cells = first.split()
    if len(cells) == 2 and all(cell.isdigit() for cell in cells):
        count, dimension = map(int, cells)
        if dimension < 1:
            raise _wrong(path, "its first line gives a dimension of 0")
        file.readline(LONGEST_LINE)
        line = rest.partition(b"\n")[0].rstrip()
        if rest and not (len(line.split(b" ")) > dimension and _is_number(line.rsplit(b" ", 1)[-1])):
            raise _wrong(path, f"line 2: expected a word and {dimension} values; convert binary word2vec to text")
        return count, dimension
    # A word may contain blanks, so the dimension is the number of numbers at the end of the first line.
    cells = first.rstrip().split(b" ")
    dimension = 0
    for cell in reversed(cells[1:]):
        if not _is_number(cell):
            break
        dimension += 1
    if dimension < 2:
        raise _wrong(path, "expected lines of a word and its values (GloVe), or a first line of two numbers (word2vec)")
    return None, dimension


def _is_number(cell: bytes) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_lines(path: Path, file: BinaryIO, count: int | None, dimension: int) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield the words, their values as written, and the numbers of their lines."""
    first = 1 if count is None else 2
    lines = 0
    while content := file.readline(LONGEST_LINE):
        number = first + lines
        content = content.rstrip()
        if not content:
            continue
        lines += 1
        parts = content.rsplit(b" ", dimension)
        if len(parts) != dimension + 1:
            raise _wrong(path, f"line {number}: expected a word and {dimension} values, found {len(parts) - 1} values")
        if not _is_number(parts[1]) or (lines == 1 and b" " in parts[0] and count is not None):
            raise _wrong(path, f"line {number}: expected {dimension} numbers after the word")
        yield parts[0], content[len(parts[0]) + 1 :], number
    if count is not None and lines != count:
        raise _wrong(path, f"has {lines} words, its first line says {count}; it is truncated")
