"""Texts to word ids, by one vocabulary file that training and serving share.

- Words are lower-cased runs of letters, digits, underscores and marks in any script; what is between them is dropped,
  and with it every token without a letter, digit or underscore. `/SEP/`, between title and body, keeps its case.
- `segmentation: characters` also takes apart what is written without blanks (Chinese, Japanese, Thai, Lao, Khmer,
  Burmese): each of its characters, with the marks on it, is a word. The rule is in the vocabulary file, so serving
  needs no setting.
- With `subwords` a word outside the vocabulary is written in words of the vocabulary: the longest that it begins with,
  then the longest that its rest begins with, and so on; "gestaltungszugewinn" becomes "gestaltungs" and "zugewinn".
  This is WordPiece's search (Wu et al. 2016, arXiv:1609.08144) without a mark on what goes on, so that the rest of a
  compound is the word that stands alone elsewhere. Words of more than `LONGEST` characters stay unknown. This rule is
  in the file, too.
- Id 0 pads, id 1 is every unknown word; the others are ranked by document frequency, equals by spelling, so the
  vocabulary doesn't depend on how a corpus was sharded.
- Hugging Face `tokenizers` does the work, in Rust and on many texts at once.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from axml_ray.ragged import Ragged

PADDING, UNKNOWN = 0, 1
SEPARATOR = "/SEP/"
LONGEST = 100
"""Characters of a word, at most, that subwords are looked for in; the time for longer ones grows with their square."""
_SPECIAL = ("<padding>", "<unknown>")
_WORD = r"[\p{L}\p{N}_]\w*"
_ALONE = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\p{M}*"

Segmentation = Literal["words", "characters"]


class Tokenizer:
    """Words of a text and their ids."""

    def __init__(self, fast: FastTokenizer):
        self._fast = fast

    @classmethod
    def build(
        cls,
        document_frequency: Mapping[str, int],
        size: int = 500_000,
        least: int = 1,
        segmentation: Segmentation = "words",
    ) -> "Tokenizer":
        """A vocabulary of at most `size` words, the two special ones included.

        Args:
            document_frequency: documents that contain each word.
            size: words kept, at most.
            least: words of fewer documents become unknown.
            segmentation: what a word is where a script writes none apart.
        """
        rank = sorted((-count, word) for word, count in document_frequency.items() if count >= least)
        return cls.of_words([word for _, word in rank[: size - len(_SPECIAL)]], segmentation)

    @classmethod
    def of_words(
        cls, ranked: Sequence[str], segmentation: Segmentation = "words", *, subwords: bool = False
    ) -> "Tokenizer":
        """A vocabulary of the two special words and `ranked`, in that order.

        Args:
            ranked: words, distinct.
            segmentation: what a word is where a script writes none apart.
            subwords: write other words in words of the vocabulary.
        """
        vocabulary = {word: i for i, word in enumerate((*_SPECIAL, *ranked))}
        rest = {"continuing_subword_prefix": "", "max_input_chars_per_word": LONGEST} if subwords else {}
        kind = models.WordPiece if subwords else models.WordLevel
        fast = FastTokenizer(kind(vocabulary, unk_token=_SPECIAL[UNKNOWN], **rest))
        fast.normalizer = normalizers.Lowercase()
        words = pre_tokenizers.Split(Regex(_WORD), behavior="removed", invert=True)
        if segmentation == "characters":
            alone = pre_tokenizers.Split(Regex(_ALONE), behavior="isolated")
            fast.pre_tokenizer = pre_tokenizers.Sequence([words, alone])
        else:
            fast.pre_tokenizer = words
        if SEPARATOR in vocabulary:
            fast.add_tokens([AddedToken(SEPARATOR, normalized=False)])
        return cls(fast)

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """The tokenizer in a file that `save` wrote."""
        return cls(FastTokenizer.from_file(str(path)))

    def save(self, path: Path) -> None:
        """Write the vocabulary and the rules as one JSON file."""
        self._fast.save(str(path), pretty=False)

    def __len__(self) -> int:
        return self._fast.get_vocab_size()

    @property
    def words(self) -> list[str]:
        """The words in the order of their ids."""
        vocabulary = self._fast.get_vocab()
        return sorted(vocabulary, key=vocabulary.__getitem__)

    def encode(self, texts: Sequence[str], max_tokens: int) -> Ragged:
        """Word ids of each text, int32, cut at `max_tokens`; an empty text is one unknown word."""
        encoded = self._fast.encode_batch_fast(list(texts), add_special_tokens=False)
        rows = [encoding.ids[:max_tokens] or [UNKNOWN] for encoding in encoded]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        values = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
        return Ragged(values, np.concatenate([[0], np.cumsum(lengths)]))

    def of_split(self, words: Sequence[str]) -> Ragged:
        """What `encode` writes for each of some words as `split_words` gives them: ids, int32, at least one a word."""
        model, separator = self._fast.model, SEPARATOR
        if self._fast.token_to_id(SEPARATOR) is None:
            separator = SEPARATOR.strip("/").lower()  # `encode` then splits it like any text
        given = (separator if word == SEPARATOR else word for word in words)
        return Ragged.from_rows([token.id for token in model.tokenize(word)] for word in given)

    def encode_with_spans(self, text: str, max_tokens: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """Word ids of one text as `encode` gives them, int32, and where each word stands: its first character and the
        one after its last. Where one character is two pieces (a lower-case İ), the second stands nowhere: its span is
        empty. An empty text is one unknown word that stands nowhere: it has no span.
        """
        encoding = self._fast.encode(text, add_special_tokens=False)
        spans: list[tuple[int, int]] = []
        for start, end in encoding.offsets[:max_tokens]:
            done = spans[-1][1] if spans else 0
            spans.append((max(start, done), max(end, done)))
        return np.array(encoding.ids[:max_tokens] or [UNKNOWN], dtype=np.int32), spans

    def lower(self, letters: Sequence[str]) -> list[str]:
        """Single characters in lower case; one of them may become two."""
        return [self._fast.normalizer.normalize_str(letter) for letter in letters]

    def split(self, text: str) -> list[str]:
        """The words of a text without separators, before any vocabulary."""
        normal = self._fast.normalizer.normalize_str(text)
        return [word for word, _ in self._fast.pre_tokenizer.pre_tokenize_str(normal)]

    def has_words(self, text: str) -> bool:
        """Whether a text has a word beside `/SEP/`, known or unknown: `encode` also writes an id for a text without."""
        text = text.replace(SEPARATOR, " ")
        # The search ends at the first letter; `split` knows letters that are newer than Python's Unicode.
        return bool(re.search(r"\w", text) or self.split(text))


@cache
def splitter(segmentation: Segmentation) -> Tokenizer:
    """A tokenizer without a vocabulary."""
    return Tokenizer.of_words([], segmentation)


def split_words(text: str, segmentation: Segmentation = "words") -> list[str]:
    """The words of a text, before any vocabulary."""
    words: list[str] = []
    for part in text.split(SEPARATOR):
        words.extend(splitter(segmentation).split(part))
        words.append(SEPARATOR)
    return words[:-1]


def count_documents(texts: Iterable[str], max_tokens: int) -> dict[str, int]:
    """How many of `texts` contain each word among their first `max_tokens` words."""
    counts: dict[str, int] = {}
    for text in texts:
        for word in set(split_words(text)[:max_tokens]):
            counts[word] = counts.get(word, 0) + 1
    return counts
