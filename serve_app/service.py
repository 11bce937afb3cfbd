"""The service behind the HTTP API: it tags texts by calling the deployments of members and combining their scores."""

import asyncio
import functools
import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from axml_ray import __version__
from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.readers.json_lines import JsonLines
from axml_ray.corpus.records.records import Fields, Rejection, storable
from axml_ray.corpus.text.composition import composed
from axml_ray.ensemble.ensemble import Contribution
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.inference.explain.codec import Codec, Tag
from axml_ray.inference.explain.conditions import AllowedLabels
from axml_ray.inference.explain.explain import assemble
from axml_ray.members.explanation import TreePath
from axml_ray.members.topk import TopK, rank_given
from axml_ray.settings import LabelConditions
from serve_app.batching import Batcher
from serve_app.edition import Edition, EditionError, exclude_from_collections
from serve_app.fan_out import FanOut
from serve_app.settings import MAX_EXPLANATIONS, ServingSettings

OPEN_S = 60.0
"""Seconds that the members may take to open a bundle before requests are answered from it."""
DRAIN_PAUSE_S = 0.05
"""Seconds between checks whether requests are still in flight."""
BATCH_WORDS = 1 << 13
"""Largest number of words in a batch; a larger request is a batch of its own."""
INLINE_CHARACTERS = 20_000
"""Longer texts are tokenised in a thread, as they would block other requests."""

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True)
class ServedBundle:
    """The parts of a bundle that the ingress needs.

    Attributes:
        edition: edition of the bundle.
        bundle: the opened bundle.
        codec: conversion of its texts and labels.
    """

    edition: Edition
    bundle: Bundle
    codec: Codec

    @classmethod
    def open(cls, edition: Edition) -> "ServedBundle":
        """Open an edition.

        Raises:
            SettingsError: the bundle cannot be used, or was replaced.
        """
        bundle = edition.open()
        return cls(edition, bundle, Codec(bundle))

    @property
    def description(self) -> dict[str, Any]:
        """The description of the bundle that `GET /v1/model` returns."""
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

    @functools.cached_property
    def names(self) -> pa.Array:
        """The names of all labels, by id."""
        return pa.array(self.codec.index.names, pa.large_string())

    def search(self, query: str, limit: int) -> list[dict[str, Any]]:
        """Return the labels whose names contain all words of a query, ignoring case; the most frequent first.

        Args:
            query: words in any order; an empty query matches all labels.
            limit: largest number of labels.
        """
        hits = np.ones(len(self.names), dtype=bool)
        for word in query.split():
            forms = [pc.match_substring(self.names, form, ignore_case=True) for form in {word, composed(word)}]
            hits &= functools.reduce(pc.or_, forms).to_numpy(zero_copy_only=False)
        index = self.codec.index
        return [
            {"label": index.labels[one], "name": index.names[one], "documents": int(index.counts[one])}
            for one in index.by_frequency(np.flatnonzero(hits))[:limit]
        ]


@dataclass(frozen=True)
class TagResult:
    """The tags of some texts.

    Attributes:
        tags: tags of each text, best first.
        words: number of words read of each text, int64 [texts].
        members_used: names of the members that answered.
        served: the bundle that answered.
    """

    tags: list[list[Tag]]
    words: np.ndarray
    members_used: tuple[str, ...]
    served: ServedBundle


@dataclass(frozen=True, slots=True)
class RankRequest:
    """Texts whose labels are to be ranked.

    Attributes:
        served: the bundle that must answer.
        tokens: word ids of the texts.
        labels: ids of the only labels to be scored; None ranks labels.
        allowed: whether each label may be ranked, bool [L]; None allows all.
        conditions: the conditions that `allowed` meets, or `labels`.
        explained: number of first labels of each text whose contributions are returned.
    """

    served: ServedBundle
    tokens: Ragged
    labels: tuple[int, ...] | None = None
    allowed: np.ndarray | None = None
    conditions: LabelConditions | None = None
    explained: int = 0

    @property
    def kind(self) -> Hashable:
        """The key of the requests that can share a batch."""
        return self.served.edition, self.labels, self.conditions, self.explained


@dataclass(frozen=True, slots=True)
class RankResult:
    """The ensemble's ranking of a request.

    Attributes:
        ranking: ranking of the ensemble, [texts, k].
        members_used: names of the members that answered.
        contributions: contributions to the first `explained` labels of each text.
    """

    ranking: TopK
    members_used: tuple[str, ...]
    contributions: list[list[tuple[Contribution, ...]]]


@dataclass(frozen=True, slots=True)
class PathRequest:
    """Labels of a text whose tree paths are required; the fields are the arguments of `Members.explain`."""

    served: ServedBundle
    words: np.ndarray
    real: int
    labels: list[int]


class Service:
    """Tags texts; calls to the members go through queues of limited length.

    Args:
        serving: settings of the server.
        fan_out: the deployments of the members.
    """

    def __init__(self, serving: ServingSettings, fan_out: FanOut):
        self.serving, self.fan_out = serving, fan_out
        at_once = serving.max_inflight_batches * (serving.max_replicas or serving.replicas)
        waiting = serving.max_queued_texts
        self._rank_batcher: Batcher[RankRequest, RankResult] = Batcher(self._rank, BATCH_WORDS, at_once, waiting)
        self._path_batcher: Batcher[PathRequest, dict[str, list[TreePath] | None]] = Batcher(
            self._paths, 1, at_once, waiting
        )
        self.examples = read_examples(serving.examples) if serving.examples else []
        self.draining = False
        """Whether new requests are refused because the server is shutting down."""
        self.in_flight = 0
        """Number of requests in flight."""
        self._served: ServedBundle | None = None

    @property
    def served(self) -> ServedBundle:
        """The bundle from which new requests are answered."""
        assert self._served is not None
        return self._served

    @property
    def queued_texts(self) -> int:
        """The number of texts in the queues for the members."""
        return self._rank_batcher.texts + self._path_batcher.texts

    async def use(self, edition: Edition) -> None:
        """Answer new requests from a bundle; requests in flight are answered from the one they started with.

        If the bundle is unusable and there is a previous one, that stays in use and the error is logged.

        Raises:
            SettingsError, EditionError: the bundle is unusable, and there is no previous one.
        """
        if self._served and self._served.edition == edition:
            return
        try:
            served = await asyncio.to_thread(ServedBundle.open, edition)
            await self.fan_out.open(edition, OPEN_S)
        except (SettingsError, EditionError) as error:
            if not self._served:
                raise
            logger.error("keeping the previous bundle: %s", error)
            return
        self._served = served
        exclude_from_collections()
        logger.info("answering from %s (%s)", edition.directory, edition.name)

    async def tag(
        self,
        texts: Sequence[str],
        top_k: int = 5,
        explain: bool = False,
        threshold: float | None = None,
        labels: Sequence[str] | None = None,
        conditions: LabelConditions | None = None,
    ) -> TagResult:
        """Return the best labels of each text, as `Tagger.tag` does.

        Args:
            texts: the texts.
            top_k: largest number of labels of a text.
            explain: also return each member's contribution and the words that each label attends to.
            threshold: omit labels with a lower probability.
            labels: score these labels only, and return all of them.
            conditions: which labels are allowed or excluded; not with `labels`.

        Raises:
            SettingsError: a label or prefix is unknown, or more explanations are requested than the limit allows.
            Busy: the queue is full.
        """
        served, some = self.served, [storable(text) for text in texts]
        shown = min(top_k, served.bundle.settings.top_labels) if labels is None else len(labels)
        if explain and (explained := len(some) * shown) > MAX_EXPLANATIONS:
            raise SettingsError(
                f"explain: {explained:,} labels of all texts; at most {MAX_EXPLANATIONS:,} are explained per request: "
                "send fewer texts or labels"
            )
        label_ids = None if labels is None else await asyncio.to_thread(served.codec.ids, labels)
        allowed = None
        if conditions is not None:
            allowed = await asyncio.to_thread(AllowedLabels.of, conditions, served.codec)
        long = sum(map(len, some)) > INLINE_CHARACTERS
        tokens = await asyncio.to_thread(served.codec.encode, some) if long else served.codec.encode(some)
        if label_ids is not None:
            shown = len(label_ids)  # without duplicates
        scored = label_ids if allowed is None else allowed.scored
        request = RankRequest(
            served,
            tokens,
            labels=None if scored is None else tuple(scored.tolist()),
            allowed=None if allowed is None or scored is not None else allowed.mask,
            conditions=conditions,
            explained=shown if explain else 0,
        )
        result = await self._rank_batcher.submit(request, request.kind, len(some), len(tokens.values))
        has_words = served.codec.has_words(some)
        ids, scores = served.codec.mask(result.ranking, has_words, label_ids)
        tags = served.codec.decode(TopK(ids[:, :shown], scores[:, :shown]), threshold)
        if explain:
            ready = zip(some, tags, result.contributions, strict=True)
            tags = [await self._explained(served, *each) for each in ready]
        return TagResult(tags, np.where(has_words, tokens.lengths, 0), result.members_used, served)

    async def _rank(self, requests: list[RankRequest]) -> list[RankResult]:
        """Return the results of a batch of requests of one kind, each with its rows of the joint ranking."""
        served, label_ids, explained = requests[0].served, requests[0].labels, requests[0].explained
        tokens, combination = Ragged.concatenate([request.tokens for request in requests]), served.bundle.combination
        if label_ids is None:
            rankings = await self.fan_out.call("rank", served.edition, tokens)
            ranking = await asyncio.to_thread(combination.rank, rankings, requests[0].allowed)
        else:
            ids = np.array(label_ids)
            scores = await self.fan_out.call("score", served.edition, tokens, ids)
            ranking = rank_given(ids, combination.score(ids, scores))
            all_ids = np.broadcast_to(ids.astype(np.int32), ranking.labels.shape)
            rankings = {name: TopK(all_ids, each) for name, each in scores.items()}
        contributions: list[list[tuple[Contribution, ...]]] = [[] for _ in range(len(tokens))]
        if explained:
            contributions = combination.contributions(ranking.labels[:, :explained], rankings)
        used = tuple(member.name for member in combination.members if member.name in rankings)
        results, start = [], 0
        for request in requests:
            rows = slice(start, start + len(request.tokens))
            start = rows.stop
            results.append(RankResult(TopK(*(part[rows] for part in ranking)), used, contributions[rows]))
        return results

    async def _explained(
        self, served: ServedBundle, text: str, tags: list[Tag], contributions: list[tuple[Contribution, ...]]
    ) -> list[Tag]:
        """Return a text's tags with their explanations."""
        codec, ids = served.codec, [served.codec.id_of[tag.label] for tag in tags]
        words, spans = codec.tokenizer.encode_with_spans(text, codec.max_tokens)
        paths = await self._path_batcher.submit(PathRequest(served, words, len(spans), ids), None, 1, len(words))
        known_paths = {name: each for name, each in paths.items() if each is not None}
        members = served.bundle.combination.members
        # A threshold removes the last labels only, so the first contributions are those of the tags.
        explanations = assemble(text, spans, ids, codec.index, members, contributions[: len(ids)], known_paths)
        return [replace(tag, explanation=each) for tag, each in zip(tags, explanations, strict=True)]

    async def _paths(self, requests: list[PathRequest]) -> list[dict[str, list[TreePath] | None]]:
        """Return the tree paths of each text's labels; members explain one text at a time."""
        return [
            await self.fan_out.call("explain", each.served.edition, each.words, each.real, each.labels)
            for each in requests
        ]

    async def drain(self) -> bool:
        """Refuse new requests and drain those in flight; return whether there were any."""
        self.draining, waited = True, False
        while self.in_flight:
            waited = True
            await asyncio.sleep(DRAIN_PAUSE_S)
        return waited

    async def ready(self) -> list[str]:
        """Return the names of the members that answer."""
        return await self.fan_out.ready(self.served.edition)


def read_examples(path: Path) -> list[str]:
    """Return the texts in a file of JSON lines.

    Raises:
        SettingsError: the file cannot be read, or a line has no `text`.
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
