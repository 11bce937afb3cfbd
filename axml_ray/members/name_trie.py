"""A trie of label names, and the pairs of a text and a label whose name occurs in it.

Words are compared by their stems. The part of a name in brackets, which distinguishes names that are spelled alike, is
not searched for.

Legend: N documents, L trained labels, V words, S states of the trie, P pairs of a text and a label.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import snowballstemmer

from axml_ray.core.ragged import Ragged, is_ragged
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.corpus.labels.label_name_texts import named_labels
from axml_ray.corpus.text.tokenizer import UNKNOWN, Tokenizer

LEAD_WORDS = 12
"""Number of first words of a text that count as its lead, which usually is the title."""
_BRACKETS = re.compile(r"\s*\([^()]*\)")


@dataclass(frozen=True, eq=False)
class Trie:
    """A trie of names over stems, as a sorted table of transitions.

    Attributes:
        stems: int32 [V], the stem of each word.
        keys: int64 [S - 1], ascending: state · (number of stems) + stem of each transition.
        targets: int32 [S - 1], the next state of each transition; names begin at state 0.
        labels: S rows, the labels whose names end at each state.
    """

    stems: np.ndarray
    keys: np.ndarray
    targets: np.ndarray
    labels: Ragged

    @classmethod
    def of(cls, names: Ragged, labels: np.ndarray, stems: np.ndarray) -> "Trie":
        """Build the trie of names, word ids of `labels` (int32 [names]), with the stem of each word (int32 [V])."""
        kinds, states = int(stems.max(initial=0)) + 1, np.zeros(len(names), dtype=np.int64)
        keys, count = [np.empty(0, np.int64)], 1
        for depth in range(int(names.lengths.max(initial=0))):
            longer = np.flatnonzero(names.lengths > depth)
            words = names.values[names.offsets[longer] + depth]
            distinct, which = np.unique(states[longer] * kinds + stems[words], return_inverse=True)
            states[longer] = count + which
            keys.append(distinct)
            count += len(distinct)
        steps = np.concatenate(keys)
        order = np.argsort(steps)
        ends = np.concatenate([[0], np.cumsum(np.bincount(states, minlength=count))])
        ending = Ragged(labels[np.lexsort((labels, states))].astype(np.int32), ends)
        return cls(stems, steps[order], (1 + order).astype(np.int32), ending)

    @cached_property
    def _kinds(self) -> int:
        """Return the number of distinct stems; cached, since a vocabulary is large and a text short."""
        return int(self.stems.max(initial=0)) + 1

    def walk(self, tokens: Ragged) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find all names in documents.

        Returns:
            For each match, int64: the index of its first word in `tokens.values`, its number of words, and its state.
            Shorter matches come first.
        """
        kinds, stems = self._kinds, self.stems[tokens.values].astype(np.int64)
        ends = np.repeat(tokens.offsets[1:], tokens.lengths)
        # Match from all words at once; a start is dropped when its state has no transition for the next word.
        start, state, length = np.arange(len(stems)), np.zeros(len(stems), dtype=np.int64), 0
        matches = [(start[:0], start[:0], state[:0])]
        while len(start) and len(self.keys):
            keys = state * kinds + stems[start + length]
            index = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            matched = self.keys[index] == keys
            start, state, length = start[matched], self.targets[index[matched]].astype(np.int64), length + 1
            named = self.labels.lengths_of(state) > 0
            matches.append((start[named], np.full(named.sum(), length), state[named]))
            more = start + length < ends[start]
            start, state = start[more], state[more]
        starts, lengths, states = (np.concatenate(part) for part in zip(*matches, strict=True))
        return starts, lengths, states


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of a text and a label whose name occurs in it.

    Attributes:
        documents: int64 [P], ascending.
        labels: int64 [P], ascending within a document.
        lead: bool [P], whether the name begins among the first `LEAD_WORDS` words.
        times: int64 [P], t, how often the name occurs.
        several: bool [P], whether the name has several words.
        whole: bool [P], whether the name occurs at least once other than within a longer name.
        words: int64 [P], w, the number of words of the text.
    """

    documents: np.ndarray
    labels: np.ndarray
    lead: np.ndarray
    times: np.ndarray
    several: np.ndarray
    whole: np.ndarray
    words: np.ndarray

    @classmethod
    def of(cls, trie: Trie, tokens: Ragged, trained: int) -> "Pairs":
        """Find all pairs in some documents, given their word ids; `trained` is L."""
        starts, lengths, states = trie.walk(tokens)
        # `furthest`: where the longest name that begins at a word ends. `walk` returns lengths in ascending order,
        # so the longest is assigned last.
        furthest = np.zeros(len(tokens.values) + 1, dtype=np.int64)
        furthest[starts] = starts + lengths
        before = np.concatenate([[0], np.maximum.accumulate(furthest)])[starts]
        whole = (furthest[starts] == starts + lengths) & (before < starts + lengths)
        document = np.searchsorted(tokens.offsets, starts, side="right") - 1
        lead = starts - tokens.offsets[document] < LEAD_WORDS
        labels_per_match = trie.labels.lengths_of(states)
        keys, which, times = np.unique(
            np.repeat(document, labels_per_match) * trained + trie.labels.take(states).values,
            return_inverse=True, return_counts=True,
        )  # fmt: skip

        def any_match(condition: np.ndarray) -> np.ndarray:
            weights = np.repeat(condition, labels_per_match)
            return np.bincount(which, weights=weights, minlength=len(keys)) > 0

        documents, labels = np.divmod(keys, trained)
        words = tokens.lengths[documents]
        return cls(documents, labels, any_match(lead), times, any_match(lengths > 1), any_match(whole), words)

    def true(self, labels: Ragged) -> np.ndarray:
        """Return whether the document of each pair has its label, bool [P], given the label ids of each document."""
        most = 1 + max(self.labels.max(initial=0), labels.values.max(initial=0))
        true_pairs = np.repeat(np.arange(len(labels)), labels.lengths) * most + labels.values
        is_true: np.ndarray = np.isin(self.documents * most + self.labels, true_pairs)
        return is_true


def build_trie(index: LabelIndex, tokenizer: Tokenizer, max_tokens: int, stemmer: str | None) -> Trie:
    """Build the trie of the names of a corpus's trained labels, each its own name in a corpus without names.

    Names with an unknown word are left out; with a stemmer, one of another inflection than in the texts is known. At
    most `max_tokens` words of a name are read. `stemmer` is the language of the Snowball stemmer; None compares exact
    words.
    """
    labels = np.array(named_labels(index), dtype=np.int32)
    written = [_BRACKETS.sub("", index.names[label]) for label in labels]
    words, stems = tokenizer.words, stemmed(tokenizer.words, stemmer)
    if stemmer is not None:
        # In place of unknown words, known ones of the same stem.
        known_words = dict(zip(stems[UNKNOWN + 1 :], words[UNKNOWN + 1 :], strict=True))
        unknown = list({word for name in written for word in tokenizer.split(name)}.difference(words))
        found = {word: known_words.get(stem) for word, stem in zip(unknown, stemmed(unknown, stemmer), strict=True)}
        written = [" ".join(found.get(word) or word for word in tokenizer.split(name)) for name in written]
    names = tokenizer.encode(written, max_tokens)
    known = np.minimum.reduceat(names.values, names.offsets[:-1]) > UNKNOWN
    return Trie.of(names.take(np.flatnonzero(known)), labels[known], numbered(stems))


def stemmed(words: Sequence[str], stemmer: str | None) -> Sequence[str]:
    """Return the stem of each of some words; the words themselves without a stemmer."""
    return words if stemmer is None else snowballstemmer.stemmer(stemmer).stemWords(words)


def numbered(stems: Sequence[str]) -> np.ndarray:
    """Return the number (from 0) of each of some stems by their first occurrence, int32 [V]."""
    ids: dict[str, int] = {}
    return np.fromiter((ids.setdefault(stem, len(ids)) for stem in stems), np.int32, len(stems))


def check_trie(trie: Trie, words: int, trained: int) -> None:
    """Check a trie that was read from a file, of V words and L labels.

    Raises:
        ValueError: the trie is broken, or has other words or labels.
    """
    if trie.stems.shape != (words,) or trie.stems.dtype != np.int32 or trie.stems.min(initial=0) < 0:
        raise ValueError(f"it does not have stems of {words:,} words")
    if not is_ragged(trie.labels) or trie.labels.values.max(initial=-1) >= trained:
        raise ValueError(f"its names belong to labels beyond the {trained:,} there are")
    states = len(trie.labels)
    if trie.keys.shape != (states - 1,) or trie.keys.dtype != np.int64 or (np.diff(trie.keys) <= 0).any():
        raise ValueError(f"it does not have steps to {states:,} states")
    if trie.targets.shape != trie.keys.shape or trie.targets.dtype != np.int32:
        raise ValueError(f"it does not have steps to {states:,} states")
    if trie.targets.min(initial=1) < 1 or trie.targets.max(initial=0) >= states:
        raise ValueError(f"it has steps beyond the {states:,} states there are")
