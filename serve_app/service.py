"""From texts to tags, with the trees somewhere else: what the HTTP API calls."""

import asyncio
import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from axml_ray import __version__
from axml_ray.corpus.json_lines import JsonLines
from axml_ray.corpus.records import Fields, Rejection, storable
from axml_ray.inference.bundle import Bundle
from axml_ray.inference.codec import Codec, Tag, ranked
from axml_ray.inference.combining import Found
from axml_ray.inference.explain import NOTHING_TO_EXPLAIN, Step, assembled
from axml_ray.ragged import Ragged
from axml_ray.settings import SettingsError
from serve_app.batching import Batcher
from serve_app.edition import Edition, EditionError
from serve_app.fan_out import FanOut
from serve_app.serving import Serving

OPEN_S = 60.0
"""How long the trees may take to open a bundle before requests are answered from it."""
DRAIN_PAUSE_S = 0.05
"""Between looks whether requests are still under way."""
INLINE_CHARACTERS = 20_000
"""Texts of fewer characters are tokenised at once; more would keep other requests waiting."""

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True)
class Front:
    """What the ingress holds of a bundle.

    Attributes:
        edition: of the bundle.
        bundle: opened.
        codec: its texts and labels.
    """

    edition: Edition
    bundle: Bundle
    codec: Codec

    @classmethod
    def open(cls, edition: Edition) -> "Front":
        """Read it from the bundle.

        Raises:
            BundleError: the bundle can't be used.
        """
        bundle = edition.open()
        return cls(edition, bundle, Codec(bundle))

    @property
    def description(self) -> dict[str, Any]:
        """What `GET /v1/model` says of the bundle."""
        manifest, settings = self.bundle.manifest, self.bundle.settings
        return {
            "name": settings.name,
            "edition": self.edition.name,
            "axml_ray": __version__,
            "labels": manifest.labels,
            "words": manifest.words,
            "trees": self.bundle.trees,
            "level_sizes": manifest.level_sizes,
            "weights": manifest.weights,
            "max_tokens": settings.max_tokens,
            "top_labels": settings.top_labels,
            "network": settings.network.kind,
        }

    @cached_property
    def names(self) -> pa.Array:
        """The labels' names, to search in."""
        return pa.array(self.codec.index.names, pa.large_string())

    def search(self, query: str, limit: int) -> list[dict[str, Any]]:
        """Labels whose name holds the words of a query, whatever their case; the most frequent first.

        Args:
            query: words, in any order; all labels for none.
            limit: of labels.
        """
        hits = np.ones(len(self.names), dtype=bool)
        for word in query.split():
            hits &= pc.match_substring(self.names, word, ignore_case=True).to_numpy(zero_copy_only=False)
        index = self.codec.index  # ids are ranked by frequency
        return [
            {"label": index.labels[one], "name": index.names[one], "documents": int(index.counts[one])}
            for one in np.flatnonzero(hits)[:limit].tolist()
        ]


@dataclass(frozen=True)
class Tagged:
    """What the trees said of some texts.

    Attributes:
        tags: of each text, best first.
        words: int64 [texts], words that were read.
        trees_used: how many trees answered.
        front: of the bundle.
    """

    tags: list[list[Tag]]
    words: np.ndarray
    trees_used: int
    front: Front


@dataclass(frozen=True, slots=True)
class Question:
    """What the trees are asked about some texts.

    Attributes:
        front: of the bundle that is to answer.
        tokens: of the texts.
        labels: ids to be scored alone; None for the best of all.
    """

    front: Front
    tokens: Ragged
    labels: tuple[int, ...] | None

    @property
    def kind(self) -> Hashable:
        """Questions of one kind can be asked together."""
        return self.front.edition, self.labels


@dataclass(frozen=True, slots=True)
class Why:
    """What the trees are asked about some labels of a text; fields as of `Trees.explain`."""

    front: Front
    words: np.ndarray
    real: int
    labels: list[int]


class Service:
    """Tags texts. Whatever the trees are asked waits in a queue whose length is limited.

    Args:
        serving: settings.
        fan_out: the trees.
    """

    def __init__(self, serving: Serving, fan_out: FanOut):
        self.serving, self.fan_out = serving, fan_out
        at_once, waiting = serving.most_batches, serving.waiting_texts
        self._rankings: Batcher[Question, tuple[Found, int]] = Batcher(
            self._rank, serving.batch_words, at_once, waiting
        )
        self._reasons: Batcher[Why, list[list[tuple[Step, ...]]]] = Batcher(self._paths, 1, at_once, waiting)
        self.examples = read_examples(serving.examples) if serving.examples else []
        self.draining = False
        """New requests are refused: the server is about to end."""
        self.under_way = 0
        """Requests that have no answer yet."""
        self._front: Front | None = None

    @property
    def front(self) -> Front:
        """Of the bundle that new requests are answered from."""
        assert self._front is not None
        return self._front

    @property
    def waiting_texts(self) -> int:
        """Texts that wait for the trees."""
        return self._rankings.texts + self._reasons.texts

    async def use(self, edition: Edition) -> None:
        """Answer new requests from a bundle. Requests under way are answered from the one they began with.

        A bundle that can't be used is refused as long as there is another: its reason is logged.

        Raises:
            SettingsError, EditionError: it can't be used, and there is no other.
        """
        if self._front and self._front.edition == edition:
            return
        try:
            front = await asyncio.to_thread(Front.open, edition)
            await self.fan_out.open(edition, OPEN_S)
        except (SettingsError, EditionError) as error:
            if not self._front:
                raise
            logger.error("the bundle stays as it is: %s", error)
            return
        self._front = front
        logger.info("answering from %s (%s)", edition.directory, edition.name)

    async def tag(
        self,
        texts: Sequence[str],
        top_k: int = 5,
        explain: bool = False,
        threshold: float | None = None,
        labels: Sequence[str] | None = None,
    ) -> Tagged:
        """The best labels of each text, as `Tagger.tag` gives them.

        Args:
            texts: to tag.
            top_k: labels a text, at most.
            explain: also say which words each label looked at.
            threshold: leave out labels with a lower probability.
            labels: score these alone, and give all of them back.

        Raises:
            SettingsError: a label is unknown, there is nothing to explain with, or too much.
            Busy: too many texts wait.
        """
        front, some = self.front, [storable(text) for text in texts]
        if explain:
            each = min(top_k, front.bundle.settings.top_labels) if labels is None else len(labels)
            self._check_explanations(front, len(some) * each)
        wanted = None if labels is None else tuple((await asyncio.to_thread(front.codec.ids, labels)).tolist())
        long = sum(map(len, some)) > INLINE_CHARACTERS
        tokens = await asyncio.to_thread(front.codec.encode, some) if long else front.codec.encode(some)
        question = Question(front, tokens, wanted)
        found, used = await self._rankings.submit(question, question.kind, len(some), len(tokens.values))
        has_words = front.codec.has_words(some)
        ids, scores = front.codec.mask(found, has_words, None if wanted is None else np.array(wanted))
        shown = top_k if wanted is None else len(wanted)
        # Probabilities were fitted to the scores of all trees.
        full = np.float32(front.bundle.trees / used)
        tags = front.codec.decode((ids[:, :shown], scores[:, :shown] * full), threshold)
        if explain:
            tags = [await self._explained(front, text, row) for text, row in zip(some, tags, strict=True)]
        return Tagged(tags, np.where(has_words, tokens.lengths, 0), used, front)

    def _check_explanations(self, front: Front, labels: int) -> None:
        if front.bundle.settings.network.kind != "attention":
            raise SettingsError(NOTHING_TO_EXPLAIN)
        if labels > self.serving.max_explanations:
            most = f"at most {self.serving.max_explanations:,} are explained a request"
            raise SettingsError(f"explain: {labels:,} labels of all texts; {most}: ask for fewer texts or labels")

    async def _rank(self, questions: list[Question]) -> list[tuple[Found, int]]:
        """The rankings that questions of one kind ask for, and how many trees they are of."""
        front, wanted = questions[0].front, questions[0].labels
        tokens, votes = Ragged.concatenate([question.tokens for question in questions]), front.bundle.votes
        if wanted is None:
            of_trees = await self.fan_out.ask("find", front.edition, tokens)
            labels, scores = await asyncio.to_thread(votes.ranking, of_trees)
        else:
            ids = np.array(wanted)
            of_trees = await self.fan_out.ask("score", front.edition, tokens, ids)
            labels, scores = ranked(ids, votes.scores(ids, of_trees))
        ends = np.cumsum([len(question.tokens) for question in questions])[:-1]
        parts = zip(np.split(labels, ends), np.split(scores, ends), strict=True)
        return [(part, len(of_trees)) for part in parts]

    async def _explained(self, front: Front, text: str, tags: list[Tag]) -> list[Tag]:
        codec, ids = front.codec, [front.codec.id_of[tag.label] for tag in tags]
        words, spans = codec.tokenizer.encode_with_spans(text, codec.max_tokens)
        of_trees = await self._reasons.submit(Why(front, words, len(spans), ids), None, 1, len(words))
        why = assembled(text, spans, ids, codec.index, of_trees)
        return [replace(tag, explanation=one) for tag, one in zip(tags, why, strict=True)]

    async def _paths(self, whys: list[Why]) -> list[list[list[tuple[Step, ...]]]]:
        """What each tree says of each text, one after the other: texts aren't explained together."""
        return [await self.fan_out.ask("explain", why.front.edition, why.words, why.real, why.labels) for why in whys]

    async def drain(self) -> bool:
        """Refuse new requests from now on, and wait for those under way; returns whether there were any."""
        self.draining, waited = True, False
        while self.under_way:
            waited = True
            await asyncio.sleep(DRAIN_PAUSE_S)
        return waited

    async def ready(self) -> int:
        """How many trees answer."""
        return await self.fan_out.ready(self.front.edition)


def read_examples(path: Path) -> list[str]:
    """The texts of a file of JSON lines.

    Raises:
        SettingsError: it can't be read, or a line has no `text`.
    """
    texts = []
    try:
        for one in JsonLines(path, Fields(labelled=False)).read():
            if isinstance(one, Rejection):
                raise SettingsError(f"examples: {path}:{one.line}: {one.reason}")
            texts.append(one.text)
    except OSError as error:
        raise SettingsError(f"examples: {path} cannot be read ({error.strerror})") from None
    return texts
