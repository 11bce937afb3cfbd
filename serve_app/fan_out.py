"""Deployments of ensemble members, called at the same time; those that do not answer are left out until they are back.

- A replica that dies under a call costs another call, not an answer.
- A deployment is given up for one answer once the others have had theirs for a while; from then on it is not waited
  for, and is called in the background until it is back.
- If no deployment is left, callers wait for the first to return. A time limit ends that, and the tries of a call
  that ends every replica it comes to.
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


class Holder:
    """A deployment that holds some of the members.

    Args:
        handle: of it.
    """

    def __init__(self, handle: DeploymentHandle):
        self.handle, self.away = handle, False
        self.name = handle.deployment_name

    async def call(self, method: str, edition: Edition, *args: Any) -> dict[str, Any]:
        """The deployment's answer by member, after as many tries as it takes."""
        while True:
            try:
                return await getattr(self.handle, method).remote(edition, *args)
            except (*LOST, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise  # the caller was cancelled; otherwise Serve cancelled the call
                logger.warning("%s: a call was lost (%s); trying again", self.name, type(error).__name__)
                await asyncio.sleep(PAUSE_S)


class FanOut:
    """All deployments of members.

    Args:
        handles: of the deployments.
        patience_s: how long a deployment is waited for, at the least, once others have answered.
        limit_s: for an answer.
    """

    def __init__(self, handles: Sequence[DeploymentHandle], patience_s: float, limit_s: float):
        self.holders = [Holder(handle) for handle in handles]
        self._patience, self._limit = patience_s, limit_s
        self._probes: set[asyncio.Task[None]] = set()
        self._newest: Edition | None = None

    async def call(self, method: str, edition: Edition, *args: Any) -> dict[str, Any]:
        """The answers of all members that are there, by name.

        Args:
            method: of `Members`.
            edition: the bundle that is meant.
            args: of the method.

        Raises:
            TimeoutError: none answered within the limit.
            Exception: raised by a deployment for a reason other than its end.
        """
        async with asyncio.timeout(self._limit):
            return await self._call(method, edition, *args)

    async def _call(self, method: str, edition: Edition, *args: Any) -> dict[str, Any]:
        called = [holder for holder in self.holders if not holder.away] or self.holders
        calls = {holder: asyncio.create_task(holder.call(method, edition, *args)) for holder in called}
        started, left, patience = time.monotonic(), set(calls.values()), None
        try:
            while left:
                done, left = await asyncio.wait(left, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                # A deployment may well need as long again as another.
                patience = max(self._patience, time.monotonic() - started)
            for holder, call in calls.items():
                if call in left:
                    self._lose(holder, edition)
                elif not call.exception():
                    holder.away = False
            return {name: each for call in calls.values() if call.done() for name, each in call.result().items()}
        finally:
            for call in calls.values():
                call.cancel()

    async def ready(self, edition: Edition) -> list[str]:
        """Names of a bundle's members that are there."""
        return list(await self.call("ready", edition))

    async def open(self, edition: Edition, limit_s: float) -> None:
        """Let all deployments open a bundle, within a limit.

        Args:
            edition: the bundle.
            limit_s: seconds.

        Raises:
            Exception: a deployment cannot open it.
        """
        calls = [asyncio.create_task(holder.call("ready", edition)) for holder in self.holders]
        done, late = await asyncio.wait(calls, timeout=limit_s)
        for call in late:
            call.cancel()
        for call in done:
            call.result()
        self._newest = edition
        for holder, call in zip(self.holders, calls, strict=True):
            holder.away = holder.away and call not in done

    def _lose(self, holder: Holder, edition: Edition) -> None:
        if holder.away:
            return
        holder.away = True
        logger.warning("%s does not answer; going on without it", holder.name)
        probe = asyncio.create_task(self._until_back(holder, edition), context=Context())  # no request's, as a batch
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    async def _until_back(self, holder: Holder, edition: Edition) -> None:
        while holder.away:
            try:
                # Once it is back it may be of the bundle that was rolled out meanwhile, and no longer of that one.
                await holder.call("ready", self._newest or edition)
            except Exception as error:
                logger.warning("%s: %s", holder.name, error)
                await asyncio.sleep(PROBE_S)
            else:
                holder.away = False
                logger.warning("%s answers again", holder.name)
