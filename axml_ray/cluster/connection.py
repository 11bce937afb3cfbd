"""The Ray cluster that a job runs on: one that already runs, or one that this process starts."""

import atexit
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from axml_ray.cluster.authentication import authentication_is_on, ensure_token
from axml_ray.cluster.capacity import reservable_memory
from axml_ray.cluster.failures import failure, root_cause
from axml_ray.core.errors import SettingsError
from axml_ray.core.limits import available_cpus, temporary_directory
from axml_ray.core.memory import ONE_ARENA
from axml_ray.core.paths import CACHE_VARIABLE, cache

log = logging.getLogger(__name__)

T = TypeVar("T")

OBJECT_STORE_BYTES = 1 << 30
UV_VARIABLE = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
RAY_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # The driver reports a failure when it fetches the result; after Ctrl-C, it fetches none.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    # Launchers and controllers reserve no CPU, so more processes than cores start at once, and Ray would warn of it.
    "RAY_worker_maximum_startup_concurrency": "8",
}
"""Environment variables of Ray's processes, unless the user has set them."""
OF_ALL_NODES = ("AXML_RAY_CUDA_GRAPHS", "AXML_RAY_LEASE_SECONDS", "AXML_RAY_PLUGINS", "AXML_RAY_TRITON")
"""Environment variables that processes on other nodes have as this one does."""
PREEMPTION_WATCHER = "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"
"""Environment variable that is 0 where nodes are not preempted."""
CLEAN_UP_SECONDS = 10
"""Time limit for removing the temporary files of a stopped cluster."""

_directory: Path | None = None
"""Temporary directory of the cluster that this process started."""
_job_failed = False


def connect() -> None:
    """Connect to the cluster at `RAY_ADDRESS` (set by `ray job submit`), or start a cluster if it is not set.

    Raises:
        SettingsError: cannot connect to `RAY_ADDRESS`, or there is no token for a new cluster.
    """
    for name, value in RAY_VARIABLES.items():
        os.environ.setdefault(name, value)
    if not os.environ.get("RAY_ADDRESS"):
        # A local machine is not preempted, and the watcher would be a process per tree that wakes 100 times a second.
        os.environ.setdefault(PREEMPTION_WATCHER, "0")
    import ray

    if ray.is_initialized():
        return
    address = os.environ.get("RAY_ADDRESS")
    log.info("ray: %s", f"connecting to the cluster at {address}" if address else "starting on this machine")
    # Ray Train runs the training loop in a thread, which would otherwise use a malloc arena of its own.
    variables = {name: os.environ.get(name, value) for name, value in ONE_ARENA.items()}
    variables |= {name: value for name, value in os.environ.items() if name in OF_ALL_NODES}
    # Paths of the cache travel in arguments, so it must be the same on all nodes.
    variables[CACHE_VARIABLE] = str(cache())
    if not os.environ.get("RAY_ADDRESS"):
        os.environ.update(variables)
        start_cluster(object_store_memory=OBJECT_STORE_BYTES)
        return
    _quieten_ray()
    # Ray raises on a variable that is also in the runtime environment of the submitted job.
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    submitted = (job.get("runtime_env") or {}).get("env_vars") or {}
    missing = {name: value for name, value in variables.items() if name not in submitted}
    try:
        with _quiet_backend(), _own_sigterm():
            ray.init(log_to_driver=False, logging_level="WARNING", runtime_env={"env_vars": missing})
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.AuthenticationError) as error:
        reason = " ".join(str(error).split())
        raise SettingsError(
            f"RAY_ADDRESS={address}: cannot connect to a Ray cluster ({reason}). Start one there, or unset RAY_ADDRESS "
            "to use a cluster in this process"
        ) from None


def local_cpus() -> int | None:
    """Return the CPUs of the Ray cluster of this process, also of one that it will start; None if it joins one."""
    import ray

    if os.environ.get("RAY_ADDRESS"):
        return None
    return int(ray.cluster_resources().get("CPU", 0)) if ray.is_initialized() else available_cpus()


def start_cluster(**options: Any) -> None:
    """Start a Ray cluster that stops, and removes its temporary files, when this process ends.

    Its ports listen on all interfaces, so a token is required. Its files are in a new directory that only this user can
    read; several clusters can run on one machine.

    Args:
        options: arguments of `ray.init`; by default the cluster has the CPUs that this process may use.

    Raises:
        SettingsError: no token can be read or written, or there is no directory for the temporary files.
    """
    global _directory
    import ray
    from ray._private import ray_constants

    # Below `uv run`, Ray would upload the current directory with all data in it, and start workers there by uv. Workers
    # of this cluster are on this machine and use this environment. There is no argument for it, and Ray reads the
    # variable when it is imported, which may have been before.
    if UV_VARIABLE not in os.environ:
        ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
    if authentication_is_on():
        ensure_token(is_private=True)
    _quieten_ray()
    if _directory is None:
        atexit.register(stop_cluster, os.getpid())
    else:
        _remove(_directory)
    _directory = Path(tempfile.mkdtemp(prefix="axml-", dir=temporary_directory()))
    # Ray turns authentication on where RAY_AUTH_MODE is unset; setting it here is too late once ray is imported.
    with _variable("TMPDIR", str(_directory)), _quiet_backend(), _own_sigterm():
        ray.init(
            address="local",
            log_to_driver=False,
            logging_level="WARNING",
            _temp_dir=str(_directory / "ray"),  # Ray makes this one accessible to everyone, hence the level above
            **{"num_cpus": available_cpus()} | options,
        )


def stop_cluster(process: int | None = None) -> None:
    """Stop the cluster that this process started, and remove its temporary files; keep Ray's logs if the job failed.

    Args:
        process: process id; in other processes, such as forks, nothing is done.
    """
    global _directory
    if _directory is None or (process is not None and process != os.getpid()):
        return
    import ray

    directory, _directory = _directory, None
    ray.shutdown(wait_for_processes=True)
    kept = directory / "logs"
    # `last_value` is the uncaught exception that ended the program; Ctrl-C is not an `Exception`.
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
    """Mark the job as failed, so that `stop_cluster` keeps Ray's logs."""
    global _job_failed
    _job_failed = True


def _remove(directory: Path) -> None:
    """Remove a directory, retrying while processes that are terminating still write to it."""
    deadline = time.monotonic() + CLEAN_UP_SECONDS
    while directory.exists() and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            time.sleep(0.05)


def _quieten_ray() -> None:
    warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
    logging.getLogger("ray").setLevel(logging.WARNING)
    # It logs a warning that authentication is enabled.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable within the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep this program's handler of SIGTERM, if it has one, while Ray starts: Ray's would exit, and later abort."""
    handler = signal.getsignal(signal.SIGTERM)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        yield
    except SystemExit:
        handler(signal.SIGTERM, None)
        raise
    signal.signal(signal.SIGTERM, handler)


@contextmanager
def _quiet_backend() -> Iterator[None]:
    """Keep messages of Ray's C++ core worker, which the block starts, off the terminal.

    It logs advice about Ray Data's internal actors as errors, while real failures reach us as exceptions. It reads its
    log level from the environment and prints that it did; this line is removed from the block's standard error.
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


def quiet_data() -> None:
    """Turn off Ray Data's progress bars, messages and tracebacks on the terminal.

    Callers log their own progress, and failures reach them as exceptions.
    """
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    # Ray Data warns of it if a dataset is too small for all actors.
    warnings.filterwarnings("ignore", message="The minimum number of concurrent actors")


def call_in_task(function: Callable[..., T], *arguments: Any, memory: float) -> T:
    """Return the result of a function, called in a Ray task if there is a cluster, else in this process.

    Args:
        function: a function of a module.
        arguments: its arguments.
        memory: memory that the task reserves, in bytes; at most that of a node.

    Raises:
        RuntimeError: the task failed.
    """
    if os.environ.get("RAY_ADDRESS"):
        connect()
    if "ray" not in sys.modules or not sys.modules["ray"].is_initialized():
        return function(*arguments)
    import ray

    task = ray.remote(num_cpus=1, memory=reservable_memory(memory))(function)
    try:
        result: T = ray.get(task.remote(*arguments))
    except ray.exceptions.RayError as error:
        raise failure(error, root_cause(error)) from error
    return result
