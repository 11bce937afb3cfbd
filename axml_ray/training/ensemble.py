"""Trees as parallel Ray tasks, each with a group of Ray Train workers of its own.

- A tree's task holds no CPU, so any number of trees can wait for the workers of others without a deadlock; a group
  starts when all of its workers fit. Trees that don't fit side by side queue.
- All state is in the run's directory: a killed worker, task or driver costs the level that was being trained.
"""

import logging
import time
from typing import Any

import ray
import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from axml_ray.cluster import check_fits
from axml_ray.corpus.store import Corpus
from axml_ray.files import read_json, write_json
from axml_ray.memory import keep_freed_memory
from axml_ray.network.precision import use_threads
from axml_ray.settings import Experiment
from axml_ray.training.cluster_labels import cluster_labels, cpus_of_a_tree
from axml_ray.training.level import Diverged
from axml_ray.training.level_files import finished
from axml_ray.training.progress import Follower, Journal, line
from axml_ray.training.tree import (
    TREE,
    TreeTraining,
    drop_scored,
    level_directory,
    level_fingerprint,
    tree_directory,
    tree_fingerprint,
)
from axml_ray.training.workers import Workers
from axml_ray.tree.kinds import check_hierarchy
from axml_ray.tree.label_tree import LabelTree

log = logging.getLogger(__name__)

TREE_MANIFEST = "tree.json"
POLL_SECONDS = 1.0


def train_ensemble(settings: Experiment, corpus: Corpus) -> dict[str, float]:
    """Train, or go on training, every tree of the ensemble in the run's directory. Ray must be initialised.

    Returns:
        Seconds of the phases "cluster" and "train" of this call; parallel trees are counted once.

    Raises:
        SettingsError: the cluster is too small for one tree's workers, or a given hierarchy isn't of these labels.
        RuntimeError: a tree failed; what it had finished is kept.
    """
    check_fits(settings.resources)
    check_hierarchy(settings.tree, corpus)
    numbers = range(settings.ensemble.trees)
    directories = [tree_directory(settings.run_directory, number) for number in numbers]
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    options = {"num_cpus": cpus_of_a_tree(corpus)}
    ray.get([ray.remote(**options)(_cluster_labels).remote(settings, number) for number in numbers])
    clustered = time.monotonic()
    follower = Follower(directories)
    waiting = {
        ray.remote(num_cpus=0, max_retries=2)(_train_tree).remote(settings, number): number for number in numbers
    }
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=POLL_SECONDS)
        for record in follower.news():
            log.info("%s", line(record))
        for task in done:
            number = waiting.pop(task)
            try:
                ray.get(task)
            except ray.exceptions.RayError as error:
                for other in waiting:
                    ray.cancel(other, force=True)
                raise RuntimeError(f"tree {number + 1} failed: {_root_cause(error)}") from error
            log.info("tree %d · finished", number + 1)
    return {"cluster": clustered - began, "train": time.monotonic() - clustered}


def _cluster_labels(settings: Experiment, number: int) -> None:
    """Build and save the label tree, unless it is already there."""
    corpus = Corpus.open(settings.corpus_directory)
    directory = tree_directory(settings.run_directory, number)
    mark = tree_fingerprint(settings, corpus, number)
    try:
        if read_json(directory / TREE_MANIFEST)["fingerprint"] == mark:
            LabelTree.load(directory / TREE)
            return
    except (OSError, ValueError, KeyError):
        pass
    keep_freed_memory()
    tree = cluster_labels(settings, corpus, number)
    tree.save(directory / TREE)
    write_json(directory / TREE_MANIFEST, {"fingerprint": mark, "level_sizes": tree.level_sizes})


def _train_tree(settings: Experiment, number: int) -> None:
    """Walk one tree with a worker group, unless all of its levels are already finished."""
    corpus = Corpus.open(settings.corpus_directory)
    directory = tree_directory(settings.run_directory, number)
    tree = LabelTree.load(directory / TREE)
    marks = {level: level_fingerprint(settings, corpus, number, level) for level in range(1, len(tree.level_sizes) + 1)}
    if all(finished(level_directory(directory, level), mark) for level, mark in marks.items()):
        drop_scored(directory)  # of a worker that was killed before it did
        return
    resources = settings.resources
    trainer = TorchTrainer(
        _work,
        train_loop_config={"settings": settings, "number": number},
        torch_config=TorchConfig(backend="nccl" if resources.gpus_per_worker else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=resources.workers,
            use_gpu=resources.gpus_per_worker > 0,
            resources_per_worker={
                "CPU": resources.cpus_per_worker,
                **({"GPU": resources.gpus_per_worker} if resources.gpus_per_worker else {}),
            },
        ),
        run_config=RunConfig(
            # Our own files say what is finished; a name of its own keeps Ray's record of an earlier attempt apart.
            name=f"tree-{number}-{time.time_ns():x}",
            storage_path=str(settings.run_directory / "ray-train"),
            failure_config=FailureConfig(max_failures=resources.max_failures),
        ),
    )
    diverged = trainer.fit().return_value
    if diverged:
        raise RuntimeError(diverged)


def _work(config: dict[str, Any]) -> str | None:
    """What one worker does; returns why a level could not be trained, which another attempt would not mend."""
    settings, number = config["settings"], config["number"]
    device = get_device() if settings.resources.gpus_per_worker else torch.device("cpu")
    use_threads(settings.resources.threads_of_worker)
    directory = tree_directory(settings.run_directory, number)
    training = TreeTraining(
        settings,
        Corpus.open(settings.corpus_directory),
        LabelTree.load(directory / TREE),
        number,
        directory,
        Workers.current(device),
        Journal(directory, tree=number).write,
    )
    try:
        training.run()
    except Diverged as error:
        return str(error)
    return None


def _root_cause(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[-1].removeprefix("RuntimeError: ") if text else type(error).__name__
