"""The application that Ray Serve runs.

serve run serve_app.app:build bundle=bundles/quickstart [key=value …]

One ingress answers HTTP, tokenises, collects batches and combines; the members are in one deployment, or each label
tree's in one of its own, and those of the whole run in another (`together=false`). `serve_app.serving` lists the
settings. A new bundle is rolled out by deploying the same application with another `bundle`, or with another
`revision` after exporting to the same place again: requests are answered from the old one until all deployments hold
the new one.
"""

import os
from dataclasses import asdict
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from axml_ray.inference.bundle import Bundle
from serve_app.api import make_api
from serve_app.edition import Edition
from serve_app.fan_out import FanOut
from serve_app.guard import KEYS_VARIABLE, keys_of_environment
from serve_app.members import Members
from serve_app.service import Service, logger, read_examples
from serve_app.serving import Served, Serving

MANY = 10_000
"""Requests that Serve lets through; the application's own limit of waiting texts comes first."""
INGRESS_CPUS = 0.1
"""That Ray reserves for a replica of the ingress."""


@serve.ingress()
class Ingress:
    """Answers HTTP.

    Args:
        serving: settings.
        holders: the deployments that hold the members.
    """

    def __init__(self, serving: Serving, *holders: DeploymentHandle):
        self.service = Service(serving, FanOut(holders, serving.tree_patience_s, serving.time_limit_s))

    async def reconfigure(self, config: dict[str, str]) -> None:
        """Answer from a bundle from now on."""
        await self.service.use(Edition(**config))

    async def drain(self) -> bool:
        """Refuse new requests from now on, and wait for those under way: the server is about to end."""
        return await self.service.drain()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        keys = keys_of_environment()
        logger.info("%s", f"{len(keys)} keys are in force" if keys else f"{KEYS_VARIABLE} is not set: all may ask")
        return make_api(self.service, keys)


def parts_of(bundle: Bundle) -> dict[str, list[str] | None]:
    """Names of a bundle's members by deployment: one for each label tree, and one for the members of the whole run."""
    parts: dict[str, list[str] | None] = {}
    for entry in bundle.manifest.members:
        place = "run" if entry.tree is None else f"tree-{entry.tree + 1}"
        parts[place] = [*(parts.get(place) or []), entry.name]
    return parts


def build(args: dict[str, Any]) -> Application:
    """The application.

    Args:
        args: settings of `Served`, by name.

    Raises:
        SettingsError: a setting is unknown or wrong, or the bundle, the examples or the keys can't be used.
    """
    serving = Served.of(args)
    if serving.examples:  # in a replica the same error would be a page of Serve's
        read_examples(serving.examples)
    keys_of_environment()
    edition = Edition.checked(serving.bundle)
    parts: dict[str, list[str] | None] = {"members": None}
    if not serving.together:
        parts = parts_of(edition.open())
    threads = serving.threads or max(1, (os.cpu_count() or 1) // len(parts))
    size: dict[str, Any] = {"num_replicas": serving.replicas}
    if serving.max_replicas:
        size = {
            "autoscaling_config": {
                "min_replicas": serving.replicas,
                "max_replicas": serving.max_replicas,
                "target_ongoing_requests": serving.batches_at_once,
            }
        }
    holders = [
        serve.deployment(Members)
        .options(
            name=name,
            max_ongoing_requests=MANY,
            max_surge_percent=100,
            graceful_shutdown_timeout_s=serving.drain_s,
            user_config=asdict(edition),
            ray_actor_options={"num_cpus": serving.cpus},
            **size,
        )
        .bind(names, threads, serving.precision)
        for name, names in parts.items()
    ]
    return (
        serve.deployment(Ingress)
        .options(
            name="ingress",
            num_replicas=serving.ingress_replicas,
            max_ongoing_requests=MANY,
            max_surge_percent=100,
            graceful_shutdown_timeout_s=serving.drain_s,
            user_config=asdict(edition),
            ray_actor_options={"num_cpus": INGRESS_CPUS},
        )
        .bind(serving.alone, *holders)
    )
