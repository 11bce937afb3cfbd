"""What the run's Ray tasks share."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import ray

from axml_ray.core.files import fences
from axml_ray.core.lease import Lease, lease_of

ANYWHERE: dict[str, Any] = {"scheduling_strategy": "DEFAULT"}
"""A task's caller, such as a trial of a sweep, may live in a placement group that has no room for the task."""
AHEAD = 2
"""Jobs of `map_in_tasks` that wait in the object store for each core of the cluster."""


def as_completed(tasks: list[ray.ObjectRef]) -> Iterator[ray.ObjectRef]:
    """Tasks in the order in which they end."""
    while tasks:
        done, tasks = ray.wait(tasks)
        yield from done


def map_in_tasks(work: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[Any]:
    """Like `map`, each job a Ray task of one CPU; a task whose machine is lost is started again elsewhere.

    The jobs have the CPU of the task that calls this as well: Ray releases it while the task waits in `ray.get`. They
    may write where the caller may.
    """
    task = ray.remote(num_cpus=1, max_retries=2, **ANYWHERE)(_work)
    leases = [lease_of(directory) for directory in fences]
    most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting: deque[ray.ObjectRef] = deque()
    for job in jobs:
        if len(waiting) >= most:
            yield ray.get(waiting.popleft())
        waiting.append(task.remote(work, leases, job))
    while waiting:
        yield ray.get(waiting.popleft())


def _work(work: Callable[[Any], Any], leases: list[Lease | None], job: Any) -> Any:
    for lease in filter(None, leases):
        lease.enforce()
    return work(job)
