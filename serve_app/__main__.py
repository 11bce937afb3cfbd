"""Serve a bundle on this machine.

python -m serve_app bundle=bundles/quickstart [host=127.0.0.1] [port=8000] [key=value …]

The keys are those of `serve_app.serving`. Interrupted or terminated, it refuses new requests, answers those under way,
and ends. On a cluster, `serve deploy serve_app/serve.yaml` does the same from a file.
"""

import argparse
import logging
import os
import signal
import time
from contextlib import suppress
from typing import Annotated, Any

from pydantic import Field

from axml_ray.cluster import connect
from axml_ray.console import job_of_flags
from axml_ray.inference.bundle import Bundle
from axml_ray.settings import SettingsError
from serve_app.serving import Served, given

APPLICATION = "axml-ray"
SENT_S = 0.5
"""For the proxy to send on what was answered."""


class Here(Served):
    """Settings of the application, and where it is reached."""

    host: str = "127.0.0.1"
    """Address to listen on; only this machine by default."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 8000
    """Port to listen on."""


def flags(parser: argparse.ArgumentParser) -> None:
    """What stands on the command line."""
    parser.add_argument("settings", nargs="*", metavar="key=value", help="bundle=DIRECTORY, and what else differs")


@job_of_flags(__doc__, flags)
def main(words: argparse.Namespace) -> None:
    """Serve until a signal comes."""
    settings = Here.of(pairs(words.settings))
    stopped = {signal.SIGINT, signal.SIGTERM}
    connect()
    import ray
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    from serve_app.app import build

    application = build(given(settings, Served))
    check_fits(settings)
    signal.pthread_sigmask(signal.SIG_BLOCK, stopped)  # a signal waits until the application stands
    serve.start(http_options={"host": settings.host, "port": settings.port})
    handle = serve.run(application, name=APPLICATION)
    here = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == here)
    metrics = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    print(
        f"Serving {settings.bundle} at http://{settings.host}:{settings.port} (the API: /docs; Prometheus: {metrics})"
    )
    print("Ctrl-C ends it.", flush=True)
    signal.sigwait(stopped)
    print("Answering what is under way …")
    with suppress(TimeoutError, ray.exceptions.RayError):  # what isn't answered by then never will be
        handle.broadcast("drain").results(timeout_s=settings.drain_s)
    time.sleep(SENT_S)
    serve.shutdown()


def check_fits(settings: Served) -> None:
    """Raise where replicas could never start on a cluster of our own, instead of waiting for ever.

    Raises:
        SettingsError: they ask for more CPUs than this machine has.
    """
    import ray

    from serve_app.app import INGRESS_CPUS, parts_of

    if os.environ.get("RAY_ADDRESS"):
        return  # that cluster may grow
    parts = 1 if settings.together else len(parts_of(Bundle.open(settings.bundle, verify=False)))
    holders = settings.replicas * parts
    asked = holders * settings.cpus + settings.ingress_replicas * INGRESS_CPUS
    have = ray.cluster_resources().get("CPU", 0)
    if asked > have:
        raise SettingsError(
            f"replicas: {holders} of members × {settings.cpus:g} CPUs and {settings.ingress_replicas} of the ingress × "
            f"{INGRESS_CPUS} ask for {asked:g}, Ray has {have:g} here; lower replicas or cpus"
        )


def pairs(words: list[str]) -> dict[str, Any]:
    """`key=value` words as settings.

    Raises:
        SettingsError: a word isn't one, or a key stands there twice.
    """
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise SettingsError(f"command line: {word!r}: expected key=value, such as bundle=bundles/quickstart")
        if key in found:
            raise SettingsError(f"command line: {key} is given twice")
        found[key] = value
    return found


if __name__ == "__main__":
    main()
