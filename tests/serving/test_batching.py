"""Requests in the queue: each gets its own answer, in batches of similar length, and none waits indefinitely."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.batching import Batcher, Busy

WORDS = 64
ITEM = st.tuples(st.integers(1, 5), st.integers(1, 40), st.sampled_from("ab"))  # texts, their words, kind


class Trees:
    """Work that ends on request; keeps what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.gate = asyncio.Event()
        self.most = self.now = 0

    async def __call__(self, items: list[Any]) -> list[Any]:
        self.batches.append(items)
        self.now += 1
        self.most = max(self.most, self.now)
        await self.gate.wait()
        self.now -= 1
        return [("answer", item) for item in items]


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@given(st.lists(ITEM, min_size=1, max_size=30), st.integers(1, 3))
def test_every_request_gets_its_own_answer(requests: list[tuple[int, int, str]], at_once: int) -> None:
    async def main() -> None:
        trees = Trees()
        batcher: Batcher[Any, Any] = Batcher(trees, WORDS, at_once, capacity=10_000)
        items = list(enumerate(requests))
        calls = [
            asyncio.create_task(batcher.submit(item, kind, texts, words))
            for item in items
            for texts, words, kind in [item[1]]
        ]
        await settled()
        assert len(trees.batches) == min(at_once, len(items))
        trees.gate.set()
        assert await asyncio.gather(*calls) == [("answer", item) for item in items]
        assert trees.most <= at_once and batcher.texts == 0
        for batch in trees.batches:
            assert len(batch) == 1 or sum(one[1][1] for one in batch) <= WORDS
            assert len({one[1][2] for one in batch}) == 1
        # The first of a batch has waited longer than all that came into batches after it.
        firsts = [batch[0][0] for batch in trees.batches]
        later = [[one[0] for batch in trees.batches[place + 1 :] for one in batch] for place in range(len(firsts))]
        assert all(first < min(after) for first, after in zip(firsts, later, strict=True) if after)

    asyncio.run(main())


def test_a_batch_holds_texts_of_like_length() -> None:
    async def main() -> None:
        trees = Trees()
        batcher: Batcher[int, Any] = Batcher(trees, max_words=100, at_once=1, capacity=100)
        calls = [asyncio.create_task(batcher.submit(length, "", 1, length)) for length in (5, 60, 9, 31, 8, 35)]
        await settled()
        trees.gate.set()
        await asyncio.gather(*calls)
        assert trees.batches == [[5], [60, 35], [9, 8, 31]]

    asyncio.run(main())


def test_more_than_may_wait_are_refused_and_told_when_to_come_again() -> None:
    async def main() -> None:
        trees = Trees()
        batcher: Batcher[int, Any] = Batcher(trees, WORDS, at_once=1, capacity=4)
        calls = [asyncio.create_task(batcher.submit(number, "", 2, 1)) for number in range(3)]
        await settled()
        assert batcher.texts == 4
        with pytest.raises(Busy) as refused:
            await batcher.submit(9, "", 1, 1)
        assert refused.value.seconds >= 1
        trees.gate.set()
        assert len(await asyncio.gather(*calls)) == 3
        assert await batcher.submit(9, "", 1, 1) == ("answer", 9)

    asyncio.run(main())


def test_a_request_larger_than_the_queue_is_taken_by_an_idle_server() -> None:
    async def main() -> None:
        trees = Trees()
        trees.gate.set()
        batcher: Batcher[int, Any] = Batcher(trees, WORDS, at_once=1, capacity=4)
        assert await batcher.submit(1, "", 50, 1_000) == ("answer", 1)

    asyncio.run(main())


def test_who_leaves_the_queue_is_not_worked_for() -> None:
    async def main() -> None:
        trees = Trees()
        batcher: Batcher[int, Any] = Batcher(trees, WORDS, at_once=1, capacity=10)
        calls = [asyncio.create_task(batcher.submit(number, "", 1, 60)) for number in range(3)]
        await settled()
        calls[1].cancel()
        await settled()
        assert batcher.texts == 1
        trees.gate.set()
        assert await calls[0] == ("answer", 0) and await calls[2] == ("answer", 2)
        assert trees.batches == [[0], [2]]

    asyncio.run(main())


def test_a_failure_reaches_those_of_its_batch_alone() -> None:
    async def fragile(items: list[int]) -> list[int]:
        if 13 in items:
            raise ValueError("unlucky")
        return items

    async def main() -> None:
        batcher: Batcher[int, int] = Batcher(fragile, max_words=1, at_once=1, capacity=10)
        found = await asyncio.gather(*(batcher.submit(one, "", 1, 1) for one in (1, 13, 2)), return_exceptions=True)
        assert found[0] == 1 and isinstance(found[1], ValueError) and found[2] == 2

    asyncio.run(main())


def test_a_batch_is_no_part_of_the_request_that_led_it() -> None:
    """Serve ends what was begun in a request's context when that client leaves."""
    request: ContextVar[str] = ContextVar("request", default="nobody's")
    seen = []

    async def main() -> None:
        gate = asyncio.Event()

        async def work(items: list[int]) -> list[int]:
            seen.append(request.get())
            await gate.wait()
            return items

        async def submit(item: int) -> int:
            request.set(f"request {item}")
            return await batcher.submit(item, "a", 1, 1)

        batcher: Batcher[int, int] = Batcher(work, max_words=1, at_once=1, capacity=10)
        calls = [asyncio.create_task(submit(item)) for item in range(3)]
        await settled()
        gate.set()
        assert await asyncio.gather(*calls) == [0, 1, 2]

    asyncio.run(main())
    assert seen == ["nobody's"] * 3


def test_a_batch_that_is_called_off_leaves_nobody_waiting() -> None:
    async def main() -> None:
        async def work(items: list[int]) -> list[int]:
            raise asyncio.CancelledError

        batcher: Batcher[int, int] = Batcher(work, max_words=10, at_once=1, capacity=10)
        calls = [asyncio.create_task(batcher.submit(item, "a", 1, 1)) for item in range(2)]
        done, left = await asyncio.wait(calls, timeout=5)
        assert len(done) == 2 and not left
        assert all(call.cancelled() for call in calls)

    asyncio.run(main())
