"""Requests that wait for the trees, grouped by length.

The longest-waiting request leads a batch, and those that are nearest to it in length fill it up: a batch of short texts
is answered soon, and nobody is passed over for ever. While as many batches as are useful are under way,
requests wait and batches grow, so that no time limit for collecting is needed.
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
    """Too many texts wait already.

    Attributes:
        seconds: after which it is worth trying again.
    """

    def __init__(self, seconds: int):
        super().__init__(f"the server is busy; try again in {seconds} s")
        self.seconds = seconds


@dataclass(eq=False, slots=True)
class _Waiting(Generic[A, B]):
    item: A
    kind: Hashable
    texts: int
    words: int
    answer: "asyncio.Future[B]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher(Generic[A, B]):
    """Collects items into batches.

    Args:
        work: what is done with the items of a batch; gives a result for each.
        words: of a batch; an item of more is a batch of its own.
        at_once: batches under way, at most.
        waiting: texts that may wait, at most.
    """

    def __init__(self, work: Callable[[list[A]], Awaitable[Sequence[B]]], words: int, at_once: int, waiting: int):
        self._work, self._words, self._at_once, self._most = work, words, at_once, waiting
        self._waiting: list[_Waiting[A, B]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._texts_a_second = 0.0

    @property
    def texts(self) -> int:
        """How many wait."""
        return sum(one.texts for one in self._waiting)

    async def submit(self, item: A, kind: Hashable, texts: int, words: int) -> B:
        """The result for an item. A caller that is cancelled leaves the queue.

        Args:
            item: of some texts.
            kind: only items of the same kind share a batch.
            texts: how many.
            words: of all of them.

        Raises:
            Busy: too many wait.
        """
        if self._waiting and self.texts + texts > self._most:
            raise Busy(self._seconds_to_wait())
        one: _Waiting[A, B] = _Waiting(item, kind, texts, words)
        self._waiting.append(one)
        self._start()
        try:
            return await one.answer
        finally:
            if one in self._waiting:
                self._waiting.remove(one)

    def _seconds_to_wait(self) -> int:
        return max(1, min(60, math.ceil(self.texts / self._texts_a_second))) if self._texts_a_second else 1

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._at_once:
            # In a context of its own: in a request's, Serve would take all for that request's, and end it with it.
            task = asyncio.create_task(self._run(self._next()), context=Context())
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _next(self) -> list[_Waiting[A, B]]:
        first = self._waiting[0]
        alike = sorted(
            (one for one in self._waiting[1:] if one.kind == first.kind),
            key=lambda one: abs(one.words / one.texts - first.words / first.texts),
        )
        batch, words = [first], first.words
        for one in alike:
            if words + one.words > self._words:
                break
            batch.append(one)
            words += one.words
        taken = set(map(id, batch))
        self._waiting = [one for one in self._waiting if id(one) not in taken]
        return batch

    async def _run(self, batch: list[_Waiting[A, B]]) -> None:
        started = time.monotonic()
        try:
            results = await self._work([one.item for one in batch])
        except asyncio.CancelledError:
            for one in batch:
                one.answer.cancel()
            raise
        except Exception as error:
            for one in batch:
                if not one.answer.done():
                    one.answer.set_exception(error)
            return
        rate = sum(one.texts for one in batch) / max(1e-6, time.monotonic() - started)
        self._texts_a_second = 0.8 * (self._texts_a_second or rate) + 0.2 * rate
        for one, result in zip(batch, results, strict=True):
            if not one.answer.done():
                one.answer.set_result(result)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start()
