"""Labels whose names occur in a text (kind `label_names`).

Not in the paper. A label of few training texts is known by its name above all, but a name that occurs in a text need
not be its subject. How much it says is learned on the training texts, by a logistic regression of whether the label is
true. For a text of w words and a label whose name occurs in it t times, the features are

    ln(q / (1 - q)),  ln(1 + m),  ln(1 + c),  lead,  ln t,  several,  whole,  ln w,    q = (h + 5 r) / (m + 5),

where m training texts contain the name, h of them have the label, and c have it in all; r is the mean of h / m over all
pairs of a text and a name in it; lead, several and whole are those of `name_trie.Pairs`. In learning, a text itself is
left out of m, h and c; and a label that no other text has, whose name is known only because this one has it, is not
learned from.

Legend: N documents, L trained labels, V words, P pairs of a text and a label that it names.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from safetensors import SafetensorError
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from axml_ray.corpus.text_views import TextViews
from axml_ray.members.member import FitInputs, LoadInputs, Member, MemberSpec
from axml_ray.members.name_trie import Pairs, Trie, build_trie, check_trie
from axml_ray.members.topk import TopK, best_of_sparse
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment, Settings
from axml_ray.settings.members import LabelNamesSettings
from axml_ray.storage.array_file import open_arrays, save_arrays

ABOUT = {"format": "axml-ray label names", "version": "1"}
FILE = "names.safetensors"
PRIOR = 5.0
"""Texts that the prior mean counts as, in addition to those that contain a name."""
FEATURES = 8
FITTED = 100_000
"""Texts that the regression learns from, at most; the counts are of all texts."""
MOST_WORDS = 1 << 22
"""Words that are searched at a time."""


class LabelNamesConfig(Settings):
    """What the fitted member depends on."""

    stemmer: str | None


@dataclass(frozen=True, eq=False)
class LabelNames(Member):
    """The names of labels, and how much the occurrence of each says.

    Attributes:
        trie: of the names.
        named: int64 [L], m.
        true: int64 [L], h.
        counts: int64 [L], c.
        coefficients: float64 [`FEATURES` + 1], of the features and of a constant one.
    """

    trie: Trie
    named: np.ndarray
    true: np.ndarray
    counts: np.ndarray
    coefficients: np.ndarray

    config_class: ClassVar[type[Settings]] = LabelNamesConfig

    @classmethod
    def configure(cls, experiment: Experiment, settings: LabelNamesSettings) -> LabelNamesConfig:
        """The stemmer."""
        return LabelNamesConfig(stemmer=settings.stemmer)

    @classmethod
    def fit(cls, spec: MemberSpec, inputs: FitInputs) -> None:
        """Learn from the training texts in which labels' names occur."""
        config, corpus = spec.config, inputs.corpus
        assert isinstance(config, LabelNamesConfig)
        trie = build_trie(corpus.labels, corpus.tokenizer, inputs.max_tokens, config.stemmer)
        train = inputs.train.translated(corpus.translation)
        cls.of(trie, train.tokens, train.labels, corpus.trained).save(spec.directory / FILE, spec.key)

    @classmethod
    def of(cls, trie: Trie, tokens: Ragged, labels: Ragged, trained: int, fitted: int = FITTED) -> "LabelNames":
        """The member learned from given documents.

        Args:
            trie: of the names of trained labels.
            tokens: word ids of the documents.
            labels: theirs; those from `trained` on are passed over.
            trained: L.
            fitted: documents that the regression learns from, at most.
        """
        own = labels.values[labels.values < trained]
        named, true = np.zeros(trained, dtype=np.int64), np.zeros(trained, dtype=np.int64)
        for rows in _steps(tokens):
            pairs = Pairs.of(trie, tokens.take(rows), trained)
            named += np.bincount(pairs.labels, minlength=trained)
            true += np.bincount(pairs.labels[pairs.true(labels.take(rows))], minlength=trained)
        found = cls(trie, named, true, np.bincount(own, minlength=trained), np.zeros(FEATURES + 1))
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
        else:  # all pairs are alike: the prior q of each name is all that is known
            found.coefficients[0] = 1.0
        return found

    def rank(self, texts: TextViews, k: int) -> TopK:
        """The most probable labels whose names occur in the text."""
        return best_of_sparse(self._scores(texts), k)

    def score(self, texts: TextViews, labels: np.ndarray) -> np.ndarray:
        """The probabilities of given labels; 0 where the name does not occur."""
        scores: np.ndarray = self._scores(texts)[:, labels].toarray()
        return scores

    def _scores(self, texts: TextViews) -> sparse.csr_matrix:
        return texts.get_or_compute(("label names", id(self)), lambda: self.scores(texts.translated))

    def scores(self, tokens: Ragged) -> sparse.csr_matrix:
        """The probability of each label whose name occurs in a text, float32 CSR [N, L].

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
        """r, kept away from 0 and 1; cached, since labels may be millions and a text names a few."""
        every = max(1, int(self.named.sum()))
        return min(max(int(self.true.sum()) / every, 0.5 / every), 1 - 0.5 / every)

    def _features(self, pairs: Pairs, right: np.ndarray | None = None) -> np.ndarray:
        """Features of pairs, float64 [P, `FEATURES`].

        Args:
            pairs: of documents.
            right: bool [P], whether each label is true, of training documents, which are left out of the counts.
        """
        one, own = (0, 0) if right is None else (1, right)
        named, true, counts = (each[pairs.labels] for each in (self.named, self.true, self.counts))
        q = (true - own + PRIOR * self._mean) / (named - one + PRIOR)
        return np.column_stack([
            np.log(q) - np.log1p(-q), np.log1p(named - one), np.log1p(counts - own), pairs.lead,
            np.log(pairs.times), pairs.several, pairs.whole, np.log(pairs.words),
        ])  # fmt: skip

    def save(self, path: Path, key: str) -> None:
        """Write the names and what was learned; a reader sees the old file or the new one.

        Args:
            path: where to.
            key: cache key of all that they depend on.
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
        save_arrays(arrays, path, ABOUT, key)

    @classmethod
    def load(cls, directory: Path, config: Any, inputs: LoadInputs) -> "LabelNames":
        """Open what `fit` wrote.

        Raises:
            FileNotFoundError: no such file.
            ValueError: the file holds no names of this version, or of other words or labels.
        """
        path, trained = directory / FILE, inputs.labels
        try:
            arrays, _ = open_arrays(path, ABOUT)
            trie = Trie(
                arrays["stems"], arrays["keys"], arrays["targets"], Ragged(arrays["labels"], arrays["labels.offsets"])
            )
            check_trie(trie, inputs.words, trained)
            named, true, counts = (arrays[name] for name in ("named", "true", "counts"))
            if any(
                each.shape != (trained,) or each.dtype != np.int64 or each.min(initial=0) < 0
                for each in (named, true, counts)
            ):
                raise ValueError(f"it does not have counts of {trained:,} labels")
            if (true > np.minimum(named, counts)).any():
                raise ValueError("more texts have a label and its name than have either")
            coefficients = arrays["coefficients"]
            if coefficients.shape != (FEATURES + 1,) or not np.isfinite(coefficients).all():
                raise ValueError(f"it does not have {FEATURES + 1} coefficients")
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            raise ValueError(f"{path} holds no names of these words and labels: {error}") from None
        return cls(trie, named, true, counts, coefficients)


def _steps(tokens: Ragged) -> Iterator[np.ndarray]:
    """Consecutive rows of documents, at most `MOST_WORDS` words at a time, or one document."""
    start = 0
    while start < len(tokens):
        end = int(np.searchsorted(tokens.offsets, tokens.offsets[start] + MOST_WORDS, side="right")) - 1
        end = max(end, start + 1)
        yield np.arange(start, end)
        start = end
