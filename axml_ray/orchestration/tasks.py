"""Options that the run's Ray tasks share."""

from collections.abc import Iterator
from typing import Any

import ray

ANYWHERE: dict[str, Any] = {"scheduling_strategy": "DEFAULT"}
"""A task's caller, such as a trial of a sweep, may live in a placement group that has no room for the task."""


def as_completed(tasks: list[ray.ObjectRef]) -> Iterator[ray.ObjectRef]:
    """Tasks in the order in which they end."""
    while tasks:
        done, tasks = ray.wait(tasks)
        yield from done
