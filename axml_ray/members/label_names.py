"""Label-name matching: labels whose names occur in a text (kind `label_names`).

Not in the paper. The best evidence for a label with few training texts is its name, but a text need not be about every
name that occurs in it. A logistic regression on the training texts learns the probability that the label is true. For
a text of w words and a label whose name occurs in it t times, the features are

    ln(q / (1 - q)),  ln(1 + m),  ln(1 + c),  lead,  ln t,  several,  whole,  ln w,    q = (h + 5 r) / (m + 5),

where m training texts contain the name, h of these have the label, and c training texts have the label; r is the mean
of h / m over all pairs of a text and a name in it; lead, several and whole are those of `name_trie.Pairs`. For
training, the text itself is left out of m, h and c, and pairs whose label no other text has are skipped: without this
text, the label would not be trained.

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

from axml_ray.core.array_file import open_arrays, save_arrays
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.counts import Counts
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.members.featurizer import WORD_BYTES
from axml_ray.members.member import FitCosts, FitInputs, LoadInputs, MemberSpec, SparseMember
from axml_ray.members.name_trie import Pairs, Trie, build_trie, check_trie
from axml_ray.settings import Experiment, Settings
from axml_ray.settings.members import LabelNamesSettings

ABOUT = {"format": "axml-ray label names", "version": "1"}
FILE = "names.safetensors"
PRIOR = 5.0
"""Weight of the prior mean r, as a number of texts that contain the name."""
FEATURES = 8
FITTED = 100_000
"""Largest number of texts that the regression is fitted on; the counts are over all texts."""
MOST_WORDS = 1 << 22
"""Largest number of words that are searched at a time."""
LABEL_BYTES, NAME_BYTES, SEARCH_BYTES = 500, 60, 100
"""Bytes of a label in memory while the names are read, of its name in the file, and of a word that is searched."""
SEARCHED_PER_SECOND = 5.0e6
"""Words that a core searches in a second (`benchmarks/results/phases.json`)."""


class LabelNamesConfig(Settings):
    """The setting that the fitted member depends on."""

    stemmer: str | None


@dataclass(frozen=True, eq=False)
class LabelNames(SparseMember):
    """The names of labels, and the probability of a label whose name occurs in a text.

    Attributes:
        trie: trie of the names.
        named: int64 [L], m.
        true: int64 [L], h.
        counts: int64 [L], c.
        coefficients: float64 [`FEATURES` + 1], of the features, and the intercept.
    """

    trie: Trie
    named: np.ndarray
    true: np.ndarray
    counts: np.ndarray
    coefficients: np.ndarray

    config_class: ClassVar[type[Settings]] = LabelNamesConfig

    @classmethod
    def configure(cls, experiment: Experiment, settings: LabelNamesSettings) -> LabelNamesConfig:
        """Return the stemmer."""
        return LabelNamesConfig(stemmer=settings.stemmer)

    @classmethod
    def fit(cls, spec: MemberSpec, inputs: FitInputs) -> None:
        """Fit the regression on the training texts in which label names occur, and write it."""
        config, corpus = spec.config, inputs.corpus
        assert isinstance(config, LabelNamesConfig)
        trie = build_trie(corpus.labels, corpus.tokenizer, inputs.max_tokens, config.stemmer)
        train = inputs.train
        cls.of(trie, train.tokens, train.labels, corpus.trained).save(spec.directory / FILE, spec.key)

    @classmethod
    def costs(cls, experiment: Experiment, own: LabelNamesSettings, counts: Counts) -> FitCosts:
        """Estimate what the search for names in all training texts takes."""
        words = round(counts.documents * counts.tokens)
        return FitCosts(
            memory=WORD_BYTES * words + LABEL_BYTES * counts.labels + SEARCH_BYTES * min(words, MOST_WORDS),
            files=NAME_BYTES * counts.labels,
            moved=WORD_BYTES * words + NAME_BYTES * counts.labels,
            seconds=2 * words / SEARCHED_PER_SECOND,
            text_seconds=counts.tokens / SEARCHED_PER_SECOND,
        )

    @classmethod
    def of(cls, trie: Trie, tokens: Ragged, labels: Ragged, trained: int, fitted: int = FITTED) -> "LabelNames":
        """Fit on documents, the regression on at most `fitted`; labels of L (`trained`) and above are ignored."""
        own = labels.values[labels.values < trained]
        named, true = np.zeros(trained, dtype=np.int64), np.zeros(trained, dtype=np.int64)
        for rows in _steps(tokens):
            pairs = Pairs.of(trie, tokens.take(rows), trained)
            named += np.bincount(pairs.labels, minlength=trained)
            true += np.bincount(pairs.labels[pairs.true(labels.take(rows))], minlength=trained)
        member = cls(trie, named, true, np.bincount(own, minlength=trained), np.zeros(FEATURES + 1))
        rows = np.sort(np.random.default_rng(0).permutation(len(tokens))[:fitted])
        sample, sample_labels = tokens.take(rows), labels.take(rows)
        features, targets = [np.empty((0, FEATURES))], [np.empty(0, bool)]
        for rows in _steps(sample):
            pairs = Pairs.of(trie, sample.take(rows), trained)
            is_true = pairs.true(sample_labels.take(rows))
            in_other_texts = member.counts[pairs.labels] > is_true
            features.append(member._features(pairs, is_true)[in_other_texts])
            targets.append(is_true[in_other_texts])
        x, y = np.concatenate(features), np.concatenate(targets)
        if y.any() and not y.all():
            from sklearn.linear_model import LogisticRegression  # slow to import, and only fitting needs it

            regression = LogisticRegression(C=100, max_iter=1_000).fit(x, y)
            member.coefficients[:] = *regression.coef_[0], regression.intercept_[0]
        else:  # all pairs have the same target: the probability is q
            member.coefficients[0] = 1.0
        return member

    def scores_of(self, texts: TextViews) -> sparse.csr_matrix:
        """Return the probabilities of the labels whose names occur in each text, float32 CSR [N, L]."""
        return self.scores(texts.original)

    def scores(self, tokens: Ragged) -> sparse.csr_matrix:
        """Return the probability of each label whose name occurs in a text (word ids), float32 CSR [N, L]."""
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
        """Return r, kept away from 0 and 1; cached, since there may be millions of labels."""
        pairs = max(1, int(self.named.sum()))
        return min(max(int(self.true.sum()) / pairs, 0.5 / pairs), 1 - 0.5 / pairs)

    def _features(self, pairs: Pairs, is_true: np.ndarray | None = None) -> np.ndarray:
        """Return the features of pairs, float64 [P, `FEATURES`].

        `is_true`, bool [P], says whether each label is true for a training document, which is left out of its own
        counts.
        """
        self_named, own = (0, 0) if is_true is None else (1, is_true)
        named, true, counts = (each[pairs.labels] for each in (self.named, self.true, self.counts))
        q = (true - own + PRIOR * self._mean) / (named - self_named + PRIOR)
        return np.column_stack([
            np.log(q) - np.log1p(-q), np.log1p(named - self_named), np.log1p(counts - own), pairs.lead,
            np.log(pairs.times), pairs.several, pairs.whole, np.log(pairs.words),
        ])  # fmt: skip

    def save(self, path: Path, key: str) -> None:
        """Write names, counts and coefficients, atomically, with the cache key of what they depend on."""
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
            OSError, ValueError: the file is missing, is not one of this version, or has other words or labels.
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
    """Yield consecutive rows of documents, at most `MOST_WORDS` words at a time, or one document."""
    start = 0
    while start < len(tokens):
        end = int(np.searchsorted(tokens.offsets, tokens.offsets[start] + MOST_WORDS, side="right")) - 1
        end = max(end, start + 1)
        yield np.arange(start, end)
        start = end
