"""The Ray cluster that a job runs on: the one it was submitted to, or one in its own process."""

import json
import logging
import os
import re
import warnings
from collections.abc import Mapping

from axml_ray.memory import ONE_ARENA
from axml_ray.settings import ResourceSettings, SettingsError

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 1 << 30
TOLD = re.compile(r"^([\w.]+\.)?(RuntimeError|SettingsError|OSError): ")
"""Before what is told of an error: kinds that say nothing to a person."""


def connect() -> None:
    """Join the cluster that `RAY_ADDRESS` names (as `ray job submit` sets it), else start one in this process.

    A cluster of our own is reachable from this machine only, and ends with the process.

    Raises:
        SettingsError: no cluster answers at `RAY_ADDRESS`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A checkpoint or a death is noticed when the controller polls; its default of 2 s is felt in short trainings.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    # Ray's C++ prints advice about Ray Data's own actors to the terminal; a failure reaches us as an exception.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    # Launchers and controllers hold no CPU, so more processes than cores start at once; Ray would warn of each.
    os.environ.setdefault("RAY_worker_maximum_startup_concurrency", "8")
    if not os.environ.get("RAY_ADDRESS"):
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        # Nobody takes this machine away with notice, and a process for each tree that asks wakes 100 times a second.
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    import ray

    if ray.is_initialized():
        return
    address = os.environ.get("RAY_ADDRESS")
    log.info("ray: %s", f"joining the cluster at {address}" if address else "starting on this machine")
    warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
    logging.getLogger("ray").setLevel(logging.WARNING)
    # Ray Train trains in a thread.
    arenas = {name: os.environ.get(name, value) for name, value in ONE_ARENA.items()}
    if os.environ.get("RAY_ADDRESS"):
        # Ray refuses a variable that the job was submitted with already.
        job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
        given = (job.get("runtime_env") or {}).get("env_vars") or {}
        missing = {name: value for name, value in arenas.items() if name not in given}
        try:
            ray.init(log_to_driver=False, logging_level="WARNING", runtime_env={"env_vars": missing})
        except (ConnectionError, ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())
            raise SettingsError(
                f"RAY_ADDRESS={os.environ['RAY_ADDRESS']}: no Ray cluster can be joined there; start one, or unset "
                f"RAY_ADDRESS to have one in this process ({said})"
            ) from None
    else:
        os.environ.update(arenas)
        ray.init(
            address="local",
            log_to_driver=False,
            logging_level="WARNING",
            object_store_memory=OBJECT_STORE_BYTES,
        )


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
