"""Conversion at both ends of an ensemble: texts to word ids, and label ids with scores to tags.

A server does this in the process that receives requests, while the members may be on other machines.
"""

import difflib
import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.corpus.records.records import storable
from axml_ray.corpus.text.composition import composed_in_linear_time
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.inference.explain.explain import Explanation
from axml_ray.inference.explain.highlight import as_ansi, as_html

NEAR_LABELS, NEAR_CHARACTERS = 20_000, 100
"""Limits of the search for a similar label: number of labels, and characters of the unknown one."""


@dataclass(frozen=True, slots=True)
class Tag:
    """A label of a text."""

    label: str
    """The label as in the corpus."""
    name: str
    """Its name for display."""
    score: float
    """Weighted mean of the members' scores, 0 to 1, calibrated where the combiner does so."""
    probability: float
    """Share of correct labels among validation predictions of about this score."""
    explanation: Explanation | None = None
    """The explanation, if it was requested."""

    def ansi(self) -> str:
        """Return the explanation as text with the terminal's colour codes."""
        return as_ansi(self._require_explanation())

    def html(self) -> str:
        """Return the explanation as a fragment of HTML."""
        return as_html(self._require_explanation())

    def _require_explanation(self) -> Explanation:
        if self.explanation is None:
            raise SettingsError("explanation: the tag has none; call tag(..., explain=True)")
        return self.explanation


class Codec:
    """Converts the texts and labels of a bundle."""

    def __init__(self, bundle: Bundle):
        self.index, self.tokenizer, self.calibration = bundle.labels, bundle.tokenizer, bundle.calibration
        self.max_tokens = bundle.settings.max_tokens

    def encode(self, texts: Sequence[str]) -> Ragged:
        """Return the word ids of texts, cleaned by `axml_ray.corpus.records.records.storable`."""
        return self.tokenizer.encode(texts, self.max_tokens)

    def has_words(self, texts: Sequence[str]) -> np.ndarray:
        """Return whether each text has a word, bool [texts]; see `Tokenizer.has_words`."""
        return np.array([self.tokenizer.has_words(text) for text in texts], dtype=bool)

    @staticmethod
    def mask(ranking: TopK, has_words: np.ndarray, labels: np.ndarray | None = None) -> TopK:
        """Remove the results of texts without a word, which the members read as one unknown word.

        Args:
            ranking: ranking of the ensemble, [texts, k].
            has_words: whether each text has a word, bool [texts].
            labels: ids of the labels that were scored, integer [k]; None if all labels were ranked.

        Returns:
            The ranking, where such a text has no label, or each of the given labels in their order with score 0.
        """
        masked = ranking.of_documents(has_words)
        if labels is None:
            return masked
        return masked._replace(labels=np.where(has_words[:, None], ranking.labels, labels.astype(np.int32)))

    def decode(self, ranking: TopK, threshold: float | None = None) -> list[list[Tag]]:
        """Convert a ranking [texts, k] to the tags of each text, without labels of a probability below `threshold`."""
        ids, scores = ranking
        probabilities = self.calibration.probability(scores)
        least = 0.0 if threshold is None else threshold
        rows = zip(ids.tolist(), scores.tolist(), probabilities.tolist(), strict=True)
        return [
            [
                Tag(self.index.labels[label], self.index.names[label], score, probability)
                for label, score, probability in zip(*row, strict=True)
                if label >= 0 and probability >= least
            ]
            for row in rows
        ]

    @functools.cached_property
    def _labels(self) -> pa.Array:
        """The labels by id, for searches."""
        return pa.array(self.index.labels, pa.large_string())

    def ids(self, labels: Sequence[str], field: str = "labels") -> np.ndarray:
        """Return the ids of labels in their order, without duplicates, int64 [n]; an error names `field`.

        Raises:
            SettingsError: a label is unknown.
        """
        labels = [storable(label) for label in labels]
        forms = {label: composed_in_linear_time(label) for label in labels}
        positions = np.flatnonzero(pc.is_in(self._labels, pa.array([*forms, *forms.values()], pa.large_string())))
        id_of = dict(zip(self._labels.take(positions).to_pylist(), positions.tolist(), strict=True))
        ids: dict[int, None] = {}
        for label in labels:
            # As it is written first: the labels of a bundle that an earlier version exported need not be composed.
            number = id_of.get(label, id_of.get(forms[label]))
            if number is None:
                raise self._unknown(f"{field}: no label is called", label, self.index.labels)
            ids[number] = None
        return np.array(list(ids), dtype=np.int64)

    def ids_of_prefixes(self, prefixes: Sequence[str], field: str) -> np.ndarray:
        """Return the ids of the labels that begin with any of some prefixes, int64 [n]; `field` is as in `ids`.

        Raises:
            SettingsError: no label begins with one of them.
        """
        is_found = np.zeros(len(self.index), dtype=bool)
        for prefix in map(storable, prefixes):
            forms = [pc.starts_with(self._labels, form) for form in {prefix, composed_in_linear_time(prefix)}]
            begins = functools.reduce(pc.or_, forms).to_numpy(zero_copy_only=False)
            if not begins.any():
                known = {label[: len(prefix)] for label in self.index.labels[: NEAR_LABELS + 1]}
                raise self._unknown(f"{field}: no label begins with", prefix, known)
            is_found |= begins
        return np.flatnonzero(is_found)

    @staticmethod
    def _unknown(problem: str, label: str, known: Collection[str]) -> SettingsError:
        """Return the error for an unknown label or prefix, with the most similar known one."""
        # The comparison takes about a second for 100,000 labels.
        is_fast = len(label) <= NEAR_CHARACTERS and len(known) <= NEAR_LABELS
        near = difflib.get_close_matches(label, known, n=1) if is_fast else []
        fix = f"did you mean {near[0]!r}?" if near else "tagger.labels and GET /v1/labels list all labels"
        shown = label if len(label) <= NEAR_CHARACTERS else f"{label[:NEAR_CHARACTERS]}…"
        return SettingsError(f"{problem} {shown!r}; {fix}")
