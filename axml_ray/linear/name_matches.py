"""Labels whose names stand in a text, as votes beside the classifiers.

Not in the paper. A label of few training texts is known by its name above all, but a name that stands in a text needn't
be its subject. What it is worth is learned on the training texts, by a logistic regression of whether the label is
true. For a text of w words and a label whose name stands in it t times, its features are

    ln(q / (1 - q)),  ln(1 + m),  ln(1 + c),  lead,  ln t,  several,  whole,  ln w,    q = (h + 5 r) / (m + 5),

with m training texts in which the name stands, h of which have the label, which c have in all; r is the mean of h / m
over all pairs of a text and a name in it. The name begins among the first `LEAD` words, where a title stands (lead); it
has several words; it isn't everywhere a part of a longer name (whole). In learning, a text itself is left out of m, h
and c, and a label that no other text has, whose name is only known because this one has it, isn't learned from.

Words are compared by their stems. What a name says in brackets tells it from others that are spelled alike; it needn't
stand in a text.

- **A file** of safetensors, whole or not there, checked when it is opened.
- **Nothing depends on the batch**: a text is scored by itself.

Legend: N documents, L trained labels, V words, S states of the trie, P pairs of a text and a label that it names.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import snowballstemmer
from safetensors import SafetensorError
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from axml_ray.corpus.label_index import LabelIndex
from axml_ray.corpus.tokenizer import UNKNOWN, Tokenizer
from axml_ray.linear.checked import open_arrays, save_arrays
from axml_ray.linear.label_names import named_labels
from axml_ray.ragged import Ragged, is_ragged

ABOUT = {"format": "axml-ray name matches", "version": "1"}
LEAD = 12
"""First words of a text, where its title stands."""
PRIOR = 5.0
"""Texts that the mean counts beside those in which a name stands."""
FEATURES = 8
FITTED = 100_000
"""Texts that the regression learns from, at most; the counts are of all."""
MOST_WORDS = 1 << 22
"""Words that are looked through at a time."""
_BRACKETS = re.compile(r"\s*\([^()]*\)")


@dataclass(frozen=True, eq=False)
class Trie:
    """Names, to be found in texts.

    Attributes:
        stems: int32 [V], the stem of each word.
        keys: int64 [S - 1], rising: state · (number of stems) + stem, of each step from a state to another.
        targets: int32 [S - 1], where it leads; names begin at state 0.
        labels: S rows, the labels whose names end in each state.
    """

    stems: np.ndarray
    keys: np.ndarray
    targets: np.ndarray
    labels: Ragged

    @classmethod
    def of(cls, names: Ragged, labels: np.ndarray, stems: np.ndarray) -> "Trie":
        """The trie of some names.

        Args:
            names: word ids, at least one a name.
            labels: int32 [names], whose they are.
            stems: int32 [V].
        """
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
        """Stems; a vocabulary is large, a text short."""
        return int(self.stems.max(initial=0)) + 1

    def walk(self, tokens: Ragged) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where names stand: the place of the first word among `tokens.values`, how many words, and the state, int64.

        Args:
            tokens: word ids of documents.
        """
        kinds, stems = self._kinds, self.stems[tokens.values].astype(np.int64)
        ends = np.repeat(tokens.offsets[1:], tokens.lengths)
        start, state, length = np.arange(len(stems)), np.zeros(len(stems), dtype=np.int64), 0
        found = [(start[:0], start[:0], state[:0])]
        while len(start) and len(self.keys):
            keys = state * kinds + stems[start + length]
            place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            on = self.keys[place] == keys
            start, state, length = start[on], self.targets[place[on]].astype(np.int64), length + 1
            named = self.labels.lengths_of(state) > 0
            found.append((start[named], np.full(named.sum(), length), state[named]))
            more = start + length < ends[start]
            start, state = start[more], state[more]
        starts, lengths, states = (np.concatenate(part) for part in zip(*found, strict=True))
        return starts, lengths, states


@dataclass(frozen=True, eq=False)
class Pairs:
    """Texts and labels whose names stand in them.

    Attributes:
        documents: int64 [P], rising.
        labels: int64 [P], rising in a document.
        lead: bool [P].
        times: int64 [P], t.
        several: bool [P].
        whole: bool [P].
        words: int64 [P], w.
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
        """All of some documents.

        Args:
            trie: of the names.
            tokens: word ids.
            trained: L.
        """
        starts, lengths, states = trie.walk(tokens)
        # `furthest` is where the longest name that begins at a word ends; lengths rise in what `walk` gives.
        furthest = np.zeros(len(tokens.values) + 1, dtype=np.int64)
        furthest[starts] = starts + lengths
        before = np.concatenate([[0], np.maximum.accumulate(furthest)])[starts]
        whole = (furthest[starts] == starts + lengths) & (before < starts + lengths)
        document = np.searchsorted(tokens.offsets, starts, side="right") - 1
        lead = starts - tokens.offsets[document] < LEAD
        each = trie.labels.lengths_of(states)
        keys, which, times = np.unique(
            np.repeat(document, each) * trained + trie.labels.take(states).values,
            return_inverse=True, return_counts=True,
        )  # fmt: skip

        def anywhere(here: np.ndarray) -> np.ndarray:
            return np.bincount(which, weights=np.repeat(here, each), minlength=len(keys)) > 0

        documents, labels = np.divmod(keys, trained)
        words = tokens.lengths[documents]
        return cls(documents, labels, anywhere(lead), times, anywhere(lengths > 1), anywhere(whole), words)

    def true(self, labels: Ragged) -> np.ndarray:
        """Whether each label is one of its document's, bool [P].

        Args:
            labels: of each document.
        """
        most = 1 + max(self.labels.max(initial=0), labels.values.max(initial=0))
        known = np.repeat(np.arange(len(labels)), labels.lengths) * most + labels.values
        found: np.ndarray = np.isin(self.documents * most + self.labels, known)
        return found


@dataclass(frozen=True, eq=False)
class NameMatches:
    """Labels' names, and what it is worth that one stands in a text.

    Attributes:
        trie: of the names.
        named: int64 [L], m.
        true: int64 [L], h.
        counts: int64 [L], c.
        coefficients: float64 [`FEATURES` + 1], of the features and of a one.
        share: of the votes in the classifiers' scores.
    """

    trie: Trie
    named: np.ndarray
    true: np.ndarray
    counts: np.ndarray
    coefficients: np.ndarray
    share: float

    @classmethod
    def fit(
        cls, trie: Trie, tokens: Ragged, labels: Ragged, trained: int, share: float, fitted: int = FITTED
    ) -> "NameMatches":
        """What the names are worth, from training documents.

        Args:
            trie: of the names of trained labels.
            tokens: word ids of the documents.
            labels: theirs; those from `trained` on are passed over.
            trained: L.
            share: of the votes.
            fitted: documents that the regression learns from, at most.
        """
        own = labels.values[labels.values < trained]
        named, true = np.zeros(trained, dtype=np.int64), np.zeros(trained, dtype=np.int64)
        for rows in _steps(tokens):
            pairs = Pairs.of(trie, tokens.take(rows), trained)
            named += np.bincount(pairs.labels, minlength=trained)
            true += np.bincount(pairs.labels[pairs.true(labels.take(rows))], minlength=trained)
        found = cls(trie, named, true, np.bincount(own, minlength=trained), np.zeros(FEATURES + 1), share)
        rows = np.sort(np.random.default_rng(0).permutation(len(tokens))[:fitted])
        some, theirs = tokens.take(rows), labels.take(rows)
        features, answers = [np.empty((0, FEATURES))], [np.empty(0, bool)]
        for rows in _steps(some):
            pairs = Pairs.of(trie, some.take(rows), trained)
            right = pairs.true(theirs.take(rows))
            others = found.counts[pairs.labels] > right
            features.append(found._features(pairs, right)[others])
            answers.append(right[others])
        x, y = np.concatenate(features), np.concatenate(answers)
        if y.any() and not y.all():
            regression = LogisticRegression(C=100, max_iter=1_000).fit(x, y)
            found.coefficients[:] = *regression.coef_[0], regression.intercept_[0]
        else:  # nothing to tell by: what the names were worth at all
            found.coefficients[0] = 1.0
        return found

    def votes(self, tokens: Ragged) -> sparse.csr_matrix:
        """The probability of each label whose name stands in a text, float32 CSR [N, L].

        Args:
            tokens: word ids.
        """
        parts = [sparse.csr_matrix((0, len(self.counts)), dtype=np.float32)]
        for rows in _steps(tokens):
            pairs = Pairs.of(self.trie, tokens.take(rows), len(self.counts))
            logits = self._features(pairs) @ self.coefficients[:-1] + self.coefficients[-1]
            offsets = np.concatenate([[0], np.cumsum(np.bincount(pairs.documents, minlength=len(rows)))])
            probabilities = (1 / (1 + np.exp(-logits))).astype(np.float32)
            parts.append(sparse.csr_matrix((probabilities, pairs.labels, offsets), shape=(len(rows), len(self.counts))))
        return sparse.vstack(parts, format="csr")

    @cached_property
    def _mean(self) -> float:
        """r, kept from 0 and 1; labels may be millions, a text names a few."""
        every = max(1, int(self.named.sum()))
        return min(max(int(self.true.sum()) / every, 0.5 / every), 1 - 0.5 / every)

    def _features(self, pairs: Pairs, right: np.ndarray | None = None) -> np.ndarray:
        """float64 [P, `FEATURES`]; of training documents where it is known which pairs are `right`, without them."""
        alone, own = (0, 0) if right is None else (1, right)
        named, true, counts = (each[pairs.labels] for each in (self.named, self.true, self.counts))
        worth = (true - own + PRIOR * self._mean) / (named - alone + PRIOR)
        return np.column_stack([
            np.log(worth) - np.log1p(-worth), np.log1p(named - alone), np.log1p(counts - own), pairs.lead,
            np.log(pairs.times), pairs.several, pairs.whole, np.log(pairs.words),
        ])  # fmt: skip

    def save(self, path: Path, fingerprint: str) -> None:
        """Write the names and what they are worth; a reader sees the old file or the whole new one.

        Args:
            path: where to.
            fingerprint: of what they depend on.
        """
        arrays = {
            "stems": self.trie.stems.astype(np.int32),
            "keys": self.trie.keys,
            "targets": self.trie.targets.astype(np.int32),
            "labels": self.trie.labels.values,
            "labels.offsets": self.trie.labels.offsets,
            "named": self.named,
            "true": self.true,
            "counts": self.counts,
            "coefficients": self.coefficients,
        }
        save_arrays(arrays, path, ABOUT, fingerprint)

    @classmethod
    def load(cls, path: Path, words: int, trained: int, share: float) -> "NameMatches":
        """Open what `save` wrote.

        Args:
            path: of the file.
            words: V, that it should have.
            trained: L, likewise.
            share: of the votes.

        Raises:
            FileNotFoundError: no such file.
            ValueError: the file doesn't hold names of this version, or of other words or labels.
        """
        try:
            arrays, _ = open_arrays(path, ABOUT)
            trie = Trie(
                arrays["stems"], arrays["keys"], arrays["targets"], Ragged(arrays["labels"], arrays["labels.offsets"])
            )
            _check_trie(trie, words, trained)
            named, true, counts = (arrays[name] for name in ("named", "true", "counts"))
            if any(
                each.shape != (trained,) or each.dtype != np.int64 or each.min(initial=0) < 0
                for each in (named, true, counts)
            ):
                raise ValueError(f"it hasn't counts of {trained:,} labels")
            if (true > np.minimum(named, counts)).any():
                raise ValueError("more texts have a label and its name than have either")
            coefficients = arrays["coefficients"]
            if coefficients.shape != (FEATURES + 1,) or not np.isfinite(coefficients).all():
                raise ValueError(f"it hasn't {FEATURES + 1} coefficients")
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            raise ValueError(f"{path} holds no names of these words and labels: {error}") from None
        return cls(trie, named, true, counts, coefficients, share)


def trie_of(index: LabelIndex, tokenizer: Tokenizer, max_tokens: int, stemmer: str | None) -> Trie:
    """The names of a corpus' trained labels. Names with an unknown word are left out.

    Args:
        index: labels and their names; a label is its own name where the corpus was given none.
        tokenizer: of the corpus.
        max_tokens: words of a name that are read.
        stemmer: of Snowball's, by its language; None compares words as they are.
    """
    labels = np.array(named_labels(index), dtype=np.int32)
    names = tokenizer.encode([_BRACKETS.sub("", index.names[label]) for label in labels], max_tokens)
    known = np.minimum.reduceat(names.values, names.offsets[:-1]) > UNKNOWN
    return Trie.of(names.take(np.flatnonzero(known)), labels[known], stems_of(tokenizer.words, stemmer))


def stems_of(words: Sequence[str], stemmer: str | None) -> np.ndarray:
    """int32 [V]: which stem each word has, counted from 0.

    Args:
        words: distinct.
        stemmer: as of `trie_of`.
    """
    if stemmer is None:
        return np.arange(len(words), dtype=np.int32)
    stems: dict[str, int] = {}
    found = (stems.setdefault(stem, len(stems)) for stem in snowballstemmer.stemmer(stemmer).stemWords(words))
    return np.fromiter(found, np.int32, len(words))


def _steps(tokens: Ragged) -> Iterator[np.ndarray]:
    """Rows of documents in order, as many at a time as have `MOST_WORDS` words, or one."""
    start = 0
    while start < len(tokens):
        end = int(np.searchsorted(tokens.offsets, tokens.offsets[start] + MOST_WORDS, side="right")) - 1
        end = max(end, start + 1)
        yield np.arange(start, end)
        start = end


def _check_trie(trie: Trie, words: int, trained: int) -> None:
    if trie.stems.shape != (words,) or trie.stems.dtype != np.int32 or trie.stems.min(initial=0) < 0:
        raise ValueError(f"it hasn't stems of {words:,} words")
    if not is_ragged(trie.labels) or trie.labels.values.max(initial=-1) >= trained:
        raise ValueError(f"its names aren't of the {trained:,} labels there are")
    states = len(trie.labels)
    if trie.keys.shape != (states - 1,) or trie.keys.dtype != np.int64 or (np.diff(trie.keys) <= 0).any():
        raise ValueError(f"it hasn't steps to {states:,} states")
    if trie.targets.shape != trie.keys.shape or trie.targets.dtype != np.int32:
        raise ValueError(f"it hasn't steps to {states:,} states")
    if trie.targets.min(initial=1) < 1 or trie.targets.max(initial=0) >= states:
        raise ValueError(f"it has steps beyond the {states:,} states there are")
