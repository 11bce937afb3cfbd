"""Options that Ray tasks share, and functions that run many tasks."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from axml_ray.cluster.capacity import memory_of_part
from axml_ray.cluster.failures import root_cause
from axml_ray.core.errors import SettingsError
from axml_ray.core.lease import Lease, held_leases

ANYWHERE: dict[str, Any] = {"scheduling_strategy": "DEFAULT"}
"""A task's caller, such as a trial of a sweep, may live in a placement group that has no room for the task."""
AHEAD = 2
"""Number of jobs for each CPU of the cluster that are started before the first of their results is read."""
END_SECONDS = 10.0
"""Time to wait for the end of cancelled tasks."""

T = TypeVar("T")
Result = TypeVar("Result")


def as_completed(tasks: list[ray.ObjectRef]) -> Iterator[ray.ObjectRef]:
    """Tasks in the order in which they end."""
    while tasks:
        done, tasks = ray.wait(tasks)
        yield from done


def cancel(tasks: list[ray.ObjectRef], seconds: float, **options: bool) -> list[ray.ObjectRef]:
    """Cancel the tasks that do not end by themselves at once, and return those that still run after some seconds.

    Args:
        tasks: results of the tasks.
        seconds: the longest time to wait for their end.
        options: those of `ray.cancel`.
    """
    # Ray 2.60 ends this process where it cancels a task whose result is on its way, so that result is awaited.
    left = _unfinished(tasks, 1.0)
    for task in left:
        ray.cancel(task, **options)
    return _unfinished(left, seconds)


def _unfinished(tasks: list[ray.ObjectRef], seconds: float) -> list[ray.ObjectRef]:
    return ray.wait(tasks, num_returns=len(tasks), timeout=seconds)[1] if tasks else []


def check_device(open_device: Callable[[float], object], reserved: Mapping[str, float]) -> None:
    """Open the device of a process in a task that reserves what the process will, so that a fault is found first.

    Args:
        open_device: called with the number of GPUs.
        reserved: GPUs, and CPUs and bytes of memory if any.

    Raises:
        SettingsError: the device cannot be used.
    """
    options = {"num_cpus": reserved.get("CPU", 0), "num_gpus": reserved["GPU"], "memory": reserved.get("memory", 0)}
    try:
        ray.get(ray.remote(**options, max_retries=0, **ANYWHERE)(open_device).remote(reserved["GPU"]))
    except ray.exceptions.RayError as error:
        raise SettingsError(root_cause(error)) from error


def map_in_tasks(
    work: Callable[..., Result],
    jobs: Iterable[T],
    memory: float,
    options: Mapping[str, Any] | None = None,
    /,
    **arguments: Any,
) -> Iterator[Result]:
    """Like `map`, each job a Ray task of one CPU; a task whose machine is lost is started again elsewhere.

    If a task calls this, the jobs have its CPU as well: Ray releases it while the task waits in `ray.get`. They may
    write where the caller may.

    Args:
        work: called with a job and the arguments.
        jobs: the jobs, which may be generated; few of them wait at a time.
        memory: bytes that each task reserves, or what the node with the most has left if that is less.
        options: further options of the Ray tasks.
        arguments: values that are stored once, and which all jobs of a node share.

    Raises:
        ray.exceptions.RayError: a job failed; those that run are cancelled.
    """
    chosen = {**ANYWHERE, **(options or {})}
    chosen["memory"] = memory_of_part(memory, getattr(chosen["scheduling_strategy"], "node_id", None))
    task = ray.remote(num_cpus=1, max_retries=2, **chosen)(_work)
    leases = held_leases()
    stored = {name: ray.put(value) for name, value in arguments.items()}
    most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting: deque[ray.ObjectRef] = deque()
    try:
        for job in jobs:
            if len(waiting) >= most:
                yield ray.get(waiting.popleft())
            waiting.append(task.remote(work, leases, job, **stored))
        while waiting:
            yield ray.get(waiting.popleft())
    finally:
        cancel(list(waiting), END_SECONDS)


def maps_in_tasks(memory: float) -> Callable[[Callable[[T], Result], Iterable[T]], Iterator[Result]]:
    """Return a function that is called like `map`, each job a task that reserves some bytes; see `map_in_tasks`."""
    return lambda work, jobs: map_in_tasks(work, jobs, memory)


def maps_on_node(memory: float) -> Callable[[Callable[[T], Result], Iterable[T]], Iterator[Result]]:
    """Like `maps_in_tasks`, on the node of the task that calls the function, for jobs that share files of its disk."""

    def mapped(work: Callable[[T], Result], jobs: Iterable[T]) -> Iterator[Result]:
        node = ray.get_runtime_context().get_node_id()
        on_node = NodeAffinitySchedulingStrategy(node, soft=False)
        return map_in_tasks(work, jobs, memory, {"scheduling_strategy": on_node})

    return mapped


def _work(work: Callable[..., Result], leases: list[Lease], job: Any, /, **arguments: Any) -> Result:
    for lease in leases:
        lease.enforce()
    return work(job, **arguments)
