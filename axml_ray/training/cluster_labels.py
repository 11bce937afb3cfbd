"""The label trees of an ensemble, built on the cluster.

A small tree is a matter of seconds for one core. Above `LARGE_LABELS` the first halvings take all cores of one machine,
one tree at a time for the sake of its memory, and the subtrees below go out as Ray tasks to wherever there is a core.
The tree is the same either way.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import ray

from axml_ray.corpus.store import Corpus
from axml_ray.settings import Experiment
from axml_ray.tree.kinds import build_tree
from axml_ray.tree.label_tree import LabelTree
from axml_ray.tree.subtree import Subtree

LARGE_LABELS = 300_000
AHEAD = 2  # subtrees that wait in the object store for each core of the cluster


def cpus_of_a_tree(corpus: Corpus) -> int:
    """CPUs that the task which builds a tree holds: all of a machine's for a large one."""
    if corpus.trained < LARGE_LABELS:
        return 1
    return max(1, int(max(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])))


def cluster_labels(settings: Experiment, corpus: Corpus, number: int) -> LabelTree:
    """Tree `number` of the ensemble, from within a Ray task or a driver."""
    seed = settings.seed + number
    if corpus.trained < LARGE_LABELS:
        return build_tree(corpus, settings.tree, seed)
    return build_tree(corpus, settings.tree, seed, threads=len(os.sched_getaffinity(0)), parallel_map=in_tasks)


def in_tasks(work: Callable[[Subtree], np.ndarray], jobs: Iterable[Subtree]) -> Iterator[np.ndarray]:
    """Like `map`, each job a Ray task of one CPU; a task whose machine is lost is started again elsewhere.

    While it waits, the task that calls this gives its own CPUs to the jobs.
    """
    task = ray.remote(num_cpus=1, max_retries=2)(work)
    most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting: deque[ray.ObjectRef] = deque()
    for job in jobs:
        if len(waiting) >= most:
            yield ray.get(waiting.popleft())
        waiting.append(task.remote(job))
    while waiting:
        yield ray.get(waiting.popleft())
