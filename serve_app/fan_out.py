"""The trees, wherever they are, asked at the same time; those that don't answer are done without until they are back.

- A replica that dies under a call costs another call, not an answer.
- A tree is given up for one answer once the others have had theirs for a while; from then on it isn't waited for, and
  is asked in the background whether it is back.
- If no tree is left, callers wait for the first to return. A time limit ends that, and the tries of a call that ends
  every replica it comes to.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextvars import Context
from typing import Any

from ray.exceptions import RayActorError, TaskCancelledError
from ray.serve.exceptions import ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from serve_app.edition import Edition

LOST = (RayActorError, TaskCancelledError, ReplicaUnavailableError)
"""What a call raises whose replica died, or was stopped, before it answered."""
PAUSE_S = 0.05
"""Between a call that was lost and the next."""
PROBE_S = 0.5
"""Between questions whether a tree is back."""

logger = logging.getLogger("ray.serve")


class Member:
    """A deployment that holds some of the trees.

    Args:
        handle: of it.
    """

    def __init__(self, handle: DeploymentHandle):
        self.handle, self.away = handle, False
        self.name = handle.deployment_name

    async def call(self, method: str, edition: Edition, *args: Any) -> list[Any]:
        """What the deployment answers, after as many tries as it takes."""
        while True:
            try:
                return await getattr(self.handle, method).remote(edition, *args)
            except (*LOST, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise  # nobody wants the answer any more; else it was Serve that called the call off
                logger.warning("%s: a call was lost (%s); trying again", self.name, type(error).__name__)
                await asyncio.sleep(PAUSE_S)


class FanOut:
    """All members.

    Args:
        handles: of the deployments.
        patience_s: how long a member is waited for, at the least, once others have answered.
        limit_s: for an answer.
    """

    def __init__(self, handles: Sequence[DeploymentHandle], patience_s: float, limit_s: float):
        self.members = [Member(handle) for handle in handles]
        self._patience, self._limit = patience_s, limit_s
        self._probes: set[asyncio.Task[None]] = set()
        self._newest: Edition | None = None

    async def ask(self, method: str, edition: Edition, *args: Any) -> list[Any]:
        """The answers of all trees that are there, in the order of their numbers.

        Args:
            method: of `Trees`.
            edition: the bundle that is meant.
            args: of the method.

        Raises:
            TimeoutError: none answered within the limit.
            Exception: what a member raised for a reason other than its end, such as an `explain` without attention.
        """
        async with asyncio.timeout(self._limit):
            return await self._ask(method, edition, *args)

    async def _ask(self, method: str, edition: Edition, *args: Any) -> list[Any]:
        asked = [member for member in self.members if not member.away] or self.members
        calls = {member: asyncio.create_task(member.call(method, edition, *args)) for member in asked}
        started, left, patience = time.monotonic(), set(calls.values()), None
        try:
            while left:
                done, left = await asyncio.wait(left, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                # A tree may well need as long again as another.
                patience = max(self._patience, time.monotonic() - started)
            for member, call in calls.items():
                if call in left:
                    self._lose(member, edition)
                elif not call.exception():
                    member.away = False
            return [answer for call in calls.values() if call.done() for answer in call.result()]
        finally:
            for call in calls.values():
                call.cancel()

    async def ready(self, edition: Edition) -> int:
        """How many trees of a bundle are there."""
        return len(await self.ask("ready", edition))

    async def open(self, edition: Edition, limit_s: float) -> None:
        """Let all members open a bundle, for as long as a limit allows.

        Args:
            edition: the bundle.
            limit_s: seconds.

        Raises:
            Exception: a member can't.
        """
        calls = [asyncio.create_task(member.call("ready", edition)) for member in self.members]
        done, late = await asyncio.wait(calls, timeout=limit_s)
        for call in late:
            call.cancel()
        for call in done:
            call.result()
        self._newest = edition
        for member, call in zip(self.members, calls, strict=True):
            member.away = member.away and call not in done

    def _lose(self, member: Member, edition: Edition) -> None:
        if member.away:
            return
        member.away = True
        logger.warning("%s doesn't answer; going on without it", member.name)
        probe = asyncio.create_task(self._until_back(member, edition), context=Context())  # no request's, as a batch
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    async def _until_back(self, member: Member, edition: Edition) -> None:
        while member.away:
            try:
                # Once it is back it may be of the bundle that was rolled out meanwhile, and no longer of that one.
                await member.call("ready", self._newest or edition)
            except Exception as error:
                logger.warning("%s: %s", member.name, error)
                await asyncio.sleep(PROBE_S)
            else:
                member.away = False
                logger.warning("%s answers again", member.name)
