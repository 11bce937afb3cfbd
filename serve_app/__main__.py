"""Serve a bundle on this machine.

python -m serve_app bundle=bundles/quickstart [host=127.0.0.1] [port=8000] [key=value …]

Interrupted or terminated, it refuses new requests, answers those under way, and ends. On a cluster, `serve deploy
serve_app/serve.yaml` does the same from a file.
"""

import argparse
import atexit
import logging
import os
import signal
import sys
import textwrap
import time
from contextlib import suppress
from typing import Annotated, Any

from pydantic import Field

from axml_ray.cluster import connect
from axml_ray.console import job_of_flags
from axml_ray.settings import SettingsError
from serve_app.address import check_address
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
    """Add the command line's words to a parser, and all settings to its help."""
    parser.prog, parser.formatter_class = "python -m serve_app", argparse.RawDescriptionHelpFormatter
    parser.add_argument("settings", nargs="*", metavar="key=value", help="bundle=DIRECTORY, and what else differs")
    parser.epilog = "settings:\n" + "\n".join(
        textwrap.fill(f"{name:<18} {told}", 110, initial_indent="  ", subsequent_indent=" " * 21)
        for name, told in descriptions().items()
    )


def descriptions() -> dict[str, str]:
    """What each setting means, and its default; the one that must be given first, then the address."""
    fields, first = Here.model_fields, ("bundle", "host", "port")
    told = {}
    for name in (*first, *(name for name in fields if name not in first)):
        default = fields[name].default
        shown = "required" if fields[name].is_required() else f"default {str(default).lower()}"
        told[name] = f"{fields[name].description}" + ("" if default in (None, "") else f" ({shown})")
    return told


@job_of_flags(__doc__, flags)
def main(words: argparse.Namespace) -> None:
    """Serve until a signal comes."""
    settings = Here.of(pairs(words.settings))
    stopped = {signal.SIGINT, signal.SIGTERM}
    own_cluster = not os.environ.get("RAY_ADDRESS")
    if own_cluster:
        check_reach(settings)
    connect()
    import ray
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    from serve_app.app import build

    application = build(given(settings, Served))
    check_fits(settings)
    signal.pthread_sigmask(signal.SIG_BLOCK, stopped)  # a signal waits until the application stands
    if own_cluster:
        check_address(settings.host, settings.port)  # again: Ray took seconds to start
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
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    with suppress(TimeoutError, ray.exceptions.RayError):  # what isn't answered by then never will be
        if any(handle.broadcast("drain").results(timeout_s=settings.drain_s)):
            time.sleep(SENT_S)
    if not own_cluster:
        serve.shutdown()
        return
    # Serve's own end takes ten seconds or more, and so does Python's, which frees all that PyTorch and Ray loaded.
    ray.shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


def check_reach(settings: Here) -> None:
    """Check the address, and warn where other machines may use the server without a key.

    Raises:
        SettingsError: the port is in use, or the address can't be listened on.
    """
    if check_address(settings.host, settings.port):
        return
    from serve_app.guard import KEYS_VARIABLE, keys_of_environment  # imports PyTorch

    if not keys_of_environment():
        print(
            f"warning: host={settings.host} lets everyone who reaches this machine use the server; set {KEYS_VARIABLE} "
            "to one or more keys, separated by commas, of which clients must send one",
            file=sys.stderr,
        )


def check_fits(settings: Served) -> None:
    """Raise where replicas could never start on a cluster of our own, instead of waiting for ever.

    Raises:
        SettingsError: they ask for more CPUs than this machine has.
    """
    import ray

    from axml_ray.inference.bundle import Bundle
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
