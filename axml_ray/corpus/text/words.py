"""Splits a block of texts into words at once: a fast version of `tokenizer.split_words`, with the same result.

Preparation splits each text once and numbers the words per block, because the vocabulary is only known after all blocks
were counted. The characters of a block are one array, so that splitting takes a few array operations and creates no
Python object per word.

- The character table is filled from the tokenizer itself: the lower case of a character, whether a word can begin with
  it, and whether a word can continue with it. So both agree by construction.
- ASCII blocks are processed as bytes, all others as code points.
- Within this module, the separator is one character, NUL, which no text contains (see `records.storable`).
- Texts are composed already (`composition.py`), so that each character can be looked up by itself.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from axml_ray.corpus.text.tokenizer import (
    LONG_TEXT,
    SEPARATOR,
    Segmentation,
    Tokenizer,
    beginning,
    split_words,
    splitter,
)

CHUNK_BYTES = 1 << 20
_CODE_POINTS = 0x110000
_EXPANDED = ("İ", "i̇")  # the only character whose lower case is two characters
_SEPARATOR_LETTER = "\1"
"""The letter as which the separator is written among the letters of words."""


@dataclass(frozen=True, slots=True)
class SplitTexts:
    """Texts as numbered words.

    Attributes:
        vocabulary: string [V], distinct words, in the order of their first occurrence.
        ids: int32 [tokens], the words of all texts as positions in `vocabulary`.
        lengths: int64 [texts], number of words of each text after it was cut.
        is_cut: bool [texts], whether each text has more words.
    """

    vocabulary: pa.Array
    ids: np.ndarray
    lengths: np.ndarray
    is_cut: np.ndarray


def split_texts(texts: pa.Array, max_tokens: int, segmentation: Segmentation = "words") -> SplitTexts:
    """Split `texts` (string [texts], composed, without nulls or NULs) into words, at most `max_tokens` per text."""
    chunks, lengths, is_cut = [], [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
    # With one word more, to know which texts are cut.
    for chunk in _chunks(_beginnings(texts, max_tokens + 1, segmentation)):
        words, counts = _split_words(chunk) if segmentation == "words" else _split_one_by_one(chunk, segmentation)
        if counts.max(initial=0) > max_tokens:
            starts = np.cumsum(counts) - counts
            position = np.arange(len(words)) - np.repeat(starts, counts)
            words = words.filter(pa.array(position < max_tokens))
        chunks.append(words)
        lengths.append(np.minimum(counts, max_tokens))
        is_cut.append(counts > max_tokens)
    encoded = pa.chunked_array(chunks, pa.string()).dictionary_encode()
    # The dictionary of a chunk extends those of the chunks before.
    vocabulary = encoded.chunk(encoded.num_chunks - 1).dictionary if encoded.num_chunks else pa.array([], pa.string())
    separator = pc.index(vocabulary, _SEPARATOR_LETTER).as_py()
    if separator >= 0:
        vocabulary = pa.concat_arrays([vocabulary[:separator], pa.array([SEPARATOR]), vocabulary[separator + 1 :]])
    ids = np.concatenate([np.empty(0, np.int32), *(chunk.indices.to_numpy() for chunk in encoded.chunks)])
    return SplitTexts(vocabulary, ids, np.concatenate(lengths), np.concatenate(is_cut))


def _beginnings(texts: pa.Array, max_tokens: int, segmentation: Segmentation) -> pa.Array:
    """Return the texts, of which long ones are cut after their first `max_tokens` words or later."""
    if np.diff(_offsets(texts)).max(initial=0) <= LONG_TEXT * max_tokens:
        return texts
    return pa.array([beginning(text, max_tokens, segmentation) for text in texts.to_pylist()], pa.string())


def _chunks(texts: pa.Array) -> list[pa.Array]:
    """Cut texts into consecutive parts of about `CHUNK_BYTES`, so that a part fits into the processor's cache."""
    offsets = _offsets(texts)
    cuts = np.searchsorted(offsets, np.arange(offsets[0], offsets[-1], CHUNK_BYTES)[1:])
    bounds = np.unique(np.concatenate([[0], cuts, [len(texts)]]))
    return [texts[begin:end] for begin, end in pairwise(bounds)]


def _offsets(texts: pa.Array) -> np.ndarray:
    """Return the offsets of an Arrow string array, int32 [texts + 1], without a copy."""
    buffer = texts.buffers()[1]
    if buffer is None:
        return np.zeros(1, np.int32)
    return np.frombuffer(buffer, np.int32, len(texts) + 1, texts.offset * 4)


def _data(texts: pa.Array) -> np.ndarray:
    """Return the UTF-8 bytes of an Arrow string array, uint8 [bytes], without a copy."""
    buffer, offsets = texts.buffers()[2], _offsets(texts)
    if buffer is None or offsets[-1] == offsets[0]:
        return np.empty(0, np.uint8)
    return np.frombuffer(buffer, np.uint8)[offsets[0] : offsets[-1]]


def _split_words(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the words of all texts in a row, and the number of words of each text, int64 [texts]."""
    if SEPARATOR.encode() in _data(texts).tobytes():
        texts = pc.replace_substring(texts, SEPARATOR, " \0 ")
    data = _data(texts)
    begins = (_offsets(texts) - _offsets(texts)[0]).astype(np.int64)
    if data.size == 0 or data.max() < 128:
        return _split_ascii(data, begins)
    if b"\xc4\xb0" in data.tobytes():
        texts = pc.replace_substring(texts, *_EXPANDED)
        data, begins = _data(texts), (_offsets(texts) - _offsets(texts)[0]).astype(np.int64)
    return _split_any(data, begins)


def _split_ascii(data: np.ndarray, begins: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    letters = _ascii_letters()[data]  # lower-case letters, 0 between words
    inside = letters != 0
    first = inside.copy()
    first[1:] &= ~inside[:-1]
    texts = begins[:-1][begins[:-1] < len(data)]
    first[texts] = inside[texts]
    starts = np.flatnonzero(first)
    offsets = _word_offsets(inside, starts)
    counts = np.diff(np.searchsorted(starts, begins))
    return _strings(offsets, letters[inside]), counts


def _split_any(data: np.ndarray, begins: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    points = np.frombuffer(data.tobytes().decode("utf-8").encode("utf-32-le"), "<u4")
    # Every byte of UTF-8 but a continuation byte (10xxxxxx) begins a code point.
    point_of_byte = np.concatenate([[0], np.cumsum((data & 0xC0) != 0x80)])
    begins = point_of_byte[begins]
    table = _table()
    table.learn(points)
    letters = table.lower[points]
    continues = table.continues[letters]
    continues[begins[:-1][begins[:-1] < len(points)]] = False
    # A run is a character with which no word can continue, and the characters after it with which one can. A word
    # extends from the first character of a run that can begin a word to the end of the run.
    run = np.cumsum(~continues)
    can_begin = np.flatnonzero(table.begins[letters])
    runs = run[can_begin]
    starts = can_begin[np.concatenate([[True], runs[1:] != runs[:-1]])[: len(runs)]]
    ends = np.append(np.flatnonzero(~continues), len(points))
    ends = ends[np.searchsorted(ends, starts, side="right")]
    change = np.zeros(len(points) + 1, np.int8)
    change[starts] += 1
    change[ends] -= 1
    inside = np.cumsum(change[:-1], dtype=np.int8).astype(bool)
    kept = letters[inside]
    sizes = 1 + (kept >= 0x80).astype(np.int64) + (kept >= 0x800) + (kept >= 0x10000)  # bytes in UTF-8
    offsets = np.concatenate([[0], np.cumsum(sizes)])[_word_offsets(inside, starts)]
    content = kept.astype("<u4").tobytes().decode("utf-32-le").encode("utf-8")
    counts = np.diff(np.searchsorted(starts, begins))
    return _strings(offsets, np.frombuffer(content, np.uint8)), counts


def _word_offsets(inside: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the position of each word among the letters of all words, and their number, int64 [words + 1].

    `inside` (bool [characters]) is whether a character belongs to a word; `starts` are the first ones of words.
    """
    if not len(starts):
        return np.zeros(1, np.int64)
    sizes = np.add.reduceat(inside, starts, dtype=np.int64)
    return np.concatenate([[0], np.cumsum(sizes)])


def _strings(offsets: np.ndarray, letters: np.ndarray) -> pa.Array:
    """Build an Arrow string array from its offsets and UTF-8 bytes."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(letters))]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def _split_one_by_one(texts: pa.Array, segmentation: Segmentation) -> tuple[pa.Array, np.ndarray]:
    """Return the same as `_split_words`, text by text."""
    rows = [split_words(text, segmentation) for text in texts.to_pylist()]
    words = [_SEPARATOR_LETTER if word == SEPARATOR else word for row in rows for word in row]
    return pa.array(words, pa.string()), np.array([len(row) for row in rows], dtype=np.int64)


@cache
def _ascii_letters() -> np.ndarray:
    """Return for each byte its lower-case letter if a word can contain it, else 0; uint8 [256]."""
    table = _table()
    table.learn(np.arange(128, dtype=np.uint32))
    letters = np.where(table.begins[:128][table.lower[:128]], table.lower[:128], 0)
    return np.concatenate([letters, np.zeros(128)]).astype(np.uint8)


class _CharacterTable:
    """A table of the tokenizer's rules for single characters, filled when a character first occurs.

    Attributes:
        lower: uint32 [code points], the character in lower case.
        begins: bool [code points], whether a word can begin with the character.
        continues: bool [code points], whether a word can continue with the character.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._known = np.zeros(_CODE_POINTS, dtype=bool)
        self.lower = np.arange(_CODE_POINTS, dtype=np.uint32)
        self.begins = np.zeros(_CODE_POINTS, dtype=bool)
        self.continues = np.zeros(_CODE_POINTS, dtype=bool)
        # NUL is the separator. It is written as `_SEPARATOR_LETTER`, which alone forms a word.
        self._known[[0, 1]] = True
        self.lower[[0, 1]] = 1, ord(" ")
        self.begins[1] = True

    def learn(self, points: np.ndarray) -> None:
        """Learn those of `points` (uint32 [n]) that have not occurred before."""
        occurs = np.zeros(_CODE_POINTS, dtype=bool)
        occurs[points] = True
        new = np.flatnonzero(occurs & ~self._known)
        if not len(new):
            return
        lowered = self._tokenizer.lower([chr(point) for point in new])
        self.lower[new] = [
            ord(letter) if len(letter) == 1 else point for letter, point in zip(lowered, new, strict=True)
        ]
        letters = np.unique(self.lower[new])
        self.begins[letters] = [words == [chr(p)] for p, words in zip(letters, self._words("", letters), strict=True)]
        # After "_", because a mark after a letter is composed with it.
        self.continues[letters] = [
            words == ["_" + chr(p)] for p, words in zip(letters, self._words("_", letters), strict=True)
        ]
        self._known[new] = True

    def _words(self, before: str, letters: np.ndarray) -> list[list[str]]:
        """Return the words into which the tokenizer splits `before` followed by each of the letters."""
        return [self._tokenizer.split(before + chr(point)) for point in letters]


@cache
def _table() -> _CharacterTable:
    return _CharacterTable(splitter("words"))
