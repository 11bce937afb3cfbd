"""The service behind the HTTP API: it tags texts by calling the deployments of members and combining their scores."""

import asyncio
import functools
import logging
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from axml_ray import __version__
from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK, rank_given
from axml_ray.corpus.readers.json_lines import JsonLines
from axml_ray.corpus.records.records import Fields, Rejection, storable
from axml_ray.corpus.text.composition import composed
from axml_ray.ensemble.ensemble import Contribution
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.inference.explain.codec import Codec, Tag
from axml_ray.inference.explain.conditions import AllowedLabels
from axml_ray.inference.explain.explain import assemble
from axml_ray.members.explanation import TreePath
from axml_ray.settings import LabelConditions
from serve_app.batching import Batcher
from serve_app.edition import Edition, exclude_from_collections
from serve_app.fan_out import FanOut
from serve_app.settings import INFLIGHT_BATCHES, MAX_EXPLANATIONS, ServingSettings

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
    """The parts of a bundle that the ingress needs."""

    edition: Edition
    bundle: Bundle
    codec: Codec

    @property
    def description(self) -> dict[str, Any]:
        """The description of the bundle that `GET /v1/model` returns."""
        manifest, settings, combination = self.bundle.manifest, self.bundle.settings, self.bundle.combination
        members, shares = combination.members, combination.shares
        return {
            "name": settings.name,
            "edition": self.edition.name,
            "axml_ray": __version__,
            "labels": manifest.labels,
            "words": manifest.words,
            "trees": len(manifest.level_sizes),
            "level_sizes": manifest.level_sizes,
            "weights": manifest.weights,
            "max_tokens": settings.max_tokens,
            "top_labels": settings.top_labels,
            "members": [
                {"name": member.title, "kind": member.kind, "weight": shares[member.name]} for member in members
            ],
        }

    @functools.cached_property
    def names(self) -> pa.Array:
        """The names of all labels, by id."""
        return pa.array(self.codec.index.names, pa.large_string())

    def search(self, query: str, limit: int) -> list[dict[str, Any]]:
        """Return the labels whose names contain all words of a query, ignoring case; the most frequent first."""
        hits = np.ones(len(self.names), dtype=bool)
        for word in dict.fromkeys(query.split()):
            if not hits.any():
                break
            forms = [pc.match_substring(self.names, form, ignore_case=True) for form in {word, composed(word)}]
            hits &= functools.reduce(pc.or_, forms).to_numpy(zero_copy_only=False)
        index = self.codec.index
        return [
            {"label": index.labels[label], "name": index.names[label], "documents": int(index.counts[label])}
            for label in index.by_frequency(np.flatnonzero(hits))[:limit]
        ]


@dataclass(frozen=True)
class TagResult:
    """The tags of some texts, best first, and the bundle that answered."""

    tags: list[list[Tag]]
    num_words: np.ndarray
    """Number of words read of each text, int64 [texts]."""
    members_used: tuple[str, ...]
    served: ServedBundle


@dataclass(frozen=True, slots=True)
class RankRequest:
    """Texts whose labels are to be ranked by a bundle."""

    served: ServedBundle
    tokens: Ragged
    labels: tuple[int, ...] | None
    """Ids of the only labels to be scored; None ranks labels."""
    allowed: np.ndarray | None
    """Whether each label may be ranked, bool [L]; None allows all."""
    conditions: LabelConditions | None
    """The conditions that `allowed` meets, or `labels`."""
    explained: int
    """Number of first labels of each text whose contributions are returned."""

    @property
    def batch_key(self) -> Hashable:
        """The key of the requests that can share a batch."""
        return self.served.edition, self.labels, self.conditions, self.explained


RankResult = tuple[TopK, tuple[str, ...], list[list[tuple[Contribution, ...]]]]
"""The ensemble's ranking of a request [texts, k], the names of the members that answered, and the contributions to the
first `explained` labels of each text."""
TreePathRequest = tuple[Edition, np.ndarray, int, list[int]]
"""A text and its labels whose tree paths are required: the arguments of `Members.explain`."""


class Service:
    """Tags texts; calls to the deployments of members go through queues of limited length."""

    def __init__(self, serving: ServingSettings, fan_out: FanOut):
        self.serving, self.fan_out = serving, fan_out
        at_once = INFLIGHT_BATCHES * (serving.max_replicas or serving.replicas)
        waiting = serving.max_queued_texts
        self._rank_batcher: Batcher[RankRequest, RankResult] = Batcher(self._rank, BATCH_WORDS, at_once, waiting)
        self._path_batcher: Batcher[TreePathRequest, dict[str, list[TreePath] | None]] = Batcher(
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

        Raises:
            SettingsError, EditionError: the bundle is unusable.
        """
        if self._served and self._served.edition == edition:
            return
        bundle = await asyncio.to_thread(edition.open)
        await asyncio.to_thread(getattr, bundle, "combination")  # now: the files may be replaced before a request
        served = ServedBundle(edition, bundle, await asyncio.to_thread(Codec, bundle))
        await asyncio.to_thread(edition.check, bundle)
        await self.fan_out.open(edition, OPEN_S)
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
        """Return the best labels of each text, as `Tagger.tag` does with the same arguments.

        Raises:
            SettingsError: a label or prefix is unknown, or more explanations are requested than the limit allows.
            Busy: the queue is full.
        """
        served, texts = self.served, [storable(text) for text in texts]
        codec = served.codec
        shown = min(top_k, served.bundle.settings.top_labels, len(codec.index.labels))
        label_ids = allowed = None
        if labels is not None:
            label_ids = await asyncio.to_thread(codec.ids, labels)
            shown = len(label_ids)  # without duplicates
        if conditions is not None:
            allowed = await asyncio.to_thread(AllowedLabels.of, conditions, codec)
            shown = min(shown, int(allowed.mask.sum()))
        if explain and (explained := len(texts) * shown) > MAX_EXPLANATIONS:
            raise SettingsError(
                f"explain: {explained:,} labels of all texts; at most {MAX_EXPLANATIONS:,} are explained per request: "
                "send fewer texts or labels"
            )
        is_long = sum(map(len, texts)) > INLINE_CHARACTERS
        tokens = await asyncio.to_thread(codec.encode, texts) if is_long else codec.encode(texts)
        scored = label_ids if allowed is None else allowed.scored
        request = RankRequest(
            served,
            tokens,
            labels=None if scored is None else tuple(scored.tolist()),
            allowed=None if allowed is None or scored is not None else allowed.mask,
            conditions=conditions,
            explained=shown if explain else 0,
        )
        ranking, used, contributions = await self._rank_batcher.submit(
            request, request.batch_key, len(texts), len(tokens.values)
        )
        has_words = await asyncio.to_thread(codec.has_words, texts) if is_long else codec.has_words(texts)
        ids, scores = codec.mask(ranking, has_words, label_ids)
        tags = codec.decode(TopK(ids[:, :shown], scores[:, :shown]), threshold)
        if explain:
            rows = zip(texts, ids.tolist(), tags, contributions, strict=True)
            explained_tags = [await self._explained(served, *row) for row in rows]
            tags = [of_text for of_text, _ in explained_tags]
            used = tuple(name for name in used if all(name in answered for _, answered in explained_tags))
        return TagResult(tags, np.where(has_words, tokens.lengths, 0), used, served)

    async def _rank(self, requests: list[RankRequest]) -> list[RankResult]:
        """Return the results of a batch of requests of one key, each with its rows of the joint ranking."""
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
            rankings = {name: TopK(all_ids, of_member) for name, of_member in scores.items()}
        contributions: list[list[tuple[Contribution, ...]]] = [[] for _ in range(len(tokens))]
        if explained:
            contributions = combination.contributions(ranking.labels[:, :explained], rankings)
        used = tuple(member.name for member in combination.members if member.name in rankings)
        results: list[RankResult] = []
        start = 0
        for request in requests:
            rows = slice(start, start + len(request.tokens))
            start = rows.stop
            results.append((TopK(ranking.labels[rows], ranking.scores[rows]), used, contributions[rows]))
        return results

    async def _explained(
        self,
        served: ServedBundle,
        text: str,
        ids: list[int],
        tags: list[Tag],
        contributions: list[tuple[Contribution, ...]],
    ) -> tuple[list[Tag], Collection[str]]:
        """Return a text's tags with their explanations, and the members that answered; `ids` are those of the ranking.

        A threshold removes the last labels only, so the first ids and contributions are those of the tags.
        """
        codec, ids = served.codec, ids[: len(tags)]
        token_ids, spans = codec.tokenizer.encode_with_spans(text, codec.max_tokens)
        request = served.edition, token_ids, len(spans), ids
        answer = await self._path_batcher.submit(request, None, 1, len(token_ids))
        paths = {name: of_member for name, of_member in answer.items() if of_member is not None}
        members = served.bundle.combination.members
        explanations = assemble(text, spans, ids, codec.index, members, contributions[: len(ids)], paths)
        return [replace(tag, explanation=reasons) for tag, reasons in zip(tags, explanations, strict=True)], answer

    async def _paths(self, requests: list[TreePathRequest]) -> list[dict[str, list[TreePath] | None]]:
        """Return the tree paths of each text's labels by member, None by one without attention, of those that answer.

        Members explain one text at a time.
        """
        return [await self.fan_out.call("explain", *request) for request in requests]

    async def drain(self) -> bool:
        """Refuse new requests and drain those in flight; return whether there were any."""
        self.draining, waited = True, False
        while self.in_flight:
            waited = True
            await asyncio.sleep(DRAIN_PAUSE_S)
        return waited


def read_examples(path: Path) -> list[str]:
    """Return the texts in a file of JSON lines.

    Raises:
        SettingsError: the file cannot be read, or a line has no `text`.
    """
    texts = []
    try:
        for document in JsonLines(path, Fields(labelled=False)).read():
            if isinstance(document, Rejection):
                raise SettingsError(f"examples: {path}:{document.line}: {document.reason}")
            texts.append(document.text)
    except OSError as error:
        raise SettingsError(f"examples: {path} cannot be read ({error.strerror})") from None
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError(f"examples: {path}: expected JSON lines, but {error.args[0].partition(';')[0]}") from None
    return texts
