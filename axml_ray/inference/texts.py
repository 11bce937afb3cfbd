"""Texts as batches of like length, tokenised and padded once for all trees and levels."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from axml_ray.corpus.tokenizer import PADDING
from axml_ray.network.bilstm import thread_pool
from axml_ray.ragged import Ragged
from axml_ray.training.batches import padded_tokens

BATCH_TOKENS = 1 << 14
"""Places of a batch, padding included, at most: what a network holds at a time grows with it."""
BATCH_DOCUMENTS = 256
"""Documents of a batch at most."""
LEAST_TOKENS = 1 << 10
"""Places of a batch below which it is not made smaller to give every thread one."""
BATCH_COST = 256
"""What a batch costs beside its places, in places: so much padding is worth one batch fewer.

Measured on 2 cores, three trees of hidden 128: 6.3 ms a batch and 0.025 ms a place.
"""
MOST_AT_ONCE = 16
"""Batches that are in work at the same time, at most; each holds memory."""

T = TypeVar("T")


@dataclass(frozen=True)
class TextBatch:
    """Some texts, padded.

    Attributes:
        rows: int64 [B], which of all texts they are.
        tokens: int64 [B, T], padded with 0 on the right.
        lengths: int64 [B], at least 1.
    """

    rows: np.ndarray
    tokens: Tensor
    lengths: Tensor

    def ragged(self) -> Ragged:
        """The word ids without padding."""
        lengths = self.lengths.cpu().numpy()
        inside = np.arange(self.tokens.shape[1]) < lengths[:, None]
        return Ragged(self.tokens.cpu().numpy()[inside].astype(np.int32), np.concatenate([[0], np.cumsum(lengths)]))

    def with_words(self, tokens: Ragged) -> "TextBatch":
        """Other words, at least one a text, of the same texts."""
        lengths = tokens.lengths
        padded = padded_tokens(tokens, np.arange(len(tokens)), int(lengths.max()))
        return TextBatch(self.rows, padded, torch.from_numpy(lengths))

    def cut(self, width: int | None) -> "TextBatch":
        """At most `width` first words of each text, or the batch as it is for None."""
        if width is None or self.tokens.shape[1] <= width:
            return self
        kept = self.tokens[:, : -(-width // 8) * 8].clone()  # as wide as `padded_tokens` makes it
        kept[:, width:] = PADDING
        return TextBatch(self.rows, kept, self.lengths.clamp(max=width))

    def to(self, device: torch.device) -> "TextBatch":
        """The same on another device."""
        return TextBatch(self.rows, self.tokens.to(device), self.lengths.to(device))


def length_batches(tokens: Ragged, documents: int | None = None, places: int | None = None) -> Iterator[TextBatch]:
    """All texts, longest first, cut into the batches that cost least: padding against batches.

    Numbers of documents are multiples of 8 from 8 on, and widths are too, since the CPU's library makes a kernel for
    each shape.

    Args:
        tokens: word ids, at least one a text.
        documents: most of a batch; by default `BATCH_DOCUMENTS`.
        places: most of a batch, of B·T; by default `BATCH_TOKENS`, or fewer where there would be less than a batch
            for each thread. One text is a batch however long it is.
    """
    lengths = tokens.lengths
    order = np.argsort(-lengths, kind="stable")
    widths = -(-lengths[order] // 8) * 8
    for start, end in _cheapest(widths, documents or BATCH_DOCUMENTS, places or _share(widths)):
        rows = order[start:end]
        yield TextBatch(rows, padded_tokens(tokens, rows, int(widths[start])), torch.from_numpy(lengths[rows]))


def _share(widths: np.ndarray) -> int:
    threads = torch.get_num_threads()
    if not 2 <= threads <= MOST_AT_ONCE:
        return BATCH_TOKENS
    share = -(-int(widths.sum()) // threads) + int(widths.max(initial=0))
    return min(BATCH_TOKENS, max(LEAST_TOKENS, share))


def _cheapest(widths: np.ndarray, documents: int, places: int) -> list[tuple[int, int]]:
    """First and last (exclusive) of each batch, by dynamic programming over where batches end.

    Args:
        widths: int64 [n] of the texts, falling.
        documents: most of a batch.
        places: most of a batch.
    """
    sizes = np.array([size for size in range(1, documents + 1) if size < 8 or size % 8 == 0])
    least, size_of = np.zeros(len(widths) + 1), np.zeros(len(widths) + 1, dtype=np.int64)
    for end in range(1, len(widths) + 1):
        fit = sizes[: np.searchsorted(sizes, end, side="right")]
        first = end - fit
        cost = fit * widths[first]
        cost = np.where((cost <= places) | (fit == 1), least[first] + cost, np.inf)
        best = int(np.argmin(cost))
        least[end], size_of[end] = cost[best] + BATCH_COST, fit[best]
    cuts, end = [], len(widths)
    while end:
        cuts.append((end - int(size_of[end]), end))
        end -= int(size_of[end])
    return cuts[::-1]


def each_batch(work: Callable[[TextBatch], T], batches: Iterable[TextBatch]) -> Iterator[T]:
    """What `work` makes of each batch on the CPU, in their order.

    Of enough batches, each of PyTorch's threads takes one after the other by itself: threads that share a batch wait
    for each other at each of hundreds of small steps.
    """
    every, threads = list(batches), torch.get_num_threads()
    if 2 <= threads <= MOST_AT_ONCE and len(every) >= threads:
        yield from thread_pool(threads, 1).map(work, every)
    else:
        yield from map(work, every)
