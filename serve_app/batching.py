"""Requests that wait for the trees, grouped by length.

The longest-waiting request leads a batch, and those that are nearest to it in length fill it up: the padding that
trees compute on stays small, and nobody is passed over for ever. While as many batches as are useful are under way,
requests wait and batches grow, so that no time limit for collecting is needed.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
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
    longest: int
    answer: "asyncio.Future[B]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher(Generic[A, B]):
    """Collects items into batches.

    Args:
        work: what is done with the items of a batch; gives a result for each.
        places: words of a batch, padding included; a larger item is a batch of its own.
        at_once: batches under way, at most.
        waiting: texts that may wait, at most.
    """

    def __init__(self, work: Callable[[list[A]], Awaitable[Sequence[B]]], places: int, at_once: int, waiting: int):
        self._work, self._places, self._at_once, self._most = work, places, at_once, waiting
        self._waiting: list[_Waiting[A, B]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._texts_a_second = 0.0

    @property
    def texts(self) -> int:
        """How many wait."""
        return sum(one.texts for one in self._waiting)

    async def submit(self, item: A, kind: Hashable, texts: int, longest: int) -> B:
        """The result for an item. A caller that is cancelled leaves the queue.

        Args:
            item: of some texts.
            kind: only items of the same kind share a batch.
            texts: how many.
            longest: words of the longest.

        Raises:
            Busy: too many wait.
        """
        if self._waiting and self.texts + texts > self._most:
            raise Busy(self._seconds_to_wait())
        one: _Waiting[A, B] = _Waiting(item, kind, texts, longest)
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
            task = asyncio.create_task(self._run(self._next()))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _next(self) -> list[_Waiting[A, B]]:
        first = self._waiting[0]
        alike = sorted(
            (one for one in self._waiting[1:] if one.kind == first.kind),
            key=lambda one: abs(one.longest - first.longest),
        )
        batch, texts, longest = [first], first.texts, first.longest
        for one in alike:
            if (texts + one.texts) * max(longest, one.longest) > self._places:
                break
            batch.append(one)
            texts, longest = texts + one.texts, max(longest, one.longest)
        taken = set(map(id, batch))
        self._waiting = [one for one in self._waiting if id(one) not in taken]
        return batch

    async def _run(self, batch: list[_Waiting[A, B]]) -> None:
        started = time.monotonic()
        try:
            results = await self._work([one.item for one in batch])
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
