"""Batches of texts of similar length, which save the networks most of the padding."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TypeVar

import numpy as np
import torch

from axml_ray.core.ragged import Ragged
from axml_ray.network.fast.bilstm import thread_pool

BATCH_TOKENS = 1 << 14
"""Largest number of tokens of a batch, padding included: the memory of a network grows with it."""
BATCH_DOCUMENTS = 256
"""Largest number of documents of a batch."""
ACCELERATOR_TOKENS, ACCELERATOR_DOCUMENTS = 1 << 18, 1 << 10
"""The same on an accelerator; on an H200, 2^18 tokens are more than twice as fast as 2^15 (docs/gpus.md)."""
LEAST_TOKENS = 1 << 10
"""Batches are not cut below this number of tokens for the sake of giving each thread one."""
BATCH_COST = 256
"""Fixed cost of a batch, in tokens: this amount of padding is worth one batch fewer.

Measured on 2 cores, three trees of hidden 128: 6.3 ms per batch and 0.025 ms per token.
"""
MOST_AT_ONCE = 16
"""Largest number of items that are processed at the same time; each takes memory."""

shared_thread_pool = cache(thread_pool)
"""One pool for all callers, so that a process never works on more than `MOST_AT_ONCE` items."""

T = TypeVar("T")
R = TypeVar("R")


def length_batches(
    tokens: Ragged, documents: int | None = None, places: int | None = None, *, on_accelerator: bool = False
) -> Iterator[np.ndarray]:
    """Cut texts, longest first, into the cheapest batches, weighing padding against the fixed cost of a batch.

    Batches of 8 documents or more have a multiple of 8, and widths are multiples of 8, since oneDNN compiles a kernel
    for each shape.

    Args:
        tokens: word ids, at least one per text.
        documents: largest number of documents of a batch; by default `BATCH_DOCUMENTS`.
        places: largest number of tokens of a batch, padding included; by default `BATCH_TOKENS`, or fewer if there
            would be less than one batch per thread. A longer text is a batch by itself.
        on_accelerator: whether networks compute on an accelerator, for which both defaults are larger.

    Yields:
        Row numbers of a batch, int64 [B].
    """
    lengths = tokens.lengths
    order = np.argsort(-lengths, kind="stable")
    widths = -(-lengths[order] // 8) * 8
    if on_accelerator:
        documents, places = documents or ACCELERATOR_DOCUMENTS, places or ACCELERATOR_TOKENS
    at_once = min(torch.get_num_threads(), MOST_AT_ONCE)
    if places is None and at_once > 1:  # the tokens of a batch with which each thread gets at least one
        share = -(-int(widths.sum()) // at_once) + int(widths.max(initial=0))
        places = min(BATCH_TOKENS, max(LEAST_TOKENS, share))
    for start, end in _cheapest(widths, documents or BATCH_DOCUMENTS, places or BATCH_TOKENS):
        yield order[start:end]


def _cheapest(widths: np.ndarray, documents: int, places: int) -> list[tuple[int, int]]:
    """Return the first and last row (exclusive) of each batch, by dynamic programming over the ends of batches.

    `widths` (int64 [n]) are the padded lengths of the texts, descending.
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


def map_in_threads(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Apply `work` to each item, several at the same time; yield the results in order.

    Threads that shared an item would wait for each other at each of hundreds of small steps.
    """
    threads = torch.get_num_threads()
    if (at_once := min(threads, MOST_AT_ONCE)) > 1:
        yield from shared_thread_pool(at_once, threads // at_once).map(work, items)
    else:
        yield from map(work, items)
