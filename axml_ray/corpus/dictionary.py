"""A dictionary from one language of a corpus to another, in words of its vocabulary.

Catalogues come in several languages, and a label's texts in one of them teach little about its texts in another. Two
formats are read, told apart by what stands between a word and its translations:

- a word, a tab, and translations with tabs between them, the best first;
- that of Ding (Debian's `trans-de-en`): `Haus {n}; Heim {n} | Häuser {pl} :: house; home | houses`, where what is in
  brackets or between slashes is passed over.

Only single words are looked up. A word of the vocabulary that the dictionary lacks is looked up by its stem, else as
two words that it is made of, but for a letter or two between them ("Strömungsmechanik": Strömung, Mechanik).

Legend: V words of the vocabulary, C candidates of all words.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import snowballstemmer

from axml_ray.corpus.tokenizer import Segmentation, splitter
from axml_ray.ragged import Ragged
from axml_ray.settings import SettingsError

CANDIDATES, LONGEST = 8, 3
"""Translations of a word that are kept, and words of one, at most."""
PART, COMPOUND = 4, 8
"""Letters of a part of a compound, and of a compound, at least."""
_ASIDE = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|/[^/]*/|<[^>]*>|\.\.\.")

Entries = Mapping[str, Sequence[tuple[str, ...]]]
"""The translations of each word, the best first."""


@dataclass(frozen=True, eq=False)
class Dictionary:
    """What a vocabulary's words may mean.

    Attributes:
        candidates: C rows, translations as word ids.
        of_word: int64 [V + 1]: the candidates of word w, best first, are rows `of_word[w]` to `of_word[w + 1] - 1`.
        sides: int8 [V]: 1 for words of the first language alone, -1 for words of the second alone, else 0.
    """

    candidates: Ragged
    of_word: np.ndarray
    sides: np.ndarray


def read_dictionary(path: Path, segmentation: Segmentation = "words") -> Entries:
    """The entries of a file.

    Args:
        path: UTF-8.
        segmentation: of the corpus.

    Raises:
        SettingsError: there is no such file, or a line of it is no entry.
    """
    weights: dict[str, dict[tuple[str, ...], float]] = defaultdict(lambda: defaultdict(float))
    split = splitter(segmentation).split
    try:
        with path.open(encoding="utf-8") as file:
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
                    known = split(word)
                    if len(known) != 1:
                        continue
                    for rank, translation in enumerate(translations):
                        phrase = tuple(split(translation))
                        if 0 < len(phrase) <= LONGEST:
                            weights[known[0]][phrase] += 1 / (1 + rank)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"corpus.dictionary: {path} cannot be read ({error})") from None
    if not weights:
        raise SettingsError(f"corpus.dictionary: {path} has no entry of a single word")
    return {word: sorted(of, key=lambda phrase: -of[phrase]) for word, of in weights.items()}


def _pairs(line: str) -> Iterator[tuple[str, list[str]]]:
    """Words of a line and the translations of each."""
    if " :: " not in line:
        word, *translations = line.rstrip("\n").split("\t")
        if translations:
            yield word, translations
        return
    forms = [_ASIDE.sub(" ", side).split("|") for side in line.split(" :: ", 1)]
    for words, translations in zip(*forms, strict=False):  # forms are paired; one too many has no partner
        given = [re.sub(r"^\s*to\s+(?=\w)", "", each) for each in translations.split(";")]  # infinitives
        for word in words.split(";"):
            yield word, given


def in_vocabulary(entries: Entries, words: Sequence[str], stemmer: str | None) -> Dictionary:
    """The part of a dictionary that a vocabulary can write.

    Args:
        entries: of the dictionary.
        words: of the vocabulary, by id.
        stemmer: of Snowball's, of the first language; None looks words up as they are.
    """
    ids = {word: number for number, word in enumerate(words)}
    usable: dict[str, list[tuple[int, ...]]] = {}
    targets: set[str] = set()
    for word, given in entries.items():
        targets.update(itertools.chain.from_iterable(given))
        if written := [tuple(map(ids.__getitem__, phrase)) for phrase in given if all(map(ids.__contains__, phrase))]:
            usable[word] = written
    stem = (lambda word: word) if stemmer is None else snowballstemmer.stemmer(stemmer).stemWord
    by_stem: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for word, phrases in usable.items():
        by_stem[stem(word)] += phrases

    def known(word: str) -> list[tuple[int, ...]]:
        return usable.get(word) or by_stem.get(stem(word), [])

    def found(word: str) -> list[tuple[int, ...]]:
        if (alone := known(word)) or len(word) < COMPOUND or not word.isalpha():
            return alone
        for end in range(PART, len(word) - PART + 1):
            tail = known(word[end:])
            if tail:
                for cut in range(3):
                    if end - cut >= PART and (head := known(word[: end - cut])):
                        return [(*one, *other) for one, other in itertools.product(head[:2], tail[:2])]
        return []

    rows = [list(dict.fromkeys(found(word)))[:CANDIDATES] for word in words]
    of_word = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
    sides = np.array([(word in entries) - (word in targets) for word in words], dtype=np.int8)
    return Dictionary(Ragged.from_rows(itertools.chain.from_iterable(rows)), of_word, sides)
