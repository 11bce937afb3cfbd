"""The Ray cluster that a job runs on: the one it was submitted to, or one in its own process."""

import atexit
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axml_ray.authentication import authentication_is_on, ensure_token
from axml_ray.memory import ONE_ARENA
from axml_ray.settings import ResourceSettings, SettingsError

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 1 << 30
TOLD = re.compile(r"^([\w.]+\.)?(RuntimeError|SettingsError|OSError): ")
"""Before what is told of an error: kinds that say nothing to a person."""
RAY_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A checkpoint or a death is noticed when the controller polls; its default of 2 s is felt in short trainings.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # Launchers and controllers hold no CPU, so more processes than cores start at once; Ray would warn of each.
    "RAY_worker_maximum_startup_concurrency": "8",
}
"""Environment variables that Ray's processes are started with, where the user hasn't set them."""
CLEAN_UP_S = 10
"""How long the files of a cluster that has ended are waited for at most."""

_directory: Path | None = None
"""Temporary files of the cluster that this process started."""
_job_failed = False


def connect() -> None:
    """Join the cluster that `RAY_ADDRESS` names (as `ray job submit` sets it), else start one in this process.

    Raises:
        SettingsError: no cluster answers at `RAY_ADDRESS`, or there is no token for a cluster of our own.
    """
    for name, value in RAY_VARIABLES.items():
        os.environ.setdefault(name, value)
    if not os.environ.get("RAY_ADDRESS"):
        # Nobody takes this machine away with notice, and a process for each tree that asks wakes 100 times a second.
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    import ray

    if ray.is_initialized():
        return
    address = os.environ.get("RAY_ADDRESS")
    log.info("ray: %s", f"joining the cluster at {address}" if address else "starting on this machine")
    # Ray Train trains in a thread.
    arenas = {name: os.environ.get(name, value) for name, value in ONE_ARENA.items()}
    if not os.environ.get("RAY_ADDRESS"):
        os.environ.update(arenas)
        start_cluster(object_store_memory=OBJECT_STORE_BYTES)
        return
    _quieten_ray()
    # Ray refuses a variable that the job was submitted with already.
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    given = (job.get("runtime_env") or {}).get("env_vars") or {}
    missing = {name: value for name, value in arenas.items() if name not in given}
    try:
        with _quiet_backend():
            ray.init(log_to_driver=False, logging_level="WARNING", runtime_env={"env_vars": missing})
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.AuthenticationError) as error:
        said = " ".join(str(error).split())
        raise SettingsError(
            f"RAY_ADDRESS={os.environ['RAY_ADDRESS']}: no Ray cluster can be joined there; start one, or unset "
            f"RAY_ADDRESS to have one in this process ({said})"
        ) from None


def start_cluster(**options: Any) -> None:
    """Start a Ray cluster that ends with this process, and removes its temporary files then.

    Its ports listen on all interfaces; the token keeps others out. Its files are in a directory that only this user can
    open, with a name of its own, so that clusters side by side on a machine don't meet.

    Args:
        options: arguments of `ray.init`.

    Raises:
        SettingsError: there is no token for it.
    """
    global _directory
    import ray

    if authentication_is_on():
        ensure_token(alone=True)
    _quieten_ray()
    if _directory is None:
        atexit.register(stop_cluster, os.getpid())
    else:
        _remove(_directory)
    # Ray's sockets are below it, and names of sockets have at most about 100 characters.
    place = os.environ.get("RAY_TMPDIR") or ("/tmp" if sys.platform == "darwin" else tempfile.gettempdir())
    _directory = Path(tempfile.mkdtemp(prefix="axml-ray-", dir=place)).resolve()
    # Ray turns authentication on where RAY_AUTH_MODE is unset; setting it here is too late once ray is imported.
    with _variable("TMPDIR", str(_directory)), _quiet_backend():
        ray.init(
            address="local",
            log_to_driver=False,
            logging_level="WARNING",
            _temp_dir=str(_directory / "ray"),  # Ray opens this one to everybody
            **options,
        )


def stop_cluster(process: int | None = None) -> None:
    """Stop the cluster that this process started, and remove its temporary files; of a failed job, all but Ray's logs.

    Args:
        process: does nothing in any process but this one, such as its forks.
    """
    global _directory
    if _directory is None or (process is not None and process != os.getpid()):
        return
    import ray

    directory, _directory = _directory, None
    ray.shutdown(wait_for_processes=True)
    kept = directory / "logs"
    # The interpreter leaves an exception that ended the program in `last_value`; Ctrl-C isn't an `Exception`.
    if _job_failed or isinstance(getattr(sys, "last_value", None), Exception):
        for logs in directory.glob("ray/session_*_*/logs"):
            logs.rename(kept)
    if kept.exists():
        for path in directory.iterdir():
            if path != kept:
                _remove(path)
        print(f"Ray's logs of this failure: {kept}", file=sys.stderr)
    else:
        _remove(directory)


def keep_logs() -> None:
    """Keep Ray's logs when this process ends, because the job failed."""
    global _job_failed
    _job_failed = True


def _remove(directory: Path) -> None:
    """Remove a directory that processes which are just ending may still write to."""
    end = time.monotonic() + CLEAN_UP_S
    while directory.exists() and time.monotonic() < end:
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            time.sleep(0.05)


def _quieten_ray() -> None:
    warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
    logging.getLogger("ray").setLevel(logging.WARNING)
    # It warns that authentication is on.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """An environment variable for the processes that are started in the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


@contextmanager
def _quiet_backend() -> Iterator[None]:
    """Start Ray's C++ part of this process, in the block, with messages on the terminal off.

    It prints advice about Ray Data's own actors as an error, and a failure reaches us as an exception. It reads the
    level from the environment and announces that it did; the announcement is taken out of what the block writes to
    standard error.
    """
    if "RAY_BACKEND_LOG_LEVEL" in os.environ:
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as written, _variable("RAY_BACKEND_LOG_LEVEL", "fatal"):
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            written.seek(0)
            for line in written:
                if b"RAY_BACKEND_LOG_LEVEL" not in line:
                    os.write(2, line)


def root_cause(error: BaseException) -> str:
    """The last line of an error that came through Ray: what went wrong, without the way that it came."""
    text = str(error).strip()
    return TOLD.sub("", text.splitlines()[-1]) if text else type(error).__name__


def quiet_data() -> None:
    """Keep Ray Data's bars, notices and tracebacks off the terminal.

    What it does is logged by who asked for it, and a failure reaches them as an exception.
    """
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    # Of a file that is too small for all actors.
    warnings.filterwarnings("ignore", message="The minimum number of concurrent actors")


def room_for(asked: Mapping[str, float]) -> int:
    """How many processes that each ask for so much fit on the nodes, none of which can be lent to another.

    Args:
        asked: amounts above 0 by Ray's names, CPU, GPU, and memory in bytes.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(min(int(node.get(kind, 0) / each + 1e-6) for kind, each in asked.items()) for node in nodes)


def check_fits(resources: ResourceSettings) -> None:
    """Raise where the cluster could never start one tree's workers, instead of waiting for ever.

    Raises:
        SettingsError: the cluster has fewer CPUs or GPUs, or less memory, than the workers of one tree ask for, or no
            room for all of them on single nodes.
    """
    import ray

    have = ray.cluster_resources()
    for kind, each in resources.of_a_worker.items():
        asked = resources.workers * each
        if asked > have.get(kind, 0):
            name, unit, size = (
                ("memory_gib", "GiB", 2**30) if kind == "memory" else (f"{kind.lower()}s_per_worker", kind, 1)
            )
            raise SettingsError(
                f"resources: {resources.workers} workers × {each / size:g} {unit} ask for {asked / size:g} {unit}, the "
                f"cluster has {have.get(kind, 0) / size:.4g}; lower resources.workers or resources.{name}"
            )
    fit = room_for(resources.of_a_worker)
    if fit < resources.workers:
        raise SettingsError(
            f"resources: {fit} of {resources.workers} workers fit on the cluster's nodes, each whole on one; lower "
            "resources.workers or what a worker asks for (cpus_per_worker, gpus_per_worker, memory_gib)"
        )
