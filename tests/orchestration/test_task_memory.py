"""The memory that Ray tasks reserve: what the plan says, as far as the nodes have it."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray
import synthetic

from axml_ray.cluster.capacity import largest_node, memory_of_part, reservable_memory
from axml_ray.cluster.tasks import map_in_tasks
from axml_ray.corpus.preparation.prepare import prepare
from axml_ray.orchestration import label_trees
from axml_ray.orchestration.label_trees import build_trees
from axml_ray.orchestration.members import fit_members
from axml_ray.planning.phases import task_memory
from axml_ray.runs.run import Run
from axml_ray.settings.configuration import load

MIB = 1 << 20


def reservations(names: Sequence[str], since: int) -> dict[str, float]:
    """Return the memory that the newest tasks of some functions reserved; a task's record follows it by a second."""
    from ray.util.state import list_tasks

    address, end = ray.get_runtime_context().gcs_address, time.monotonic() + 30
    found: dict[str, float] = {}
    while time.monotonic() < end and not set(names) <= found.keys():
        tasks = list_tasks(address=address, detail=True, limit=10_000, raise_on_missing_output=False)
        found = {
            task.name: task.required_resources.get("memory", 0.0)
            for task in tasks
            if task.name in names and (task.creation_time_ms or 0) >= since
        }
        time.sleep(0.5)
    return found


def test_tasks_reserve_what_the_plan_says(ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_trees, "SMALL_LABELS", 0)
    members = {"network_tree": {"weight": 0.5}, "linear_tree": {"weight": 0.3}, "knn": {"weight": 0.2}}
    settings = load(None, **synthetic.experiment(tmp_path, members=members, ensemble={"trees": 1}))
    since = int(time.time() * 1000)
    run = Run(settings, prepare(settings.corpus, settings.corpus_directory))
    build_trees(run)
    fit_members(run)
    needed = task_memory(settings, run.counts)
    found = reservations(["_build_tree", "_save_features", "_fit_member", "train_member"], since)
    assert found["_build_tree"] == needed["label trees"]
    assert found["_save_features"] == needed["features"]
    assert found["_fit_member"] in (needed["linear_tree"], needed["knn"])
    assert found["train_member"] == needed["worker"]


def test_tasks_that_wait_for_tasks_leave_them_room(ray_cluster: None) -> None:
    """Two of them reserve nearly all memory. Each waits for tasks that need more than is left, and all end."""
    node = largest_node("memory")

    def assigned(_: int) -> float:
        return float(ray.get_runtime_context().get_assigned_resources().get("memory", 0.0))

    def held(memory: float) -> list[float]:
        time.sleep(2)  # until both have started
        return list(map_in_tasks(assigned, [0, 1], memory))

    task: Callable[..., Any] = ray.remote(num_cpus=1, memory=int(0.45 * node))(held)
    for reserved in ray.get([task.remote(node), task.remote(node)], timeout=120):
        assert all(0 < memory < 0.56 * node for memory in reserved)


def test_too_high_an_estimate_keeps_nothing_from_starting(ray_cluster: None) -> None:
    node = largest_node("memory")
    assert reservable_memory(MIB) == MIB
    assert reservable_memory(2 * node) <= node
    assert memory_of_part(2 * node) == int(0.95 * node)  # the driver holds none
    two = reservable_memory(2 * node, 2, {"CPU": 1})
    assert node / 3 < two <= node / 2
    assert reservable_memory(7, 1_000, {"CPU": 1}) == 7  # the CPUs do not suffice anyway, which `check_fits` tells
