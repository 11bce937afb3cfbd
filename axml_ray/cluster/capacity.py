"""Counts of the processes that fit on the nodes of the Ray cluster, and waits for nodes where it can grow."""

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from axml_ray.core.errors import SettingsError
from axml_ray.progress.heartbeat import Heartbeat
from axml_ray.settings import ResourceSettings

log = logging.getLogger(__name__)

MOST_OF_NODE = 0.95
"""Share of a node's memory that an estimate reserves at most; other tasks hold a little of it."""
GROW_SECONDS = 1800.0
"""Time in which an autoscaler must provide the nodes that a job needs; those with GPUs may take long to get."""


def max_processes(resources: Mapping[str, float]) -> int:
    """Count the processes that fit on the cluster's nodes at once, each on a single node.

    Args:
        resources: what one process requires, by Ray's names: CPU, GPU, and memory in bytes; amounts above 0.
    """
    import ray

    def fitting(kind: str, amount: float, available: float) -> int:
        if kind == "GPU" and amount < 1:  # a share is of one GPU: two GPUs have no room for three processes of 0.6
            return int(available) * int(1 / amount + 1e-6)
        return int(available / amount + 1e-6)  # rounding error

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(min(fitting(kind, amount, node.get(kind, 0)) for kind, amount in resources.items()) for node in nodes)


def largest_node(kind: str, node: str | None = None) -> float:
    """Return the largest amount of a resource, by Ray's name, that a node of the cluster has, or the one of an id."""
    import ray

    nodes = [each for each in ray.nodes() if each["Alive"] and node in (None, each["NodeID"])]
    return max((each["Resources"].get(kind, 0.0) for each in nodes), default=0.0)


def reservable_memory(needed: float, processes: int = 1, resources: Mapping[str, float] | None = None) -> int:
    """Return the bytes to reserve for each of some processes that run together: `needed`, or less if nodes have less.

    What is needed is an estimate, and must not keep a job from starting.

    Args:
        needed: bytes that a process needs.
        processes: number of processes.
        resources: what else a process requires, as in `max_processes`.
    """
    memory, other_resources = min(needed, MOST_OF_NODE * largest_node("memory")), resources or {}
    if other_resources and max_processes(other_resources) < processes:
        return int(memory)
    while memory > 1 and max_processes({**other_resources, "memory": memory / MOST_OF_NODE}) < processes:
        memory /= 1.25
    return int(memory)


def memory_of_part(needed: float, node: str | None = None) -> int:
    """Return the bytes to reserve for each of the tasks that the caller will wait for: `needed`, or less.

    A task that waits gives back its CPU, but not its memory. So its own tasks must fit in addition to all that is
    reserved now, or tasks that wait for theirs could keep each other from ending.

    Args:
        needed: bytes that a task needs.
        node: id of the node on which the tasks run; by default any node.
    """
    import ray

    # `ray.available_resources` adds up all nodes.
    from ray._private.state import available_resources_per_node

    most, context = largest_node("memory", node), ray.get_runtime_context()
    if context.worker.mode == ray.WORKER_MODE:
        nodes = available_resources_per_node()
        free = (nodes[each].get("memory", 0.0) for each in nodes if node in (None, each))
        # What the caller itself has reserved may not have been counted yet.
        most = min(max(free, default=0.0), most - context.get_assigned_resources().get("memory", 0.0))
    return int(max(0.0, min(needed, MOST_OF_NODE * most)))


def has_autoscaler() -> bool:
    """Return whether the cluster has an autoscaler that may start nodes, for which Ray has no public function.

    Without one, Ray's monitor only mirrors the nodes. That of version 1 then names the type of each node by its id;
    that of version 2 counts as an autoscaler, since it refuses what the nodes lack (`is_refused`).
    """
    import ray
    from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
    from ray.autoscaler._private.util import format_readonly_node_type
    from ray.experimental.internal_kv import _internal_kv_get

    if _state_of_version_2().last_seen_cluster_resource_state_version:
        return True
    report = json.loads(_internal_kv_get(DEBUG_AUTOSCALING_STATUS) or "{}").get("autoscaler_report", {})
    types = {*report.get("active_nodes", ()), *(report.get("idle_nodes") or ())}
    return not types <= {format_readonly_node_type(node["NodeID"]) for node in ray.nodes()}


def is_refused(processes: int, resources: Mapping[str, float]) -> bool:
    """Return whether an autoscaler of version 2 has said that it cannot provide requested nodes for such processes."""
    refused = _state_of_version_2().infeasible_cluster_resource_constraints
    requests = (request for constraint in refused for request in constraint.resource_requests)
    needed = processes, dict(resources)
    return any((each.count, dict(each.request.resources_bundle)) == needed for each in requests)


def _state_of_version_2() -> Any:
    """Return what an autoscaler of version 2 last reported, Ray's message `AutoscalingState`; empty if there is none.

    `ray.autoscaler.v2.sdk.get_cluster_status` leaves out what the autoscaler has refused.
    """
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
    from ray.experimental.internal_kv import internal_kv_get_gcs_client

    reply = GetClusterStatusReply()
    reply.ParseFromString(internal_kv_get_gcs_client().get_cluster_status(timeout_s=10))
    return reply.autoscaling_state


def wait_for_room(processes: int, resources: Mapping[str, float]) -> int:
    """Count like `max_processes`; if fewer than `processes` fit, request nodes of an autoscaler, and wait for them.

    The wait ends after `GROW_SECONDS`, or when the autoscaler refuses the request.
    """
    fit = max_processes(resources)
    if fit >= processes or not has_autoscaler():
        return fit
    from ray.autoscaler.sdk import request_resources

    asked = " and ".join(f"{amount:g} {kind}" for kind, amount in resources.items())
    log.info("waiting for nodes · room for %d of %d × %s, for %.0f s at most", fit, processes, asked, GROW_SECONDS)
    request_resources(bundles=[dict(resources)] * processes)
    end = time.monotonic() + GROW_SECONDS
    try:
        with Heartbeat("waiting for nodes"):
            while fit < processes and time.monotonic() < end and not is_refused(processes, resources):
                time.sleep(1)
                fit = max_processes(resources)
    finally:
        request_resources(bundles=[])  # a request holds until the next one, and keeps its nodes
    return fit


def check_fits(resources: ResourceSettings) -> None:
    """Raise if the cluster is too small for the workers of one tree, for which Ray would wait indefinitely.

    A cluster that can grow is awaited for `GROW_SECONDS`.

    Raises:
        SettingsError: the cluster has fewer CPUs or GPUs than the workers of one tree require, or its nodes are too
            small for all of them.
    """
    import ray

    workers = resources.min_workers
    possible = wait_for_room(workers, resources.of_a_worker)
    if possible >= workers:
        return
    available = ray.cluster_resources()
    for kind, per_worker in resources.of_a_worker.items():
        required = workers * per_worker
        if required > available.get(kind, 0):
            raise SettingsError(
                f"resources: {workers} workers × {per_worker:g} {kind} require {required:g} {kind}, but the cluster "
                f"has {available.get(kind, 0):.4g}. Lower resources.workers or resources.{kind.lower()}s_per_worker"
            )
    raise SettingsError(
        f"resources: {possible} of {workers} workers fit on the cluster's nodes, each on one node. Lower "
        "resources.workers or the resources of a worker (cpus_per_worker, gpus_per_worker)"
    )
