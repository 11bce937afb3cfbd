"""Options that the run's Ray tasks share."""

from typing import Any

ANYWHERE: dict[str, Any] = {"scheduling_strategy": "DEFAULT"}
"""A task's caller, such as a trial of a sweep, may live in a placement group that has no room for the task."""
