"""Parallel calls to the deployments of ensemble members; deployments that do not answer are left out until they do.

- If a replica dies during a call, the call is repeated.
- Once the other deployments have answered, a missing one is waited for at most `PATIENCE_S` longer. It is then marked
  as away, is left out of further answers, and is probed in the background until it answers again.
- If all deployments are away, callers wait for the first to return. A time limit ends this, and also the attempts of a
  call that kills every replica.
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
"""Errors of a call whose replica died, or was stopped, before it answered."""
PAUSE_S = 0.05
"""Seconds between a lost call and its repetition."""
PATIENCE_S = 1.0
"""Least seconds that a deployment is waited for once the others have answered."""
PROBE_S = 0.5
"""Seconds between probes of a deployment that is away."""

logger = logging.getLogger("ray.serve")


class MemberDeployment:
    """A deployment with some of the members; it is away while it did not answer in time, and has not answered since."""

    def __init__(self, handle: DeploymentHandle):
        self.handle, self.is_away = handle, False
        self.name = handle.deployment_name

    async def call(self, method: str, edition: Edition, *args: Any) -> dict[str, Any]:
        """Return the deployment's answer by member, repeating calls that are lost; the caller sets a time limit."""
        while True:
            try:
                return await getattr(self.handle, method).remote(edition, *args)
            except (*LOST, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise  # this task itself was cancelled; otherwise Serve cancelled the call
                logger.warning("%s: a call was lost (%s); trying again", self.name, type(error).__name__)
                await asyncio.sleep(PAUSE_S)


class FanOut:
    """Calls all deployments of members in parallel, with a time limit of an answer in seconds."""

    def __init__(self, handles: Sequence[DeploymentHandle], limit_s: float):
        self.deployments = [MemberDeployment(handle) for handle in handles]
        self._limit = limit_s
        self._probes: set[asyncio.Task[None]] = set()
        self._newest: Edition | None = None

    async def call(self, method: str, edition: Edition, *args: Any) -> dict[str, Any]:
        """Call a method of `Members` with an edition that must answer; return the answers of all available members.

        Raises:
            TimeoutError: no deployment answered within the limit.
            Exception: an error that a deployment raised itself.
        """
        called = [deployment for deployment in self.deployments if not deployment.is_away] or self.deployments
        calls = {member: asyncio.create_task(member.call(method, edition, *args)) for member in called}
        started, pending, patience = time.monotonic(), set(calls.values()), None
        try:
            async with asyncio.timeout(self._limit):
                while pending:
                    done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                    if not done:
                        break
                    # A slow deployment gets at least twice the time of the one that answered last, within the limit.
                    elapsed = time.monotonic() - started
                    patience = min(max(PATIENCE_S, elapsed), 0.9 * (self._limit - elapsed))
            for deployment, call in calls.items():
                if call in pending:
                    self._mark_away(deployment, edition)
                elif not call.exception():
                    deployment.is_away = False
            done_calls = [call.result() for call in calls.values() if call.done()]
            return {name: answer for answers in done_calls for name, answer in answers.items()}
        finally:
            for call in calls.values():
                call.cancel()

    async def open(self, edition: Edition, limit_s: float) -> None:
        """Make all deployments open a bundle; those that take longer than `limit_s` are left out, if not all do.

        Raises:
            Exception: a deployment cannot open the bundle.
        """
        calls = [asyncio.create_task(deployment.call("ready", edition)) for deployment in self.deployments]
        done, pending = await asyncio.wait(calls, timeout=limit_s)
        if not done:
            done, pending = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        for call in pending:
            call.cancel()
        for call in done:
            call.result()
        self._newest = edition
        for deployment, call in zip(self.deployments, calls, strict=True):
            deployment.is_away = deployment.is_away and call not in done

    def _mark_away(self, deployment: MemberDeployment, edition: Edition) -> None:
        """Leave a deployment out of further answers and start to probe it."""
        if deployment.is_away:
            return
        deployment.is_away = True
        logger.warning("%s does not answer; continuing without it", deployment.name)
        # In a context of its own: in a request's context, Serve would cancel the probe together with the request.
        probe = asyncio.create_task(self._probe(deployment, edition), context=Context())
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    async def _probe(self, deployment: MemberDeployment, edition: Edition) -> None:
        """Call a deployment until it answers again."""
        while deployment.is_away:
            try:
                # A new bundle may have been rolled out meanwhile, and the deployment may no longer have the old one.
                await deployment.call("ready", self._newest or edition)
            except Exception as error:
                logger.warning("%s: %s", deployment.name, error)
                await asyncio.sleep(PROBE_S)
            else:
                deployment.is_away = False
                logger.warning("%s answers again", deployment.name)
