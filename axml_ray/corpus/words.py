"""Many texts to words at once: what `Tokenizer` does to one text, done to a block of them by table.

Preparing a corpus splits each text once, into words that its block numbers; only later is it known which words the
vocabulary keeps. A block's characters are one array, so a text costs a few array operations and no Python object.

- Tables are asked from the tokenizer itself, character by character as they turn up: how it writes a character in
  lower case, whether a word may begin with it, whether a word may go on with it. So both always agree.
- A block of ASCII is worked on as bytes, any other as code points.
- The separator is one character here, NUL, which no text holds (`storable` sees to that).
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from axml_ray.corpus.tokenizer import SEPARATOR, Segmentation, Tokenizer, split_words, splitter

CHUNK_BYTES = 1 << 20
_CODE_POINTS = 0x110000
_EXPANDED = ("İ", "i̇")  # the one character whose lower case is two
_MARK = b"\1"


@dataclass(frozen=True, slots=True)
class Words:
    """The words of some texts.

    Attributes:
        words: string [V], distinct, in order of first occurrence.
        ids: int32 [all words], the words of all texts as rows of `words`.
        lengths: int64 [texts], words of each text, cut.
        whole: int64 [texts], words of each text before it was cut.
    """

    words: pa.Array
    ids: np.ndarray
    lengths: np.ndarray
    whole: np.ndarray


def split_texts(texts: pa.Array, max_tokens: int, segmentation: Segmentation = "words") -> Words:
    """The words of `texts` (string [texts], without nulls or NULs), each cut at `max_tokens` words."""
    chunks, lengths, whole = [], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for part in _chunks(texts):
        if segmentation == "words":
            found, counts = _split_words(part)
        else:
            found, counts = _split_slowly(part, segmentation)
        kept = np.minimum(counts, max_tokens)
        if counts.max(initial=0) > max_tokens:
            starts = np.cumsum(counts) - counts
            place = np.arange(len(found)) - np.repeat(starts, counts)
            found = found.filter(pa.array(place < max_tokens))
        chunks.append(found)
        lengths.append(kept)
        whole.append(counts)
    encoded = pa.chunked_array(chunks, pa.string()).dictionary_encode()
    words = encoded.chunk(encoded.num_chunks - 1).dictionary if encoded.num_chunks else pa.array([], pa.string())
    separator = pc.index(words, _MARK.decode()).as_py()
    if separator >= 0:
        words = pa.concat_arrays([words[:separator], pa.array([SEPARATOR]), words[separator + 1 :]])
    ids = [chunk.indices.to_numpy() for chunk in encoded.chunks]
    return Words(words, np.concatenate([np.empty(0, np.int32), *ids]), np.concatenate(lengths), np.concatenate(whole))


def _chunks(texts: pa.Array) -> list[pa.Array]:
    """Consecutive parts of about `CHUNK_BYTES`: what stays in the processor's cache is split fastest."""
    offsets = _offsets(texts)
    cuts = np.searchsorted(offsets, np.arange(offsets[0], offsets[-1], CHUNK_BYTES)[1:])
    bounds = np.unique(np.concatenate([[0], cuts, [len(texts)]]))
    return [texts[begin:end] for begin, end in pairwise(bounds)]


def _offsets(texts: pa.Array) -> np.ndarray:
    buffer = texts.buffers()[1]
    if buffer is None:
        return np.zeros(1, np.int32)
    return np.frombuffer(buffer, np.int32, len(texts) + 1, texts.offset * 4)


def _data(texts: pa.Array) -> np.ndarray:
    buffer, offsets = texts.buffers()[2], _offsets(texts)
    if buffer is None or offsets[-1] == offsets[0]:
        return np.empty(0, np.uint8)
    return np.frombuffer(buffer, np.uint8)[offsets[0] : offsets[-1]]


def _split_words(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
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
    letters = _ascii()[data]  # the letter in lower case, 0 between words
    inside = letters != 0
    first = inside.copy()
    first[1:] &= ~inside[:-1]
    texts = begins[:-1][begins[:-1] < len(data)]
    first[texts] = inside[texts]
    starts = np.flatnonzero(first)
    # Where the letters of word i end among all letters is where those of word i + 1 begin.
    offsets = _places(inside, starts)
    counts = np.diff(np.searchsorted(starts, begins))
    return _strings(offsets, letters[inside]), counts


def _split_any(data: np.ndarray, begins: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    points = np.frombuffer(data.tobytes().decode("utf-8").encode("utf-32-le"), "<u4")
    places = np.concatenate([[0], np.cumsum((data & 0xC0) != 0x80)])
    begins = places[begins]
    table = _table()
    table.learn(points)
    letters = table.lower[points]
    goes_on = table.goes_on[letters]
    goes_on[begins[:-1][begins[:-1] < len(points)]] = False
    # A piece is a character that no word goes on with and all after it that one does; the first letter that may
    # begin a word begins that of its piece.
    piece = np.cumsum(~goes_on)
    may_begin = np.flatnonzero(table.begins[letters])
    pieces = piece[may_begin]
    starts = may_begin[np.concatenate([[True], pieces[1:] != pieces[:-1]])[: len(pieces)]]
    ends = np.append(np.flatnonzero(~goes_on), len(points))
    ends = ends[np.searchsorted(ends, starts, side="right")]
    change = np.zeros(len(points) + 1, np.int8)
    change[starts] += 1
    change[ends] -= 1
    inside = np.cumsum(change[:-1], dtype=np.int8).astype(bool)
    kept = letters[inside]
    sizes = 1 + (kept >= 0x80).astype(np.int64) + (kept >= 0x800) + (kept >= 0x10000)
    offsets = np.concatenate([[0], np.cumsum(sizes)])[_places(inside, starts)]
    content = kept.astype("<u4").tobytes().decode("utf-32-le").encode("utf-8")
    counts = np.diff(np.searchsorted(starts, begins))
    return _strings(offsets, np.frombuffer(content, np.uint8)), counts


def _places(inside: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Where each word begins among the letters of all words, and where the last one ends."""
    if not len(starts):
        return np.zeros(1, np.int64)
    sizes = np.add.reduceat(inside, starts, dtype=np.int64)
    return np.concatenate([[0], np.cumsum(sizes)])


def _strings(offsets: np.ndarray, letters: np.ndarray) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(letters))]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def _split_slowly(texts: pa.Array, segmentation: Segmentation) -> tuple[pa.Array, np.ndarray]:
    rows = [split_words(text, segmentation) for text in texts.to_pylist()]
    words = [_MARK.decode() if word == SEPARATOR else word for row in rows for word in row]
    return pa.array(words, pa.string()), np.array([len(row) for row in rows], dtype=np.int64)


@cache
def _ascii() -> np.ndarray:
    table = _table()
    table.learn(np.arange(128, dtype=np.uint32))
    letters = np.where(table.begins[:128][table.lower[:128]], table.lower[:128], 0)
    return np.concatenate([letters, np.zeros(128)]).astype(np.uint8)


class _Table:
    """What the tokenizer does to single characters."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._known = np.zeros(_CODE_POINTS, dtype=bool)
        self.lower = np.arange(_CODE_POINTS, dtype=np.uint32)
        self.begins = np.zeros(_CODE_POINTS, dtype=bool)
        self.goes_on = np.zeros(_CODE_POINTS, dtype=bool)
        # NUL stands for the separator, and is written as a letter that no word has.
        self._known[[0, 1]] = True
        self.lower[[0, 1]] = 1, ord(" ")
        self.begins[1] = True

    def learn(self, points: np.ndarray) -> None:
        """Ask for those of `points` (uint32 [n]) that aren't known yet."""
        seen = np.zeros(_CODE_POINTS, dtype=bool)
        seen[points] = True
        new = np.flatnonzero(seen & ~self._known)
        if not len(new):
            return
        lowered = self._tokenizer.lower([chr(point) for point in new])
        self.lower[new] = [
            ord(letter) if len(letter) == 1 else point for letter, point in zip(lowered, new, strict=True)
        ]
        letters = np.unique(self.lower[new])
        self.begins[letters] = [words == [chr(p)] for p, words in zip(letters, self._words("", letters), strict=True)]
        self.goes_on[letters] = [
            words == ["a" + chr(p)] for p, words in zip(letters, self._words("a", letters), strict=True)
        ]
        self._known[new] = True

    def _words(self, before: str, letters: np.ndarray) -> list[list[str]]:
        return [self._tokenizer.split(before + chr(point)) for point in letters]


@cache
def _table() -> _Table:
    return _Table(splitter("words"))
