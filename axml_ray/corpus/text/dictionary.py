"""Reads a bilingual dictionary and restricts it to the vocabulary of a corpus.

The texts of a catalogue may be in two languages; without a dictionary, texts in one teach little about texts in the
other. Two formats are read:

- a word, a tab, and its translations separated by tabs, best first;
- the format of Ding (Debian's `trans-de-en`): `Haus {n}; Heim {n} | Häuser {pl} :: house; home | houses`; anything in
  brackets or between slashes is ignored.

Only single words are translated. A word of the vocabulary that is not in the dictionary is looked up by its stem, else
as a compound of two words with at most two letters between them ("Strömungsmechanik": Strömung, Mechanik).

Legend: V words of the vocabulary, C candidate translations of all words.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import snowballstemmer

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.text.tokenizer import Segmentation, splitter

MAX_CANDIDATES = 8
"""Maximum number of candidate translations of a word."""
MAX_PHRASE_WORDS = 3
"""Maximum number of words of a translation."""
MIN_PART_LETTERS, MIN_COMPOUND_LETTERS = 4, 8
"""Minimum number of letters of each part of a compound, and of a compound."""
MAX_LINKING_LETTERS = 2
"""Maximum number of letters between the two parts of a compound."""
_ANNOTATION = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|/[^/]*/|<[^>]*>|\.\.\.")

Entries = Mapping[str, Sequence[tuple[str, ...]]]
"""The translations of each word, each a tuple of words, best first."""


@dataclass(frozen=True, eq=False)
class Dictionary:
    """The candidate translations of a vocabulary's words.

    Attributes:
        candidates: C rows, translations as word ids.
        of_word: int64 [V + 1]: the candidates of word w, best first, are rows `of_word[w]` to `of_word[w + 1] - 1`.
        sides: int8 [V], the language of each word: 1 if only of the first, -1 if only of the second, else 0.
    """

    candidates: Ragged
    of_word: np.ndarray
    sides: np.ndarray


def read_dictionary(path: Path, segmentation: Segmentation = "words") -> Entries:
    """Read the entries of a dictionary file.

    Args:
        path: path of the file, in UTF-8.
        segmentation: segmentation of the corpus.

    Raises:
        SettingsError: the file cannot be read, or a line is not an entry.
    """
    weights: dict[str, dict[tuple[str, ...], float]] = defaultdict(lambda: defaultdict(float))
    split = splitter(segmentation).split
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.startswith("#") or not line.strip():
                    continue
                pairs = list(_pairs(line))
                if not pairs:
                    raise SettingsError(
                        f"{path}:{number}: no entry of a dictionary; write a word, a tab and its translations, or "
                        "`word; word | word :: translation; translation | translation`"
                    )
                for word, translations in pairs:
                    source = split(word)
                    if len(source) != 1:
                        continue
                    for rank, translation in enumerate(translations):
                        phrase = tuple(split(translation))
                        if 0 < len(phrase) <= MAX_PHRASE_WORDS:
                            weights[source[0]][phrase] += 1 / (1 + rank)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"corpus.dictionary: {path} cannot be read ({error})") from None
    if not weights:
        raise SettingsError(f"corpus.dictionary: {path} has no entry of a single word")
    return {word: sorted(own, key=lambda phrase: -own[phrase]) for word, own in weights.items()}


def _pairs(line: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the words of a line, each with its translations."""
    if " :: " not in line:
        word, *translations = line.rstrip("\n").split("\t")
        if translations:
            yield word, translations
        return
    forms = [_ANNOTATION.sub(" ", side).split("|") for side in line.split(" :: ", 1)]
    for words, translations in zip(*forms, strict=False):  # a surplus form on one side has no translation
        # English infinitives are written with "to".
        without_to = [re.sub(r"^\s*to\s+(?=\w)", "", translation) for translation in translations.split(";")]
        for word in words.split(";"):
            yield word, without_to


def restrict_to_vocabulary(entries: Entries, words: Sequence[str], stemmer: str | None) -> Dictionary:
    """Return the candidate translations of each word of a vocabulary, written in words of the vocabulary.

    Args:
        entries: entries of the dictionary.
        words: the vocabulary, by id.
        stemmer: Snowball stemmer of the first language, such as `german`; None disables the lookup by stem.
    """
    ids = {word: number for number, word in enumerate(words)}
    usable: dict[str, list[tuple[int, ...]]] = {}
    targets: set[str] = set()
    for word, phrases in entries.items():
        targets.update(itertools.chain.from_iterable(phrases))
        if known := [tuple(map(ids.__getitem__, phrase)) for phrase in phrases if all(map(ids.__contains__, phrase))]:
            usable[word] = known
    stem = (lambda word: word) if stemmer is None else snowballstemmer.stemmer(stemmer).stemWord
    by_stem: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for word, translations in usable.items():
        by_stem[stem(word)] += translations

    def translate_word(word: str) -> list[tuple[int, ...]]:
        return usable.get(word) or by_stem.get(stem(word), [])

    def translate(word: str) -> list[tuple[int, ...]]:
        if (translations := translate_word(word)) or len(word) < MIN_COMPOUND_LETTERS or not word.isalpha():
            return translations
        for start in range(MIN_PART_LETTERS, len(word) - MIN_PART_LETTERS + 1):
            tails = translate_word(word[start:])
            if tails:
                for linking in range(MAX_LINKING_LETTERS + 1):
                    end = start - linking
                    if end >= MIN_PART_LETTERS and (heads := translate_word(word[:end])):
                        return [(*head, *tail) for head, tail in itertools.product(heads[:2], tails[:2])]
        return []

    rows = [list(dict.fromkeys(translate(word)))[:MAX_CANDIDATES] for word in words]
    of_word = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
    sides = np.array([(word in entries) - (word in targets) for word in words], dtype=np.int8)
    return Dictionary(Ragged.from_rows(itertools.chain.from_iterable(rows)), of_word, sides)
