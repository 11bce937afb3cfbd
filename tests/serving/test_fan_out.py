"""Deployments that come back from away, of the bundle that was rolled out meanwhile.

python -m pytest tests/serving/test_fan_out.py
"""

import asyncio
from typing import Any

import pytest

from serve_app import fan_out
from serve_app.edition import Edition
from serve_app.fan_out import FanOut

OLD, NEW = Edition("bundles/x", "old"), Edition("bundles/x", "new")


class Handle:
    """A handle of a deployment; `holds` are the editions that it can open, none while its node is down."""

    def __init__(self, name: str):
        self.deployment_name, self.holds, self.asked = name, {OLD, NEW}, []
        self.ready = self.rank = self

    async def remote(self, edition: Edition, *_: Any) -> dict[str, bool]:
        """Answer, once there is a node."""
        self.asked.append(edition)
        while not self.holds:
            await asyncio.sleep(0.01)
        if edition not in self.holds:
            raise RuntimeError("another bundle than the one deployed")
        return {self.deployment_name: True}


@pytest.mark.parametrize("opened_before_it_is_back", [True, False])
def test_a_tree_that_was_away_during_a_roll_out_is_used_again(
    monkeypatch: pytest.MonkeyPatch, opened_before_it_is_back: bool
) -> None:
    monkeypatch.setattr(fan_out, "PROBE_S", 0.01)
    monkeypatch.setattr(fan_out, "PATIENCE_S", 0.05)

    async def story() -> None:
        handles = [Handle("tree-0"), Handle("tree-1")]
        deployments = FanOut(handles, limit_s=5)  # type: ignore[arg-type]
        await deployments.open(OLD, 5)
        handles[1].holds = set()
        assert await deployments.call("rank", OLD) == {"tree-0": True}
        if opened_before_it_is_back:
            await deployments.open(NEW, 0.05)
        handles[1].holds = {NEW}
        if not opened_before_it_is_back:
            await deployments.open(NEW, 5)
        async with asyncio.timeout(2):
            while list(await deployments.call("rank", NEW)) != ["tree-0", "tree-1"]:
                await asyncio.sleep(0.01)

    asyncio.run(story())


class CalledOff(Handle):
    """A tree whose first calls Serve calls off, as it does with those of a request whose client has left."""

    def __init__(self, name: str, calls: int):
        super().__init__(name)
        self.calls = calls

    async def remote(self, edition: Edition, *args: Any) -> dict[str, bool]:
        """Answer, once enough calls were called off."""
        self.calls -= 1
        if self.calls >= 0:
            raise asyncio.CancelledError
        return await super().remote(edition, *args)


def test_a_call_that_serve_calls_off_is_made_again() -> None:
    async def story() -> None:
        deployments = FanOut([Handle("tree-0"), CalledOff("tree-1", 2)], limit_s=5)  # type: ignore[list-item]
        assert list(await deployments.call("rank", OLD)) == ["tree-0", "tree-1"]

    asyncio.run(story())


class Slow(Handle):
    """A tree that takes some seconds for each answer."""

    async def remote(self, edition: Edition, *args: Any) -> dict[str, bool]:
        await asyncio.sleep(0.6)
        return await super().remote(edition, *args)


def test_a_slow_answer_goes_out_without_a_tree_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes after half of the time limit, which leaves the other tree less than twice its time."""
    monkeypatch.setattr(fan_out, "PATIENCE_S", 0.05)

    async def story() -> None:
        away = Handle("tree-1")
        away.holds = set()
        deployments = FanOut([Slow("tree-0"), away], limit_s=1)  # type: ignore[list-item]
        assert await deployments.call("rank", OLD) == {"tree-0": True}
        assert deployments.deployments[1].is_away

    asyncio.run(story())


def test_a_bundle_is_used_once_a_member_holds_it() -> None:
    """However long that takes: requests for it would all end at their time limit."""

    async def story() -> None:
        slow = Handle("members")
        slow.holds = set()
        deployments = FanOut([slow], limit_s=1)  # type: ignore[list-item]
        opening = asyncio.create_task(deployments.open(NEW, 0.05))
        await asyncio.sleep(0.2)
        assert not opening.done()
        slow.holds = {OLD, NEW}
        await opening
        assert await deployments.call("rank", NEW) == {"members": True}

    asyncio.run(story())


def test_a_call_that_its_caller_calls_off_ends() -> None:
    async def story() -> None:
        away = Handle("tree-0")
        away.holds = set()
        deployments = FanOut([away], limit_s=60)  # type: ignore[list-item]
        call = asyncio.create_task(deployments.call("rank", OLD))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        asked = len(away.asked)
        await asyncio.sleep(0.1)
        assert len(away.asked) == asked == 1
        assert len(asyncio.all_tasks()) == 1  # this one

    asyncio.run(story())
