"""Counts of the processes that fit on the nodes of the Ray cluster."""

from collections.abc import Mapping

from axml_ray.core.errors import SettingsError
from axml_ray.settings import ResourceSettings


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


def largest_node(kind: str) -> float:
    """Return the largest amount of a resource, by Ray's name, that a node of the cluster has."""
    import ray

    return max((node["Resources"].get(kind, 0.0) for node in ray.nodes() if node["Alive"]), default=0.0)


def check_fits(resources: ResourceSettings) -> None:
    """Raise if the cluster is too small for the workers of one tree, for which Ray would wait indefinitely.

    Raises:
        SettingsError: the cluster has fewer CPUs or GPUs than the workers of one tree require, or its nodes are too
            small for all of them.
    """
    import ray

    available = ray.cluster_resources()
    for kind, per_worker in resources.of_a_worker.items():
        required = resources.workers * per_worker
        if required > available.get(kind, 0):
            raise SettingsError(
                f"resources: {resources.workers} workers × {per_worker:g} {kind} require {required:g} {kind}, but the "
                f"cluster has {available.get(kind, 0):.4g}. Lower resources.workers or "
                f"resources.{kind.lower()}s_per_worker"
            )
    possible = max_processes(resources.of_a_worker)
    if possible < resources.workers:
        raise SettingsError(
            f"resources: {possible} of {resources.workers} workers fit on the cluster's nodes, each on one node. Lower "
            "resources.workers or the resources of a worker (cpus_per_worker, gpus_per_worker)"
        )
