"""Texts as batches of like length, tokenised and padded once for all trees and levels."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from axml_ray.network.bilstm import pool_of
from axml_ray.ragged import Ragged
from axml_ray.training.batches import padded_tokens

BATCH_TOKENS = 1 << 14
"""Places of a batch, padding included: what a network holds at a time grows with it."""
LEAST_TOKENS = 1 << 10
"""Places of a batch below which it is not made smaller to give every thread one."""
BATCH_DOCUMENTS = 256
"""Documents of a batch at most."""
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

    def to(self, device: torch.device) -> "TextBatch":
        """The same on another device."""
        return TextBatch(self.rows, self.tokens.to(device), self.lengths.to(device))


def length_batches(tokens: Ragged, documents: int | None = None, places: int | None = None) -> Iterator[TextBatch]:
    """All texts, longest first: the longer they are, the fewer stand in a batch.

    Numbers of documents are multiples of 8 below the most, since the CPU's library makes a kernel for each shape.

    Args:
        tokens: word ids, at least one a text.
        documents: most of a batch; by default `BATCH_DOCUMENTS`.
        places: most of a batch, of B·T; by default `BATCH_TOKENS`, or fewer where there would be less than a batch
            for each thread. One text is a batch however long it is.
    """
    most, places = documents or BATCH_DOCUMENTS, places or _places(tokens)
    lengths = tokens.lengths
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = -(-int(lengths[order[start]]) // 8) * 8
        fit = max(1, places // longest)
        rows = order[start : start + min(most, fit if fit < 8 else fit // 8 * 8)]
        yield TextBatch(rows, padded_tokens(tokens, rows, longest), torch.from_numpy(lengths[rows]))
        start += len(rows)


def _places(tokens: Ragged) -> int:
    threads = torch.get_num_threads()
    if not 2 <= threads <= MOST_AT_ONCE:
        return BATCH_TOKENS
    padded = -(-tokens.lengths // 8) * 8
    share = -(-int(padded.sum()) // threads) + int(padded.max(initial=0))
    return min(BATCH_TOKENS, max(LEAST_TOKENS, share))


def each_batch(work: Callable[[TextBatch], T], batches: Iterable[TextBatch]) -> Iterator[T]:
    """What `work` makes of each batch on the CPU, in their order.

    Of enough batches, each of PyTorch's threads takes one after the other by itself: threads that share a batch wait
    for each other at each of hundreds of small steps.
    """
    every, threads = list(batches), torch.get_num_threads()
    if 2 <= threads <= MOST_AT_ONCE and len(every) >= threads:
        yield from pool_of(threads, 1).map(work, every)
    else:
        yield from map(work, every)
