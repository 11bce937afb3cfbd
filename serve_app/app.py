"""The Ray Serve application.

serve run serve_app.app:build bundle=bundles/quickstart [key=value …]

The ingress answers HTTP, tokenises, forms batches and combines the members' scores. The members are in one deployment
or, with `colocate_members=false`, in one for each label tree and another for the members of the whole run.
`serve_app.settings` lists the settings. To roll out a new bundle, deploy the same application with another `bundle`, or
with another `revision` after exporting to the same directory again: requests are answered from the old bundle until all
deployments have opened the new one.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from axml_ray.cluster.capacity import largest_node
from axml_ray.core.limits import available_cpus
from axml_ray.core.memory import PROCESS_BYTES
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.planning.phases import predictor_bytes
from axml_ray.settings.members import kinds
from serve_app.api import make_api
from serve_app.edition import Edition
from serve_app.fan_out import FanOut
from serve_app.guard import KEYS_VARIABLE, keys_of_environment
from serve_app.listener import listen
from serve_app.members import Members
from serve_app.service import Service, logger, read_examples
from serve_app.settings import INFLIGHT_BATCHES, ApplicationSettings, ServingSettings

MANY = 10_000
"""Requests that Serve admits to a deployment: more than the application's own queue ever lets through."""
HEALTH_CHECK_S, HEALTH_ANSWER_S = 1.0, 4.0
"""Seconds between health checks of a replica, and for the answer to one; after three failures Serve replaces it."""
INGRESS_CPUS = 0.1
"""CPUs that Ray reserves for a replica of the ingress."""


@serve.ingress()
class Ingress:
    """The deployment that answers HTTP requests: on an address of its own, or through Serve's proxies."""

    def __init__(self, serving: ServingSettings, address: tuple[str, int] | None, *handles: DeploymentHandle):
        self.service = Service(serving, FanOut(handles, serving.time_limit_s))
        self._address = address
        self._server: asyncio.Task[None] | None = None

    async def reconfigure(self, config: dict[str, str]) -> None:
        """Answer new requests from another bundle; Serve calls this with `user_config`.

        Raises:
            OSError: the replica cannot listen on its address.
        """
        await self.service.use(Edition(**config))
        if self._address and not self._server:
            self._server = await listen(self._api, *self._address)

    async def check_health(self) -> None:
        """Raise an error if the HTTP server of this replica has ended; Serve calls this regularly."""
        if self._server and self._server.done():
            raise RuntimeError("the HTTP server has ended")

    async def drain(self) -> bool:
        """Refuse new requests and drain those in flight, before the server exits; return whether there were any."""
        return await self.service.drain()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        keys = keys_of_environment()
        access = f"{len(keys)} API keys are accepted" if keys else f"{KEYS_VARIABLE} is not set: no key is required"
        logger.info("%s", access)
        self._api = make_api(self.service, keys)
        return self._api


def deployments(serving: ApplicationSettings, bundle: Bundle) -> dict[str, tuple[list[str] | None, float]]:
    """Return the names of members by deployment, None for all, and the GPUs of its replicas, which only networks use.

    With `colocate_members=false` there is a deployment for each label tree, and one for the members of the whole run.
    """
    names: dict[str, list[str]] = {}
    gpus: dict[str, float] = {}
    for entry in bundle.manifest.members:
        part = "run" if entry.tree is None else f"tree-{entry.tree + 1}"
        deployment = "members" if serving.colocate_members else part
        names.setdefault(deployment, []).append(entry.name)
        used = serving.gpus if kinds()[entry.kind].load().trained_by_workers else 0.0
        gpus[deployment] = max(used, gpus.get(deployment, 0.0))
    return {name: (None if serving.colocate_members else names[name], gpus[name]) for name in names}


def members_memory(bundle: Bundle, names: Sequence[str] | None) -> float:
    """Return the bytes that Ray reserves for a replica with some members of a bundle, or all.

    At most half of the largest node, as the old and the new replica are there during a roll-out.
    """
    left_out = (
        [] if names is None else [f"{entry.path}/" for entry in bundle.manifest.members if entry.name not in names]
    )
    # Files outside of the members' directories are common to all.
    size = sum(file.bytes for name, file in bundle.manifest.files.items() if not name.startswith(tuple(left_out)))
    return min(predictor_bytes(size), largest_node("memory") // 2)


def build(args: dict[str, Any]) -> Application:
    """Build the application for `serve run` and `serve deploy` from values of `ApplicationSettings` by name.

    Raises:
        SettingsError: a setting is unknown or has a wrong value, or the bundle, the examples or the keys are unusable.
    """
    return make_application(ApplicationSettings.from_arguments(args))


def make_application(serving: ApplicationSettings, address: tuple[str, int] | None = None) -> Application:
    """Return the application, whose ingress listens on a host and port itself, or leaves that to Serve's proxies.

    Raises:
        SettingsError: the bundle, the examples or the keys are unusable.
    """
    # Checked here, since an error in a replica is reported as a long traceback by Serve.
    if serving.examples:
        read_examples(serving.examples)
    keys_of_environment()
    edition = Edition.checked(serving.bundle)
    bundle = edition.open()
    groups = deployments(serving, bundle)
    threads = max(1, available_cpus() // len(groups) if serving.cpus is None else int(serving.cpus))
    scaling: dict[str, Any] = {"num_replicas": serving.replicas}
    if serving.max_replicas:
        scaling = {
            "autoscaling_config": {
                "min_replicas": serving.replicas,
                "max_replicas": serving.max_replicas,
                "target_ongoing_requests": INFLIGHT_BATCHES,
            }
        }
    common: dict[str, Any] = {
        "max_ongoing_requests": MANY,
        "max_surge_percent": 100,  # replicas of a new bundle start in addition to the old ones, which stay if they fail
        "graceful_shutdown_timeout_s": serving.drain_s,
        "health_check_period_s": HEALTH_CHECK_S,
        "health_check_timeout_s": HEALTH_ANSWER_S,
        "user_config": asdict(edition),
    }
    # A cluster of its own runs nothing else, and replicas on one machine share the memory of mapped weights.
    members = [
        serve.deployment(Members)
        .options(
            name=name,
            ray_actor_options={"num_cpus": serving.reserved_cpus, "num_gpus": gpus}
            | ({} if address else {"memory": members_memory(bundle, names)}),
            **common,
            **scaling,
        )
        .bind(names, threads, gpus, serving.time_limit_s)
        for name, (names, gpus) in groups.items()
    ]
    return (
        serve.deployment(Ingress)
        .options(
            name="ingress",
            num_replicas=serving.ingress_replicas,
            ray_actor_options={"num_cpus": INGRESS_CPUS} | ({} if address else {"memory": PROCESS_BYTES}),
            **common,
        )
        .bind(serving.without_bundle, address, *members)
    )
