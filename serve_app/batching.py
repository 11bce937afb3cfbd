"""A queue that groups requests for the members into batches of similar length.

The oldest request in the queue starts a batch, and those most similar to it in length fill it up: short texts do not
wait for long ones, and no request is passed over indefinitely. While the maximum number of batches is in flight,
requests queue up and the next batches grow, so no time limit for collecting a batch is needed.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Generic, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class Busy(Exception):
    """The queue is full.

    Attributes:
        seconds: estimated time in seconds until the queue has been processed.
    """

    def __init__(self, seconds: int):
        super().__init__(f"the server is busy; try again in {seconds} s")
        self.seconds = seconds


@dataclass(eq=False, slots=True)
class _QueuedItem(Generic[A, B]):
    """An item in the queue, and the future of its result."""

    item: A
    kind: Hashable
    texts: int
    num_words: int
    result: "asyncio.Future[B]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher(Generic[A, B]):
    """Collects items into batches.

    Args:
        work: processes the items of a batch, and returns a result for each.
        max_words: largest number of words of a batch; a larger item is a batch of its own.
        at_once: largest number of batches in flight.
        capacity: largest number of texts in the queue.
    """

    def __init__(self, work: Callable[[list[A]], Awaitable[Sequence[B]]], max_words: int, at_once: int, capacity: int):
        self._work, self._max_words, self._at_once, self._capacity = work, max_words, at_once, capacity
        self._queue: list[_QueuedItem[A, B]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._texts_per_second = 0.0

    @property
    def texts(self) -> int:
        """The number of texts in the queue."""
        return sum(queued.texts for queued in self._queue)

    async def submit(self, item: A, kind: Hashable, texts: int, num_words: int) -> B:
        """Queue an item and return its result. An item whose caller is cancelled is removed from the queue.

        Args:
            item: item with some texts.
            kind: only items of equal kind share a batch.
            texts, num_words: number of its texts, and of all their words.

        Raises:
            Busy: the queue is full.
        """
        # An item larger than the whole queue is admitted to an empty queue, or it could never be processed.
        if self._queue and self.texts + texts > self._capacity:
            raise Busy(self._seconds_to_wait())
        queued: _QueuedItem[A, B] = _QueuedItem(item, kind, texts, num_words)
        self._queue.append(queued)
        self._start_batches()
        try:
            return await queued.result
        finally:
            if queued in self._queue:
                self._queue.remove(queued)

    def _seconds_to_wait(self) -> int:
        """Estimate the time in seconds until the queue has been processed, from 1 to 60."""
        return max(1, min(60, math.ceil(self.texts / self._texts_per_second))) if self._texts_per_second else 1

    def _start_batches(self) -> None:
        while self._queue and len(self._running) < self._at_once:
            # In a context of its own: in a request's context, Serve would attribute the batch to that request, and
            # cancel it together with the request.
            task = asyncio.create_task(self._run(self._next_batch()), context=Context())
            self._running.add(task)
            task.add_done_callback(self._on_done)

    def _next_batch(self) -> list[_QueuedItem[A, B]]:
        """Take the oldest item and the items most similar to it in mean length from the queue."""
        first = self._queue[0]
        similar = sorted(
            (queued for queued in self._queue[1:] if queued.kind == first.kind),
            key=lambda queued: abs(queued.num_words / queued.texts - first.num_words / first.texts),
        )
        batch, num_words = [first], first.num_words
        for queued in similar:
            if num_words + queued.num_words > self._max_words:
                break
            batch.append(queued)
            num_words += queued.num_words
        taken = set(map(id, batch))
        self._queue = [queued for queued in self._queue if id(queued) not in taken]
        return batch

    async def _run(self, batch: list[_QueuedItem[A, B]]) -> None:
        """Process a batch, and set the result or the error of each item."""
        started = time.monotonic()
        try:
            results = await self._work([queued.item for queued in batch])
        except asyncio.CancelledError:
            for queued in batch:
                queued.result.cancel()
            raise
        except Exception as error:
            for queued in batch:
                if not queued.result.done():
                    queued.result.set_exception(error)
            return
        rate = sum(queued.texts for queued in batch) / max(1e-6, time.monotonic() - started)
        self._texts_per_second = 0.8 * (self._texts_per_second or rate) + 0.2 * rate
        for queued, result in zip(batch, results, strict=True):
            if not queued.result.done():  # a caller that was cancelled has cancelled its future
                queued.result.set_result(result)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start_batches()
