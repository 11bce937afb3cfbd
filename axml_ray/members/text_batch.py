"""Texts cut into batches of similar length, which saves the networks most of the padding."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch

from axml_ray.network.bilstm import thread_pool
from axml_ray.ragged import Ragged

BATCH_TOKENS = 1 << 14
"""Places of a batch, padding included, at most: what a network holds at a time grows with it."""
BATCH_DOCUMENTS = 256
"""Documents of a batch at most."""
LEAST_TOKENS = 1 << 10
"""Places of a batch below which it is not made smaller to give every thread one."""
BATCH_COST = 256
"""Fixed cost of a batch, in places: this much padding is worth one batch fewer.

Measured on 2 cores, three trees of hidden 128: 6.3 ms a batch and 0.025 ms a place.
"""
MOST_AT_ONCE = 16
"""Batches processed at the same time, at most; each holds memory."""

T = TypeVar("T")


def length_batches(tokens: Ragged, documents: int | None = None, places: int | None = None) -> Iterator[np.ndarray]:
    """Cut texts, longest first, into the batches that cost least: padding against the fixed cost of a batch.

    Numbers of documents are multiples of 8 from 8 on, and widths are too, since the CPU's library makes a kernel for
    each shape.

    Args:
        tokens: word ids, at least one a text.
        documents: most of a batch; by default `BATCH_DOCUMENTS`.
        places: most of a batch, of B·T; by default `BATCH_TOKENS`, or fewer where there would be less than a batch
            for each thread. One text is a batch however long it is.

    Yields:
        Rows of a batch, int64 [B].
    """
    lengths = tokens.lengths
    order = np.argsort(-lengths, kind="stable")
    widths = -(-lengths[order] // 8) * 8
    for start, end in _cheapest(widths, documents or BATCH_DOCUMENTS, places or _share(widths)):
        yield order[start:end]


def _share(widths: np.ndarray) -> int:
    threads = torch.get_num_threads()
    if not 2 <= threads <= MOST_AT_ONCE:
        return BATCH_TOKENS
    share = -(-int(widths.sum()) // threads) + int(widths.max(initial=0))
    return min(BATCH_TOKENS, max(LEAST_TOKENS, share))


def _cheapest(widths: np.ndarray, documents: int, places: int) -> list[tuple[int, int]]:
    """First and last row (exclusive) of each batch, by dynamic programming over the ends of batches.

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


def map_batches(work: Callable[[np.ndarray], T], batches: Iterable[np.ndarray]) -> Iterator[T]:
    """Apply `work` to the rows of each batch on the CPU; results in the order of the batches.

    Where there are enough batches, each of PyTorch's threads takes one after the other by itself: threads that share a
    batch wait for each other at each of hundreds of small steps.
    """
    every, threads = list(batches), torch.get_num_threads()
    if 2 <= threads <= MOST_AT_ONCE and len(every) >= threads:
        yield from thread_pool(threads, 1).map(work, every)
    else:
        yield from map(work, every)
