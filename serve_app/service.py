"""From texts to tags, with the members in other deployments: what the HTTP API calls."""

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
from axml_ray.ensemble import Contribution
from axml_ray.inference.bundle import Bundle
from axml_ray.inference.codec import Codec, Tag
from axml_ray.inference.explain import assemble
from axml_ray.members.explanation import TreePath
from axml_ray.members.topk import TopK, rank_given
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
        manifest, settings, members = self.bundle.manifest, self.bundle.settings, self.bundle.combination.members
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
            "members": [{"name": each.title, "kind": each.kind, "weight": each.weight} for each in members],
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
        members_used: names of the members that answered.
        front: of the bundle.
    """

    tags: list[list[Tag]]
    words: np.ndarray
    members_used: tuple[str, ...]
    front: Front


@dataclass(frozen=True, slots=True)
class Question:
    """Texts to be ranked.

    Attributes:
        front: of the bundle that is to answer.
        tokens: of the texts.
        labels: ids to be scored alone; None for the best of all.
        explained: labels of each text whose contributions are wanted.
    """

    front: Front
    tokens: Ragged
    labels: tuple[int, ...] | None
    explained: int = 0

    @property
    def kind(self) -> Hashable:
        """Questions of one kind can be answered together."""
        return self.front.edition, self.labels, self.explained


@dataclass(frozen=True, slots=True)
class Answer:
    """What the members and the combiner make of a question.

    Attributes:
        ranking: of the ensemble.
        members_used: names of the members that answered.
        contributions: to the first `explained` labels of each text.
    """

    ranking: TopK
    members_used: tuple[str, ...]
    contributions: list[list[tuple[Contribution, ...]]]


@dataclass(frozen=True, slots=True)
class PathQuestion:
    """Labels of a text whose paths are wanted; fields as of `Members.explain`."""

    front: Front
    words: np.ndarray
    real: int
    labels: list[int]


class Service:
    """Tags texts. Calls to the members wait in a queue whose length is limited.

    Args:
        serving: settings.
        fan_out: the deployments of the members.
    """

    def __init__(self, serving: Serving, fan_out: FanOut):
        self.serving, self.fan_out = serving, fan_out
        at_once, waiting = serving.most_batches, serving.waiting_texts
        self._rankings: Batcher[Question, Answer] = Batcher(self._rank, serving.batch_words, at_once, waiting)
        self._reasons: Batcher[PathQuestion, dict[str, list[TreePath] | None]] = Batcher(
            self._paths, 1, at_once, waiting
        )
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
            explain: also return each member's contribution and the words that each label attended to.
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
        shown = top_k if wanted is None else len(wanted)
        question = Question(front, tokens, wanted, shown if explain else 0)
        answer = await self._rankings.submit(question, question.kind, len(some), len(tokens.values))
        has_words = front.codec.has_words(some)
        ids, scores = front.codec.mask(answer.ranking, has_words, None if wanted is None else np.array(wanted))
        tags = front.codec.decode(TopK(ids[:, :shown], scores[:, :shown]), threshold)
        if explain:
            ready = zip(some, tags, answer.contributions, strict=True)
            tags = [await self._explained(front, *each) for each in ready]
        return Tagged(tags, np.where(has_words, tokens.lengths, 0), answer.members_used, front)

    def _check_explanations(self, front: Front, labels: int) -> None:
        if labels > self.serving.max_explanations:
            most = f"at most {self.serving.max_explanations:,} are explained a request"
            raise SettingsError(f"explain: {labels:,} labels of all texts; {most}: ask for fewer texts or labels")

    async def _rank(self, questions: list[Question]) -> list[Answer]:
        """The answers to questions of one kind."""
        front, wanted, explained = questions[0].front, questions[0].labels, questions[0].explained
        tokens, combination = Ragged.concatenate([question.tokens for question in questions]), front.bundle.combination
        if wanted is None:
            rankings = await self.fan_out.call("rank", front.edition, tokens)
            ranking = await asyncio.to_thread(combination.rank, rankings)
        else:
            ids = np.array(wanted)
            scores = await self.fan_out.call("score", front.edition, tokens, ids)
            ranking = rank_given(ids, combination.score(ids, scores))
            given = np.broadcast_to(ids.astype(np.int32), ranking.labels.shape)
            rankings = {name: TopK(given, each) for name, each in scores.items()}
        contributions: list[list[tuple[Contribution, ...]]] = [[] for _ in range(len(tokens))]
        if explained:
            contributions = combination.contributions(ranking.labels[:, :explained], rankings)
        used = tuple(member.name for member in combination.members if member.name in rankings)
        answers, start = [], 0
        for question in questions:
            rows = slice(start, start + len(question.tokens))
            start = rows.stop
            answers.append(Answer(TopK(*(part[rows] for part in ranking)), used, contributions[rows]))
        return answers

    async def _explained(
        self, front: Front, text: str, tags: list[Tag], contributions: list[tuple[Contribution, ...]]
    ) -> list[Tag]:
        codec, ids = front.codec, [front.codec.id_of[tag.label] for tag in tags]
        words, spans = codec.tokenizer.encode_with_spans(text, codec.max_tokens)
        paths = await self._reasons.submit(PathQuestion(front, words, len(spans), ids), None, 1, len(words))
        found = {name: each for name, each in paths.items() if each is not None}
        members = front.bundle.combination.members
        # A threshold leaves out the last labels, so the first contributions are those of the tags.
        why = assemble(text, spans, ids, codec.index, members, contributions[: len(ids)], found)
        return [replace(tag, explanation=one) for tag, one in zip(tags, why, strict=True)]

    async def _paths(self, questions: list[PathQuestion]) -> list[dict[str, list[TreePath] | None]]:
        """The paths of each text's labels, one text after the other: texts are not explained together."""
        return [
            await self.fan_out.call("explain", each.front.edition, each.words, each.real, each.labels)
            for each in questions
        ]

    async def drain(self) -> bool:
        """Refuse new requests from now on, and wait for those under way; returns whether there were any."""
        self.draining, waited = True, False
        while self.under_way:
            waited = True
            await asyncio.sleep(DRAIN_PAUSE_S)
        return waited

    async def ready(self) -> list[str]:
        """Names of the members that answer."""
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
