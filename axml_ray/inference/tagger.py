"""Texts in, labels out: a bundle as a Python object.

tagger = Tagger.load("bundle")
for tag in tagger.tag(["A text about sparse matrices."])[0]:
    print(tag.name, tag.probability)
"""

import difflib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from axml_ray.corpus.records import storable
from axml_ray.inference.beam import Found
from axml_ray.inference.bundle import Bundle
from axml_ray.inference.explain import Explanation, explain
from axml_ray.inference.highlight import as_ansi, as_html
from axml_ray.memory import keep_freed_memory
from axml_ray.network.precision import use_threads
from axml_ray.ragged import Ragged
from axml_ray.settings import Precision, SettingsError

TEXTS = 4_096
"""Texts that are tokenised at a time."""


@dataclass(frozen=True, slots=True)
class Tag:
    """A label of a text.

    Attributes:
        label: as the corpus writes it.
        name: what a person reads.
        score: of the trees, summed as in the paper; 0 to the number of trees.
        probability: share of validation predictions of about this score that were right.
        explanation: why, if it was asked for.
    """

    label: str
    name: str
    score: float
    probability: float
    explanation: Explanation | None = None

    def ansi(self) -> str:
        """The explanation with a terminal's colours."""
        return as_ansi(self._explained())

    def html(self) -> str:
        """The explanation as a fragment of HTML."""
        return as_html(self._explained())

    def _explained(self) -> Explanation:
        if self.explanation is None:
            raise SettingsError("explanation: not asked for; call tag(..., explain=True)")
        return self.explanation


class Tagger:
    """Labels for texts. Any number of threads may use one tagger; they take turns, as each turn uses all cores.

    Example:
        >>> tagger = Tagger.load("bundle")
        >>> [[first, *_], *_] = tagger.tag(["solve a sparse linear system", "read a table from a file"], top_k=3)
        >>> 0 <= first.probability <= 1 and first.label in tagger.labels
        True
        >>> sure = tagger.tag(["solve a sparse linear system"], top_k=3, threshold=tagger.threshold(count=2))
        >>> len(sure[0]) <= 3
        True

    Args:
        bundle: opened.
        precision: of matrix products; by default as the run was trained.
    """

    def __init__(self, bundle: Bundle, precision: Precision | None = None):
        self.bundle = bundle
        self.ensemble = bundle.ensemble(precision)
        self.index, self.tokenizer, self.calibration = bundle.labels, bundle.tokenizer, bundle.calibration
        self._turn = threading.Lock()

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        precision: Precision | None = None,
        threads: int | None = None,
        verify: bool = True,
    ) -> "Tagger":
        """Open a bundle that `jobs/export_bundle.py` wrote.

        Args:
            path: its directory.
            precision: of matrix products; by default as the run was trained.
            threads: of PyTorch in this process; by default as they are.
            verify: compare checksums. False where another process of this machine has.

        Raises:
            BundleError: there is no bundle, or it is of another version, incomplete or changed.
        """
        if threads:
            use_threads(threads)
        else:
            keep_freed_memory()
        return cls(Bundle.open(path, verify=verify), precision)

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels that can be given, the most frequent of training first."""
        return self.index.labels

    def tag(
        self,
        texts: Sequence[str],
        top_k: int = 5,
        explain: bool = False,
        threshold: float | None = None,
        labels: Sequence[str] | None = None,
    ) -> list[list[Tag]]:
        """The best labels of each text, best first.

        Args:
            texts: of any length; what is beyond the words that training read is not read.
            top_k: labels a text, at most; at most as many as the run's `ensemble.top_labels` are found.
            explain: also say which words each label looked at, tree by tree. Costs about another text a tag.
            threshold: leave out labels with a lower score, see `threshold`.
            labels: score these alone and give all of them back, whatever `top_k` is. A label that beam search would
                have passed over has a score here too.

        Raises:
            TypeError: texts or labels are not sequences of strings.
            SettingsError: a label is unknown, or there is nothing to explain with.
        """
        _check_strings("texts", texts)
        if not isinstance(top_k, int) or top_k < 1:
            raise SettingsError(f"top_k: expected a whole number above 0 (given: {top_k!r})")
        wanted = None if labels is None else self._ids(labels)
        found: list[list[Tag]] = []
        for start in range(0, len(texts), TEXTS):
            some = [storable(text) for text in texts[start : start + TEXTS]]
            tokens = self.encode(some)
            with self._turn:
                if wanted is None:
                    best = tuple(part[:, :top_k] for part in self.ensemble.predict(tokens)[0])
                else:
                    best = _ranked(wanted, self.ensemble.score(tokens, wanted))
            ids, scores = best
            rows = self.tags((ids, scores), threshold)
            found += [self._explained(text, row) for text, row in zip(some, rows, strict=True)] if explain else rows
        return found

    def encode(self, texts: Sequence[str]) -> Ragged:
        """Word ids of texts, as the trees take them; for servers that hold trees elsewhere.

        Args:
            texts: storable, see `axml_ray.corpus.records.storable`.
        """
        return self.tokenizer.encode(texts, self.bundle.settings.max_tokens)

    def tags(self, found: Found, threshold: float | None = None) -> list[list[Tag]]:
        """Rankings as tags.

        Args:
            found: label ids and scores, as `combine` gives them.
            threshold: least score.
        """
        ids, scores = found
        probabilities = self.calibration.probability(scores)
        least = -np.inf if threshold is None else threshold
        rows = zip(ids.tolist(), scores.tolist(), probabilities.tolist(), strict=True)
        return [
            [
                Tag(self.index.labels[label], self.index.names[label], score, probability)
                for label, score, probability in zip(*row, strict=True)
                if label >= 0 and score >= least
            ]
            for row in rows
        ]

    def threshold(self, *, precision: float | None = None, count: float | None = None) -> float:
        """The least score, for `tag`, with which labels are right, or as many, as asked for on validation.

        Args:
            precision: share of the labels given that should be true, 0 to 1; such as 0.8.
            count: labels a text, on average.

        Raises:
            SettingsError: not exactly one of them is given, or validation never reached it.
        """
        return self.calibration.threshold(precision=precision, count=count)

    def _explained(self, text: str, tags: list[Tag]) -> list[Tag]:
        ids = [self._id_of[tag.label] for tag in tags]
        with self._turn:
            why = explain(self.ensemble.trees, self.tokenizer, self.index, text, ids, self.bundle.settings.max_tokens)
        return [Tag(tag.label, tag.name, tag.score, tag.probability, one) for tag, one in zip(tags, why, strict=True)]

    @cached_property
    def _id_of(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.index.labels)}

    def _ids(self, labels: Sequence[str]) -> np.ndarray:
        _check_strings("labels", labels)
        for label in labels:
            if label not in self._id_of:
                near = difflib.get_close_matches(label, self._id_of, n=1)
                mend = f"did you mean {near[0]!r}?" if near else "tagger.labels lists all"
                raise SettingsError(f"labels: no label is called {label!r}; {mend}")
        return np.array([self._id_of[label] for label in dict.fromkeys(labels)], dtype=np.int64)


def _ranked(labels: np.ndarray, scores: np.ndarray) -> Found:
    order = np.argsort(-scores, axis=1, kind="stable")
    return labels[order].astype(np.int32), np.take_along_axis(scores, order, 1)


def _check_strings(what: str, values: Sequence[str]) -> None:
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{what}: expected a list of strings, as in tag(['one text', 'another'])")
