"""Splits a block of texts into words at once: a fast version of `tokenizer.split_words`, with the same result.

Preparation splits each text once and numbers the words per block, because the vocabulary is only known after all blocks
were counted. The characters of a block are one array, so that splitting takes a few array operations and creates no
Python object per word. The character table is filled from the tokenizer itself, so both agree by construction.

Within this module, the separator is one character, NUL, which no text contains (see `values.storable`). Texts are
composed already (`composition.py`), so that each character can be looked up by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from axml_ray.corpus.text.tokenizer import SEPARATOR, Segmentation, beginning, split_words, splitter, without_invisible

CHUNK_CHARACTERS = 1 << 20
"""Characters that are split at a time, so that they fit into the processor's cache."""
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


def split_texts(texts: Sequence[str], max_tokens: int, segmentation: Segmentation = "words") -> SplitTexts:
    """Split texts, composed and without NULs, into words, at most `max_tokens` per text."""
    chunks, lengths, is_cut = [], [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
    # With one word more, to know which texts are cut.
    texts = [beginning(text, max_tokens + 1, segmentation) for text in texts]
    ends = np.cumsum(list(map(len, texts)))
    cuts = np.searchsorted(ends, np.arange(0, ends[-1] if len(ends) else 0, CHUNK_CHARACTERS)[1:])
    for begin, end in pairwise(np.unique([0, *cuts, len(texts)])):
        words, counts = (_split_words if segmentation == "words" else _split_one_by_one)(texts[begin:end])
        if counts.max(initial=0) > max_tokens:
            position = np.arange(len(words)) - np.repeat(np.cumsum(counts) - counts, counts)
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


def _split_words(texts: list[str]) -> tuple[pa.Array, np.ndarray]:
    """Return the words of all texts in a row, and the number of words of each text, int64 [texts]."""
    texts = [text.replace(SEPARATOR, " \0 ") if SEPARATOR in text else text for text in texts]
    joined = "\n".join(texts)  # no word has a line feed
    table = _table()
    if joined.isascii():
        points: np.ndarray = np.frombuffer(joined.encode(), np.uint8)
        table.learn(points)
        letters = table.lower[:128].astype(np.uint8)[points]
        inside = table.begins[letters]  # a word can continue with the characters with which it can begin
        first = inside.copy()
        first[1:] &= ~inside[:-1]
    else:
        points = np.frombuffer(joined.encode("utf-32-le"), "<u4")
        table.learn(points)
        if len(invisible := np.flatnonzero(table.is_invisible[points])):
            ends = np.cumsum([len(text) + 1 for text in texts])
            for number in np.unique(np.searchsorted(ends, invisible, side="right")):
                texts[number] = without_invisible(texts[number])
        if _EXPANDED[0] in joined:  # after what is invisible, as in `split_words`
            texts = [text.replace(*_EXPANDED) for text in texts]
        if (changed := "\n".join(texts)) != joined:
            points = np.frombuffer(changed.encode("utf-32-le"), "<u4")
            table.learn(points)  # letters and marks that are neighbours now are composed
        letters = table.lower[points]
        continues = table.continues[letters]
        continues[:1] = False
        # A run is a character with which no word can continue, and the characters after it with which one can. A word
        # extends from the first character of a run that can begin a word to the end of the run.
        begun = np.cumsum(table.begins[letters])
        run_starts = np.flatnonzero(~continues)
        begun_before = begun[run_starts] - table.begins[letters[run_starts]]
        inside = begun > np.repeat(begun_before, np.diff(run_starts, append=len(points)))
        first = inside.copy()
        first[1:] &= ~(inside[:-1] & continues[1:])
    letters = letters[inside]
    offsets = np.append(np.flatnonzero(first[inside]), len(letters))
    content = letters.tobytes()
    if letters.dtype != np.uint8:
        sizes = 1 + (letters >= 0x80).astype(np.int64) + (letters >= 0x800) + (letters >= 0x10000)  # bytes in UTF-8
        offsets = np.concatenate([[0], np.cumsum(sizes)])[offsets]
        content = content.decode("utf-32-le").encode()
    words = pa.Array.from_buffers(
        pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content)]
    )
    begins = np.cumsum([0, *(len(text) + 1 for text in texts)])
    return words, np.diff(np.searchsorted(np.flatnonzero(first), begins))


def _split_one_by_one(texts: list[str]) -> tuple[pa.Array, np.ndarray]:
    """Return the same as `_split_words` with each character of scripts without blanks as a word."""
    rows = [split_words(text, "characters") for text in texts]
    words = [_SEPARATOR_LETTER if word == SEPARATOR else word for row in rows for word in row]
    return pa.array(words, pa.string()), np.array([len(row) for row in rows], dtype=np.int64)


@cache
def _table() -> "_CharacterTable":
    return _CharacterTable()


class _CharacterTable:
    """The tokenizer's rules for single characters, filled when a character first occurs.

    Attributes:
        lower: uint32 [code points], the character in lower case.
        begins: bool [code points], whether a word can begin with the character.
        continues: bool [code points], whether a word can continue with the character.
        is_invisible: bool [code points], whether the character is dropped before a text is split.
    """

    def __init__(self) -> None:
        self._known = np.zeros(_CODE_POINTS, dtype=bool)
        self.lower = np.arange(_CODE_POINTS, dtype=np.uint32)
        self.begins = np.zeros(_CODE_POINTS, dtype=bool)
        self.continues = np.zeros(_CODE_POINTS, dtype=bool)
        self.is_invisible = np.zeros(_CODE_POINTS, dtype=bool)
        # NUL is the separator. It is written as `_SEPARATOR_LETTER`, which alone forms a word.
        self._known[[0, 1]] = True
        self.lower[[0, 1]] = 1, ord(" ")
        self.begins[1] = True

    def learn(self, points: np.ndarray) -> None:
        """Learn those of `points` (unsigned [n]) that have not occurred before."""
        occurs = np.zeros(_CODE_POINTS, dtype=bool)
        occurs[points] = True
        new = np.flatnonzero(occurs & ~self._known)
        tokenizer = splitter("words")
        for point, lowered in zip(new, tokenizer.lower([chr(point) for point in new]), strict=True):
            self.is_invisible[point] = not lowered
            letter = lowered if len(lowered) == 1 else chr(point)
            self.lower[point] = ord(letter)
            self.begins[ord(letter)] = tokenizer.split(letter) == [letter]
            # After "_", because a mark after a letter is composed with it.
            self.continues[ord(letter)] = tokenizer.split(f"_{letter}") == [f"_{letter}"]
        self._known[new] = True
