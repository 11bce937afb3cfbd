"""Serve a bundle on this machine.

axml-ray serve --bundle bundles/quickstart [--host 127.0.0.1] [--port 8000] …

It starts a cluster of its own. On SIGINT or SIGTERM the server refuses new requests, drains those in flight and exits.
`serve deploy serve_app/serve.yaml` deploys onto a running cluster.
"""

import argparse
import atexit
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field

from axml_ray.cli.console import job_of_flags
from axml_ray.cluster.capacity import max_processes
from axml_ray.cluster.connection import connect
from axml_ray.core.errors import SettingsError
from axml_ray.core.extras import require_extra
from axml_ray.core.paths import with_urls
from serve_app.settings import ApplicationSettings

RAY_VARIABLES = {
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",  # calls from the ingress to the members
    "RAY_SERVE_FREEZE_GC_ON_STARTUP": "1",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
}
"""Settings of Ray Serve that save about a tenth of a request."""
SENT_S = 0.5
"""Seconds that the server gets to send the last answers."""


class ServerSettings(ApplicationSettings):
    """Settings of the application and of the address that the server listens on."""

    host: str = "127.0.0.1"
    """Address to listen on; by default only this machine can reach the server."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 8000
    """Port to listen on."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting to a parser, with the bundle and the address first."""
    if parser.prog == Path(__file__).name:
        parser.prog = "python -m serve_app"
    fields, first = ServerSettings.model_fields, ("bundle", "host", "port")
    for name in (*first, *(name for name in fields if name not in first)):
        default = fields[name].default
        note = "required" if fields[name].is_required() else f"default {str(default).lower()}"
        text = f"{fields[name].description}" + ("" if default in (None, "") else f" ({note})")
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, metavar="VALUE", help=text.replace("%", "%%"), default=argparse.SUPPRESS)


@job_of_flags(__doc__, add_flags)
def main(given: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        SettingsError: the packages of the extra `serve` are not installed, a setting is wrong, or `RAY_ADDRESS` is set.
    """
    require_extra("serve")
    settings = ServerSettings.from_arguments(vars(given))
    if os.environ.get("RAY_ADDRESS"):
        raise SettingsError(
            "RAY_ADDRESS: this command starts a cluster of its own; unset it, or deploy onto that cluster with "
            "`serve deploy serve_app/serve.yaml`"
        )
    # Read when Ray Serve is imported, by this process and by those that it starts.
    for name, value in RAY_VARIABLES.items():
        os.environ.setdefault(name, value)
    check_reach(settings)
    from axml_ray.inference.bundle.bundle import Bundle

    Bundle.open(settings.bundle, verify=False)  # an error here comes before Ray starts
    connect()
    import ray
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    from serve_app.app import make_application
    from serve_app.listener import check_address

    application = make_application(settings, (settings.host, settings.port))
    check_fits(settings)
    end_signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, end_signals)  # a signal is delivered once the application is running
    check_address(settings.host, settings.port)  # again, as another server may have started while Ray did
    serve.start(proxy_location="Disabled")  # the ingress itself listens on the address
    handle = serve.run(application, name="axml-ray")
    [node] = ray.nodes()
    metrics = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{settings.port}"
    print(f"Serving {with_urls(settings.bundle)} at {address} (API: /docs; Prometheus: {metrics})")
    print("Press Ctrl-C to stop.", flush=True)
    signal.sigwait(end_signals)
    print("Draining requests in flight …")
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    with suppress(TimeoutError, ray.exceptions.RayError):  # requests that exceed the limit are not waited for
        if any(handle.broadcast("drain").results(timeout_s=settings.drain_s)):
            time.sleep(SENT_S)
    # `serve.shutdown` takes ten seconds or more, and so does the interpreter's exit, which frees all that PyTorch and
    # Ray loaded. Exit handlers are run by hand, as `os._exit` skips them.
    ray.shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


def check_reach(settings: ServerSettings) -> None:
    """Check the address, and warn if other machines could use the server without an API key.

    Raises:
        SettingsError: the port is in use, or the server cannot listen on the address.
    """
    from serve_app.listener import check_address

    if check_address(settings.host, settings.port):
        return
    from serve_app.guard import KEYS_VARIABLE, keys_of_environment  # imports PyTorch

    if not keys_of_environment():
        print(
            f"warning: host={settings.host} lets everyone who can reach this machine use the server; set "
            f"{KEYS_VARIABLE} to one or more keys, separated by commas, of which clients must send one",
            file=sys.stderr,
        )


def check_fits(settings: ApplicationSettings) -> None:
    """Check that all replicas fit on this process's own cluster; otherwise Serve would wait for them indefinitely.

    Raises:
        SettingsError: the replicas need more CPUs or GPUs than this machine has, or PyTorch cannot use its GPUs.
    """
    import ray

    from axml_ray.cluster.tasks import check_device
    from axml_ray.inference.bundle.bundle import Bundle
    from axml_ray.network.backends.devices import reserved_device
    from serve_app.app import INGRESS_CPUS, deployments

    gpus = [number for _, number in deployments(settings, Bundle.open(settings.bundle, verify=False)).values()]
    replicas, cpus = settings.replicas * len(gpus), settings.reserved_cpus
    required = replicas * cpus + settings.ingress_replicas * INGRESS_CPUS
    if required > (available := ray.cluster_resources().get("CPU", 0)):
        raise SettingsError(
            f"replicas: {replicas} replicas of members × {cpus:g} CPUs and {settings.ingress_replicas} of the ingress "
            f"× {INGRESS_CPUS} need {required:g} CPUs, this machine has {available:g}; lower replicas or cpus"
        )
    replicas = settings.replicas * sum(map(bool, gpus))
    if not replicas:
        return
    if (fit := max_processes({"GPU": settings.gpus})) < replicas:
        raise SettingsError(
            f"gpus: {replicas} replicas of members × {settings.gpus:g} GPUs are required, and this machine has room "
            f"for {fit}; lower replicas or gpus"
        )
    check_device(reserved_device, {"GPU": settings.gpus})


if __name__ == "__main__":
    main()
