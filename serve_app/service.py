"""From texts to tags, with the trees somewhere else: what the HTTP API calls."""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from axml_ray import __version__
from axml_ray.corpus.records import storable
from axml_ray.inference.beam import Found
from axml_ray.inference.codec import Codec, Tag, ranked
from axml_ray.inference.ensemble import combine
from axml_ray.inference.explain import assembled
from axml_ray.ragged import Ragged
from axml_ray.settings import SettingsError
from serve_app.batching import Batcher
from serve_app.edition import Edition
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
        codec: its texts and labels.
        top_labels: most labels of a text.
        description: what `GET /v1/model` says.
    """

    edition: Edition
    codec: Codec
    top_labels: int
    description: dict[str, Any]

    @classmethod
    def open(cls, edition: Edition) -> "Front":
        """Read it from the bundle.

        Raises:
            BundleError: the bundle can't be used.
        """
        bundle = edition.open()
        manifest, settings = bundle.manifest, bundle.settings
        description = {
            "name": settings.name,
            "edition": edition.mark[:12],
            "axml_ray": __version__,
            "labels": manifest.labels,
            "words": manifest.words,
            "trees": bundle.trees,
            "level_sizes": manifest.level_sizes,
            "weights": manifest.weights,
            "max_tokens": settings.max_tokens,
            "top_labels": settings.top_labels,
            "network": settings.network.kind,
        }
        return cls(edition, Codec(bundle), settings.top_labels, description)

    @property
    def trees(self) -> int:
        """How many trees the bundle has."""
        return int(self.description["trees"])

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


class Service:
    """Tags texts.

    Args:
        serving: settings.
        fan_out: the trees.
    """

    def __init__(self, serving: Serving, fan_out: FanOut):
        self.serving, self.fan_out = serving, fan_out
        self.batcher: Batcher[tuple[Front, Ragged], tuple[Found, int]] = Batcher(
            self._find, serving.batch_words, serving.most_batches, serving.waiting_texts
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

    async def use(self, edition: Edition) -> None:
        """Answer new requests from a bundle. Requests under way are answered from the one they began with.

        A bundle that can't be used is refused as long as there is another: its reason is logged.

        Raises:
            SettingsError: it can't be used, and there is no other.
        """
        if self._front and self._front.edition == edition:
            return
        try:
            front = await asyncio.to_thread(Front.open, edition)
            await self.fan_out.open(edition, OPEN_S)
        except SettingsError as error:
            if not self._front:
                raise
            logger.error("the bundle stays as it is: %s", error)
            return
        self._front = front
        logger.info("answering from %s (%s)", edition.directory, edition.mark[:12])

    async def tag(
        self,
        texts: Sequence[str],
        top_k: int = 5,
        explain: bool = False,
        threshold: float | None = None,
        labels: Sequence[str] | None = None,
    ) -> Tagged:
        """The best labels of each text; arguments as of `Tagger.tag`, but for the threshold.

        Args:
            texts: to tag.
            top_k: labels a text, at most.
            explain: also say which words each label looked at.
            threshold: leave out labels with a lower probability.
            labels: score these alone, and give all of them back.

        Raises:
            SettingsError: a label is unknown, or there is nothing to explain with.
            Busy: too many texts wait.
        """
        front, some = self.front, [storable(text) for text in texts]
        wanted = None if labels is None else front.codec.ids(labels)
        long = sum(map(len, some)) > INLINE_CHARACTERS
        tokens = await asyncio.to_thread(front.codec.encode, some) if long else front.codec.encode(some)
        if wanted is None:
            words = len(tokens.values)
            (ids, scores), used = await self.batcher.submit((front, tokens), front.edition, len(some), words)
            found = ids[:, :top_k], scores[:, :top_k]
        else:
            of_trees = await self.fan_out.ask("score", front.edition, tokens, wanted)
            used = len(of_trees)
            found = ranked(wanted, np.stack(of_trees).sum(axis=0))
        # Probabilities were fitted to the scores of all trees.
        rows = front.codec.decode((found[0], found[1] * np.float32(front.trees / used)))
        tags = [[tag for tag in row if threshold is None or tag.probability >= threshold] for row in rows]
        if explain:
            tags = [await self._explained(front, text, row) for text, row in zip(some, tags, strict=True)]
        return Tagged(tags, tokens.lengths, used, front)

    async def _find(self, items: list[tuple[Front, Ragged]]) -> list[tuple[Found, int]]:
        """The rankings of each item, all of one edition, and how many trees they are of."""
        front = items[0][0]
        of_trees: list[Found] = await self.fan_out.ask(
            "find", front.edition, Ragged.concatenate([tokens for _, tokens in items])
        )
        found = [one for one, _ in of_trees], [one for _, one in of_trees]
        labels, scores = await asyncio.to_thread(combine, *found, front.top_labels)
        ends = np.cumsum([len(tokens) for _, tokens in items])[:-1]
        parts = zip(np.split(labels, ends), np.split(scores, ends), strict=True)
        return [(part, len(of_trees)) for part in parts]

    async def _explained(self, front: Front, text: str, tags: list[Tag]) -> list[Tag]:
        codec, ids = front.codec, [front.codec.id_of[tag.label] for tag in tags]
        words, spans = codec.tokenizer.encode_with_spans(text, codec.max_tokens)
        of_trees = await self.fan_out.ask("explain", front.edition, words, len(spans), ids)
        why = assembled(text, spans, ids, codec.index, of_trees)
        return [replace(tag, explanation=one) for tag, one in zip(tags, why, strict=True)]

    async def drain(self) -> None:
        """Refuse new requests from now on, and wait for those under way."""
        self.draining = True
        while self.under_way:
            await asyncio.sleep(DRAIN_PAUSE_S)

    async def ready(self) -> int:
        """How many trees answer."""
        return await self.fan_out.ready(self.front.edition)


def read_examples(path: Path) -> list[str]:
    """The texts of a file of JSON lines.

    Raises:
        SettingsError: it can't be read, or a line has no `text`.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"examples: {path} cannot be read ({error})") from None
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise SettingsError(f'examples: {path}:{number}: expected a line such as {{"text": "…"}}')
        texts.append(record["text"])
    return texts
