"""The two ends of a bundle without its trees: texts to word ids, label ids and scores to tags.

A server keeps them where requests arrive, and the trees wherever there is room.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from axml_ray.inference.bundle import Bundle
from axml_ray.inference.explain import Explanation
from axml_ray.inference.highlight import as_ansi, as_html
from axml_ray.members.topk import TopK
from axml_ray.ragged import Ragged
from axml_ray.settings import SettingsError

NEAR_LABELS, NEAR_CHARACTERS = 20_000, 100
"""Labels, and characters of an unknown one, up to which it is compared with all."""


@dataclass(frozen=True, slots=True)
class Tag:
    """A label of a text.

    Attributes:
        label: as the corpus writes it.
        name: what a person reads.
        score: weighted mean of the members' scores, 0 to 1, calibrated where the combiner does so.
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


class Codec:
    """Texts and labels of a bundle.

    Args:
        bundle: opened.
    """

    def __init__(self, bundle: Bundle):
        self.index, self.tokenizer, self.calibration = bundle.labels, bundle.tokenizer, bundle.calibration
        self.max_tokens = bundle.settings.max_tokens

    def encode(self, texts: Sequence[str]) -> Ragged:
        """Word ids of texts, as the trees take them.

        Args:
            texts: storable, see `axml_ray.corpus.records.storable`.
        """
        return self.tokenizer.encode(texts, self.max_tokens)

    def has_words(self, texts: Sequence[str]) -> np.ndarray:
        """bool [texts]: whether each text has a word, see `Tokenizer.has_words`."""
        return np.array([self.tokenizer.has_words(text) for text in texts], dtype=bool)

    @staticmethod
    def mask(ranking: TopK, has_words: np.ndarray, labels: np.ndarray | None = None) -> TopK:
        """Replace the results of texts without a word, which the members read as one unknown word.

        Args:
            ranking: of the ensemble, [texts, k].
            has_words: bool [texts].
            labels: ids that were scored, integer [k]; None if the best of all labels were asked for.

        Returns:
            The ranking, where such a text has no label, or each of the given labels in their order with score 0.
        """
        known = has_words[:, None]
        ids = np.where(known, ranking.labels, np.int32(-1) if labels is None else labels.astype(np.int32))
        return TopK(ids, np.where(known, ranking.scores, np.float32(0)))

    def decode(self, ranking: TopK, threshold: float | None = None) -> list[list[Tag]]:
        """Rankings as tags.

        Args:
            ranking: of the ensemble.
            threshold: leave out labels with a lower probability.
        """
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

    @cached_property
    def id_of(self) -> dict[str, int]:
        """The id of each label."""
        return {label: number for number, label in enumerate(self.index.labels)}

    def ids(self, labels: Sequence[str]) -> np.ndarray:
        """int64 [n]: ids of labels, each once, in their order.

        Raises:
            SettingsError: a label is unknown.
        """
        for label in labels:
            if label not in self.id_of:
                # Comparing takes a second for each 100,000 labels.
                few = len(label) <= NEAR_CHARACTERS and len(self.id_of) <= NEAR_LABELS
                near = difflib.get_close_matches(label, self.id_of, n=1) if few else []
                mend = f"did you mean {near[0]!r}?" if near else "tagger.labels, or GET /v1/labels, tells them"
                shown = label if len(label) <= NEAR_CHARACTERS else f"{label[:NEAR_CHARACTERS]}…"
                raise SettingsError(f"labels: no label is called {shown!r}; {mend}")
        return np.array([self.id_of[label] for label in dict.fromkeys(labels)], dtype=np.int64)
