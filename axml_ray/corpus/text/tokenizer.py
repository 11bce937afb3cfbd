"""Converts texts to word ids, with one vocabulary file for training and serving.

- Texts are composed first (Unicode's NFC). Words are lower-cased runs of letters, digits, underscores and marks of any
  script; all other characters are dropped. `/SEP/`, between title and body, is a word that keeps its case.
- Invisible characters within a word do not divide it (Unicode's Annex 29), nor do a soft hyphen and a line's end.
- With `segmentation: characters`, each character of a script without blanks between words is a word, with its marks.
- With `subwords`, a word outside the vocabulary is written as words of the vocabulary, by WordPiece's longest-match
  search (Wu et al. 2016, arXiv:1609.08144): "gestaltungszugewinn" becomes "gestaltungs" and "zugewinn". There is no
  continuation prefix (`##`), so the second part of a compound is the same word as elsewhere.
- These rules are stored in the vocabulary file, so a file of before a rule existed is read as it was written.
- Id 0 is padding, id 1 any unknown word. The others are ranked by document frequency, then by spelling.
"""

import re
from collections.abc import Sequence
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.text.composition import composed

PADDING, UNKNOWN = 0, 1
SEPARATOR = "/SEP/"
LONGEST_WORD = 100
"""Maximum number of characters of a word that is split into subwords; the time grows quadratically with it."""
MOST_MARKS = 32
"""Characters before a mark that are composed with it; composing takes quadratic time in a sequence of marks."""
_SPECIAL = ("<padding>", "<unknown>")
_WORD = r"[\p{L}\p{N}_]\w*"
UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
"""Pattern of the characters of scripts that are written without blanks between words."""
_UNSPACED_CHARACTER = rf"{UNSPACED}\p{{M}}*"

_INVISIBLE = "\u00ad\u061c\u180e\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
"""Soft hyphens, joiners, marks of direction and order; not the zero-width space, which stands between words."""
_INVISIBLE_IN_WORDS = rf"\u00ad\s+(?=\p{{Ll}})|[{_INVISIBLE}]"
_BREAKS = r"\s,.;:!?()、。，；：！？（）"
_LETTERS = (
    "\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0002a6df"  # Hiragana, Katakana, Han
    "\u0e01-\u0e30\u0e40-\u0e45\u0e81\u0e82\u0e84\u0e86-\u0e8a\u0e8c-\u0ea3\u0ea5\u0ea7-\u0eb0"  # Thai, Lao
    "\u1000-\u102a\u1780-\u17b3"  # Burmese, Khmer
)
"""Characters that `UNSPACED` matches, though not all of them, because Python's patterns know no scripts."""
_RUNS = {"words": rf"\w[^{_BREAKS}]*", "characters": rf"\w[^{_BREAKS}{_LETTERS}]*"}
_LINES = {segmentation: rf"{run}(?:(?<=\xad)\s+{run})*" for segmentation, run in _RUNS.items()}
_PARTS = {"words": re.compile(_LINES["words"]), "characters": re.compile(rf"[{_LETTERS}]|{_LINES['characters']}")}
"""Pattern of parts of a text, each of which is at least one word, by segmentation. No word is in two of them."""
LONG_TEXT = 16
"""Number of characters per word that is read from which on a text is cut before it is split into words."""
BATCH_CHARACTERS = 2 << 20
"""Approximate number of characters that are encoded at a time: the library needs a hundred bytes for each word."""

_VISIBLE = normalizers.Sequence([normalizers.Replace(Regex(_INVISIBLE_IN_WORDS), ""), normalizers.NFC()])

Segmentation = Literal["words", "characters"]


class Tokenizer:
    """Splits texts into words and maps them to ids."""

    def __init__(self, fast: FastTokenizer):
        self._fast = fast

    @classmethod
    def from_words(
        cls, ranked: Sequence[str], segmentation: Segmentation = "words", *, subwords: bool = False
    ) -> "Tokenizer":
        """Build a tokenizer whose vocabulary is the two special words and `ranked`, distinct words, in this order.

        With `subwords`, a word outside the vocabulary is written as words of the vocabulary.
        """
        vocabulary = {word: i for i, word in enumerate((*_SPECIAL, *ranked))}
        options = {"continuing_subword_prefix": "", "max_input_chars_per_word": LONGEST_WORD} if subwords else {}
        model = models.WordPiece if subwords else models.WordLevel
        fast = FastTokenizer(model(vocabulary, unk_token=_SPECIAL[UNKNOWN], **options))
        fast.normalizer = normalizers.Sequence([_VISIBLE, normalizers.Lowercase()])
        word_splitter = pre_tokenizers.Split(Regex(_WORD), behavior="removed", invert=True)
        if segmentation == "characters":
            character_splitter = pre_tokenizers.Split(Regex(_UNSPACED_CHARACTER), behavior="isolated")
            fast.pre_tokenizer = pre_tokenizers.Sequence([word_splitter, character_splitter])
        else:
            fast.pre_tokenizer = word_splitter
        if SEPARATOR in vocabulary:
            fast.add_tokens([AddedToken(SEPARATOR, normalized=False)])
        return cls(fast)

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Load a tokenizer that `save` wrote."""
        return cls(FastTokenizer.from_file(str(path)))

    def save(self, path: Path) -> None:
        """Write the vocabulary and the rules as one JSON file."""
        self._fast.save(str(path), pretty=False)

    @property
    def segmentation(self) -> Segmentation:
        """The rule by which scripts without blanks are split."""
        return "characters" if isinstance(self._fast.pre_tokenizer, pre_tokenizers.Sequence) else "words"

    def __len__(self) -> int:
        return self._fast.get_vocab_size()

    @property
    def words(self) -> list[str]:
        """The vocabulary, in the order of its ids."""
        vocabulary = self._fast.get_vocab()
        return sorted(vocabulary, key=vocabulary.__getitem__)

    def encode(self, texts: Sequence[str], max_tokens: int) -> Ragged:
        """Return the first `max_tokens` word ids of each text, int32; an empty text is one unknown word."""
        rows: list[list[int]] = []
        segmentation = self.segmentation
        batch: list[str] = []
        size = 0
        for number, text in enumerate(texts, 1):
            batch.append(beginning(text, max_tokens, segmentation))
            size += len(batch[-1])
            if size >= BATCH_CHARACTERS or number == len(texts):
                encoded = self._fast.encode_batch_fast(batch, add_special_tokens=False)
                rows += [encoding.ids[:max_tokens] or [UNKNOWN] for encoding in encoded]
                batch, size = [], 0
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        values = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
        return Ragged(values, np.concatenate([[0], np.cumsum(lengths)]))

    def encode_words(self, words: Sequence[str]) -> Ragged:
        """Return the ids that `encode` writes for each of some words of `split_words`, int32, at least one per word."""
        model, separator = self._fast.model, SEPARATOR
        if self._fast.token_to_id(SEPARATOR) is None:
            separator = SEPARATOR.strip("/").lower()  # `encode` then splits it like any other text
        written = (separator if word == SEPARATOR else word for word in words)
        return Ragged.from_rows([token.id for token in model.tokenize(word)] for word in written)

    def encode_with_spans(self, text: str, max_tokens: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """Return the word ids of one text, int32, as `encode` does, and the span of each word.

        A span is the position of the word's first character and the position after its last one. If one character
        becomes two words (a lower-cased İ), the second has an empty span. A text without a word, `/SEP/` apart, is one
        unknown word without a span.
        """
        if not self.has_words(text):
            return np.array([UNKNOWN], dtype=np.int32), []
        encoding = self._fast.encode(beginning(text, max_tokens, self.segmentation), add_special_tokens=False)
        spans: list[tuple[int, int]] = []
        for start, end in encoding.offsets[:max_tokens]:
            previous_end = spans[-1][1] if spans else 0
            end = max(end, previous_end)
            # `tokenizers` leaves out the last marks of a word that it composed: characters that add none to the word.
            while start < end < len(text):
                tail = text[max(start, end - MOST_MARKS) : end + 1]
                if len(composed(tail[:-1])) < len(composed(tail)):
                    break
                end += 1
            spans.append((max(start, previous_end), end))
        return np.array(encoding.ids[:max_tokens], dtype=np.int32), spans

    def lower(self, letters: Sequence[str]) -> list[str]:
        """Return single characters in lower case; one may become two, and an invisible one none."""
        return [self._fast.normalizer.normalize_str(letter) for letter in letters]

    def split(self, text: str) -> list[str]:
        """Return the words of a text without separators, whether or not they are in the vocabulary."""
        normal = self._fast.normalizer.normalize_str(text)
        return [word for word, _ in self._fast.pre_tokenizer.pre_tokenize_str(normal)]

    def has_words(self, text: str) -> bool:
        """Return whether a text contains a word other than `/SEP/`; `encode` returns an id even if it does not."""
        text = text.replace(SEPARATOR, " ")
        # The search is fast because it ends at the first letter; `split` knows newer Unicode letters than Python does.
        return bool(re.search(r"\w", text) or self.split(text))


def without_invisible(text: str) -> str:
    """Return a text composed and without the invisible characters that may stand within its words."""
    return str(_VISIBLE.normalize_str(text))


def beginning(text: str, max_tokens: int, segmentation: Segmentation = "words") -> str:
    """Return a beginning of `text` with its first `max_tokens` words and perhaps more; a short text is returned whole.

    Texts may be megabytes long, of which only these words are read. With `segmentation: words`, the beginning is also
    long enough for a tokenizer that splits characters.
    """
    if len(text) <= LONG_TEXT * max_tokens:
        return text
    following = next(islice(_PARTS[segmentation].finditer(text), max_tokens, None), None)
    return text if following is None else text[: following.start()]


@cache
def splitter(segmentation: Segmentation) -> Tokenizer:
    """Return a tokenizer without a vocabulary, which can only split texts."""
    return Tokenizer.from_words([], segmentation)


def split_words(text: str, segmentation: Segmentation = "words") -> list[str]:
    """Return the words of a text, including separators, whether or not they are in a vocabulary."""
    words: list[str] = []
    for part in text.split(SEPARATOR):
        words.extend(splitter(segmentation).split(part))
        words.append(SEPARATOR)
    return words[:-1]
