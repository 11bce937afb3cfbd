"""Texts in, labels out: a bundle as a Python object.

tagger = Tagger.load("bundle")
for tag in tagger.tag(["A text about sparse matrices."])[0]:
    print(tag.name, tag.probability)
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from axml_ray.corpus.records import storable
from axml_ray.inference.bundle import Bundle
from axml_ray.inference.codec import Codec, Tag
from axml_ray.inference.explain import explain
from axml_ray.members.topk import TopK, rank_given
from axml_ray.network.precision import keep_memory, use_threads
from axml_ray.settings import Precision, SettingsError

__all__ = ["Tag", "Tagger"]

TEXTS = 4_096
"""Texts that are tokenised at a time."""


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
        if not isinstance(bundle, Bundle):
            raise TypeError(f"Tagger takes an opened bundle; to open a directory, call Tagger.load({bundle!r})")
        self.bundle = bundle
        self.ensemble = bundle.ensemble(precision)
        self.codec = Codec(bundle)
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
            keep_memory()
        return cls(Bundle.open(path, verify=verify), precision)

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels that can be given, the most frequent of training first."""
        return self.codec.index.labels

    def tag(
        self,
        texts: Sequence[str],
        top_k: int = 5,
        explain: bool = False,
        threshold: float | None = None,
        labels: Sequence[str] | None = None,
    ) -> list[list[Tag]]:
        """The best labels of each text, best first. A text without a word, such as an empty one, has none.

        Args:
            texts: of any length; what is beyond the words that training read is not read.
            top_k: labels a text, at most; at most as many as the run's `ensemble.top_labels` are found.
            explain: also return which members decided and which words each label attended to. Costs about another text
                a tag.
            threshold: leave out labels with a lower probability, 0 to 1; see `threshold`.
            labels: score these alone and give all of them back, whatever `top_k` is. A label that beam search would
                have passed over has a score here too. For a text without a word each has score 0.

        Raises:
            TypeError: texts or labels are not sequences of strings.
            SettingsError: a label is unknown, or `top_k` or `threshold` is out of range.
        """
        _check_strings("texts", texts)
        if not isinstance(top_k, int) or top_k < 1:
            raise SettingsError(f"top_k: expected a whole number above 0 (given: {top_k!r})")
        if threshold is not None and not 0 <= threshold <= 1:
            raise SettingsError(f"threshold: expected a probability, 0 to 1 (given: {threshold!r})")
        wanted = None
        if labels is not None:
            _check_strings("labels", labels)
            wanted = self.codec.ids(labels)
        found: list[list[Tag]] = []
        for start in range(0, len(texts), TEXTS):
            some = [storable(text) for text in texts[start : start + TEXTS]]
            tokens = self.codec.encode(some)
            with self._turn:
                if wanted is None:
                    ids, scores = self.ensemble.rank(tokens)
                    best = TopK(ids[:, :top_k], scores[:, :top_k])
                else:
                    best = rank_given(wanted, self.ensemble.score(tokens, wanted))
            rows = self.codec.decode(self.codec.mask(best, self.codec.has_words(some), wanted), threshold)
            found += [self._explained(text, row) for text, row in zip(some, rows, strict=True)] if explain else rows
        return found

    def threshold(self, *, precision: float | None = None, count: float | None = None) -> float:
        """The lowest probability, for `tag`, so that its labels were as precise, or as many, on validation.

        Args:
            precision: share of all labels returned that should be true, 0 to 1; such as 0.8. The least probable of
                them are true less often, as the others make up for it, so the threshold is mostly lower than this.
            count: labels a text, on average.

        Raises:
            SettingsError: not exactly one of them is given, or validation never reached it.
        """
        return self.codec.calibration.threshold(precision=precision, count=count)

    def _explained(self, text: str, tags: list[Tag]) -> list[Tag]:
        codec, ids = self.codec, [self.codec.id_of[tag.label] for tag in tags]
        with self._turn:
            why = explain(self.ensemble, codec.tokenizer, codec.index, text, ids, codec.max_tokens)
        return [replace(tag, explanation=one) for tag, one in zip(tags, why, strict=True)]


def _check_strings(what: str, values: Sequence[str]) -> None:
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{what}: expected a list of strings, as in tag(['one text', 'another'])")
