"""The label trees of a run, built by Ray tasks.

Trees of fewer than `SMALL_LABELS` labels are built by the calling process, as starting a task takes longer. A larger
one is a matter of seconds for one core. From `LARGE_LABELS` labels on, the first halvings take the idle cores of one
machine, and the subtrees below go out as further tasks to wherever there is a core. Large trees are built one at a time
for the sake of their memory. The tree is the same either way.
"""

import logging

import ray

from axml_ray.cluster.capacity import reservable_memory
from axml_ray.cluster.failures import failure, root_cause
from axml_ray.cluster.tasks import ANYWHERE, as_completed, maps_in_tasks
from axml_ray.core.lease import Lease
from axml_ray.core.limits import available_cpus
from axml_ray.core.memory import keep_freed_memory, release_freed_memory
from axml_ray.planning.phases import task_memory
from axml_ray.progress.heartbeat import Heartbeat
from axml_ray.runs.fitting import build_tree_of_run
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.tree.label_tree import LabelTree

log = logging.getLogger(__name__)

SMALL_LABELS = 2_000
LARGE_LABELS = 300_000


def build_trees(run: Run) -> None:
    """Build and save the label trees that are not yet in the run's directory. Ray must be initialised for larger trees.

    Raises:
        RuntimeError: a tree could not be built.
    """
    missing = [number for number in range(run.settings.ensemble.trees) if not run.has_tree(number)]
    if not missing:
        return
    log.info("clustering %s labels into %d trees", f"{run.corpus.trained:,}", len(missing))
    needed = task_memory(run.settings, run.counts)  # counts the corpus, before anything is made from it
    part_memory = needed["label trees, parts"]
    if run.corpus.trained < SMALL_LABELS:
        for number in missing:
            run.keep_tree(number, cluster_labels(run, number, part_memory))
        return
    # However large the tree, one CPU is enough to begin: all CPUs of a node may never be free at the same time.
    memory, is_large = reservable_memory(needed["label trees"]), run.corpus.trained >= LARGE_LABELS
    # The process of a large tree ends with it, as it would keep gigabytes; others build the next tree.
    task = ray.remote(num_cpus=1, memory=memory, max_calls=int(is_large), **ANYWHERE)(_build_tree)
    groups = [[number] for number in missing] if is_large else [missing]
    try:
        with Heartbeat("clustering labels", len(missing), "trees") as heartbeat:
            for group in groups:
                tasks = [task.remote(run.settings, number, run.lease, part_memory) for number in group]
                for done in as_completed(tasks):
                    ray.get(done)
                    heartbeat.add()
    except ray.exceptions.RayError as error:
        raise failure(error, f"the label trees could not be built: {root_cause(error)}") from error


def _build_tree(settings: Experiment, number: int, lease: Lease | None, part_memory: int) -> None:
    run = Run.open(settings, lease)
    keep_freed_memory()
    run.keep_tree(number, cluster_labels(run, number, part_memory))
    release_freed_memory()  # this process ends a moment after the next phase has begun, or builds another tree


def cluster_labels(run: Run, number: int, part_memory: int) -> LabelTree:
    """Build label tree `number` of a run, from within a Ray task or a driver.

    Each of its own tasks reserves `part_memory` bytes. The driver gives them, as it has counted the corpus.
    """
    if run.corpus.trained < LARGE_LABELS:
        return build_tree_of_run(run, number)
    idle = int(ray.available_resources().get("CPU", 0))  # of all nodes: an upper bound for this one
    threads = min(available_cpus(), 1 + idle)
    return build_tree_of_run(run, number, threads=threads, parallel_map=maps_in_tasks(part_memory))
