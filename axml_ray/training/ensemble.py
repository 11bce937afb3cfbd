"""Trees as parallel Ray tasks, each with a group of Ray Train workers of its own.

- A tree's task holds no CPU, so any number of trees can wait for the workers of others without a deadlock; a group
  starts when all of its workers fit. Trees that don't fit side by side queue.
- Linear classifiers, where they are wanted, are a task a tree when the networks are trained: earlier they could take
  the CPUs that a tree's workers wait for.
- All state is in the run's directory: a killed worker, task or driver costs the level that was being trained.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray
import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from axml_ray.cluster import check_fits, root_cause
from axml_ray.corpus.store import Corpus
from axml_ray.files import read_json, write_json
from axml_ray.heartbeat import Heartbeat
from axml_ray.linear import classifiers, name_matches, neighbours
from axml_ray.linear.checked import fingerprint_of
from axml_ray.linear.classifiers import LinearTree
from axml_ray.linear.fitting import fit_linear
from axml_ray.linear.name_matches import NameMatches, trie_of
from axml_ray.linear.neighbours import Neighbours
from axml_ray.memory import keep_freed_memory
from axml_ray.network.precision import use_threads
from axml_ray.settings import Experiment
from axml_ray.training.cluster_labels import cluster_labels, cpus_of_a_tree
from axml_ray.training.level import Diverged
from axml_ray.training.level_files import finished
from axml_ray.training.progress import Follower, Journal, line
from axml_ray.training.tree import (
    LINEAR,
    NAME_MATCHES,
    NEIGHBOURS,
    TREE,
    TreeTraining,
    drop_scored,
    level_directory,
    level_fingerprint,
    linear_fingerprint,
    linear_texts,
    name_matches_fingerprint,
    neighbours_fingerprint,
    part_of,
    tree_directory,
    tree_fingerprint,
)
from axml_ray.training.workers import Workers
from axml_ray.tree.kinds import check_hierarchy
from axml_ray.tree.label_tree import LabelTree

log = logging.getLogger(__name__)

TREE_MANIFEST = "tree.json"
POLL_SECONDS = 1.0
# Whoever starts trees, such as a trial of a sweep, may live in a placement group that has no room for them.
APART = {"scheduling_strategy": "DEFAULT"}
END_SECONDS = 30.0

Follow = Callable[[dict[str, Any]], None]


class Stopped(RuntimeError):
    """Training was no longer wanted."""


def never() -> bool:
    """Training is wanted to its end."""
    return False


def show(record: dict[str, Any]) -> None:
    """Log a record of a journal as a line; scorings are many, and the lines in between say how they went."""
    if "scoring" not in record:
        log.info("%s", line(record))


def build_trees(settings: Experiment, corpus: Corpus) -> None:
    """Build and save the label trees that aren't already in the run's directory. Ray must be initialised.

    Raises:
        SettingsError: a given hierarchy isn't of these labels.
        RuntimeError: a tree could not be built.
    """
    check_hierarchy(settings.tree, corpus)
    options = {"num_cpus": cpus_of_a_tree(corpus), **APART}
    numbers = [n for n in range(settings.ensemble.trees) if not has_tree(settings, corpus, n)]
    if not numbers:
        return
    log.info("clustering %s labels into %d trees", f"{corpus.trained:,}", len(numbers))
    try:
        with Heartbeat("clustering labels", len(numbers), "trees") as heartbeat:
            tasks = [ray.remote(**options)(_cluster_labels).remote(settings, number) for number in numbers]
            for done in _as_done(tasks):
                ray.get(done)
                heartbeat.add()
    except ray.exceptions.RayError as error:
        raise RuntimeError(f"the label trees could not be built: {root_cause(error)}") from error


def train_ensemble(
    settings: Experiment, corpus: Corpus, follow: Follow = show, stopped: Callable[[], bool] = never
) -> dict[str, float]:
    """Train, or go on training, every tree of the ensemble in the run's directory. Ray must be initialised.

    Args:
        settings: the experiment.
        corpus: prepared.
        follow: called with every record of the trees' journals that is written while they train.
        stopped: asked about once a second; when it says so, all trees and their workers are ended.

    Returns:
        Seconds of the phases "cluster", "train" and, with linear classifiers, "linear" of this call; parallel trees are
        counted once.

    Raises:
        SettingsError: the cluster is too small for one tree's workers, or a given hierarchy isn't of these labels.
        RuntimeError: a tree failed; what it had finished is kept.
        Stopped: `stopped` said so.
    """
    check_fits(settings.resources)
    numbers = range(settings.ensemble.trees)
    directories = [tree_directory(settings.run_directory, number) for number in numbers]
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    build_trees(settings, corpus)
    clustered = time.monotonic()
    follower = Follower(directories)
    log.info("starting the workers of %d trees", len(numbers))
    # A process for each: one that stays for the next tree keeps Ray Train's controller of the last alive.
    options: dict[str, Any] = {"num_cpus": 0, "max_retries": 2, "max_calls": 1, **APART}
    waiting = {ray.remote(**options)(_train_tree).remote(settings, number): number for number in numbers}
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=POLL_SECONDS)
        for record in follower.news():
            follow(record)
        if stopped():
            _end(list(waiting))
            raise Stopped("training was stopped")
        for task in done:
            number = waiting.pop(task)
            try:
                ray.get(task)
            except ray.exceptions.RayError as error:
                _end(list(waiting))
                raise RuntimeError(f"tree {number + 1} failed: {root_cause(error)}") from error
            log.info("tree %d · finished", number + 1)
    trained = time.monotonic()
    if settings.linear.weight:
        _fit_all_linear(settings, corpus)
    seconds = {"cluster": clustered - began, "train": trained - clustered}
    return seconds | ({"linear": time.monotonic() - trained} if settings.linear.weight else {})


def _fit_all_linear(settings: Experiment, corpus: Corpus) -> None:
    """Fit the linear classifiers that are missing, and lay out the texts that vote beside them."""
    options: dict[str, Any] = {"num_cpus": 1, "max_retries": 2, "max_calls": 1, **APART}
    options["memory"] = settings.resources.of_a_worker.get("memory")
    tasks = {
        ray.remote(**options)(_fit_linear).remote(settings, number): number
        for number in range(settings.ensemble.trees)
        if fingerprint_of(tree_directory(settings.run_directory, number) / LINEAR, classifiers.ABOUT)
        != linear_fingerprint(settings, corpus, number)
    }
    if tasks:
        log.info("fitting the linear classifiers of %d trees", len(tasks))
    with Heartbeat("fitting linear classifiers", len(tasks), "trees") as heartbeat:
        for task in _as_done(list(tasks)):
            try:
                log.info("tree %d · linear classifiers fitted in %.0f s", tasks[task] + 1, ray.get(task))
            except ray.exceptions.RayError as error:
                number = tasks[task] + 1
                raise RuntimeError(f"linear classifiers of tree {number} failed: {root_cause(error)}") from error
            heartbeat.add()
    beside: list[tuple[float, str, Mapping[str, str], str, Callable[[Experiment], None], str]] = [
        (
            settings.linear.neighbours, NEIGHBOURS, neighbours.ABOUT, neighbours_fingerprint(settings, corpus),
            _lay_out_neighbours, "training texts as neighbours",
        ),
        (
            settings.linear.name_matches_weight, NAME_MATCHES, name_matches.ABOUT,
            name_matches_fingerprint(settings, corpus), _match_names, "labels' names in training texts",
        ),
    ]  # fmt: skip
    for wanted, name, about, mark, make, what in beside:
        if wanted and fingerprint_of(settings.run_directory / name, about) != mark:
            log.info("preparing %s", what)
            try:
                with Heartbeat(f"preparing {what}"):
                    ray.get(ray.remote(**options)(make).remote(settings))
            except ray.exceptions.RayError as error:
                raise RuntimeError(f"{what} failed: {root_cause(error)}") from error


def _as_done(tasks: list[ray.ObjectRef]) -> Iterator[ray.ObjectRef]:
    """Tasks in the order in which they end."""
    while tasks:
        done, tasks = ray.wait(tasks)
        yield from done


def _fit_linear(settings: Experiment, number: int) -> float:
    """Fit and save the linear classifiers of a tree; how many seconds that took."""
    corpus = Corpus.open(settings.corpus_directory)
    directory = tree_directory(settings.run_directory, number)
    began = time.monotonic()
    train = linear_texts(settings, corpus)
    tree = LabelTree.load(directory / TREE)
    seed = settings.seed + number
    how = settings.linear, seed, corpus.translation
    linear = fit_linear(tree, train.tokens, train.labels, corpus.tokenizer.words, *how)
    linear.save(directory / LINEAR, linear_fingerprint(settings, corpus, number))
    return time.monotonic() - began


def _lay_out_neighbours(settings: Experiment) -> None:
    """Save the training texts by their features, which are the same for every tree's classifiers."""
    corpus = Corpus.open(settings.corpus_directory)
    features = LinearTree.load(
        tree_directory(settings.run_directory, 0) / LINEAR, corpus.trained, corpus.translation
    ).features
    texts = linear_texts(settings, corpus)
    votes = settings.linear.neighbours, settings.linear.neighbours_weight
    found = Neighbours.fit(features.rows(texts.tokens), texts.labels, corpus.trained, *votes)
    found.save(settings.run_directory / NEIGHBOURS, neighbours_fingerprint(settings, corpus))


def _match_names(settings: Experiment) -> None:
    """Save labels' names and what they are worth, which is the same beside every tree's classifiers."""
    corpus = Corpus.open(settings.corpus_directory)
    trie = trie_of(corpus.labels, corpus.tokenizer, settings.corpus.max_tokens, settings.linear.name_stemmer)
    train = part_of(corpus.split("train"), settings.training.documents).translated(corpus.translation)
    found = NameMatches.fit(trie, train.tokens, train.labels, corpus.trained, settings.linear.name_matches_weight)
    found.save(settings.run_directory / NAME_MATCHES, name_matches_fingerprint(settings, corpus))


def _end(trees: list[ray.ObjectRef]) -> None:
    """End some trees' tasks. An interrupt lets Ray Train give back what a worker group held; the rest is forced."""
    for tree in trees:
        ray.cancel(tree, recursive=False)
    left = ray.wait(trees, num_returns=len(trees), timeout=END_SECONDS)[1] if trees else []
    for tree in left:
        ray.cancel(tree, force=True)


def has_tree(settings: Experiment, corpus: Corpus, number: int) -> bool:
    """Whether label tree `number` lies in the run's directory, built with these settings."""
    directory = tree_directory(settings.run_directory, number)
    try:
        if read_json(directory / TREE_MANIFEST)["fingerprint"] == tree_fingerprint(settings, corpus, number):
            LabelTree.load(directory / TREE)
            return True
    except (OSError, ValueError, KeyError):
        pass
    return False


def keep_tree(settings: Experiment, corpus: Corpus, number: int, tree: LabelTree) -> None:
    """Save label tree `number` in the run's directory, whose `tree-N` must be there."""
    directory = tree_directory(settings.run_directory, number)
    tree.save(directory / TREE)
    mark = tree_fingerprint(settings, corpus, number)
    write_json(directory / TREE_MANIFEST, {"fingerprint": mark, "level_sizes": tree.level_sizes})


def _cluster_labels(settings: Experiment, number: int) -> None:
    corpus = Corpus.open(settings.corpus_directory)
    keep_freed_memory()
    keep_tree(settings, corpus, number, cluster_labels(settings, corpus, number))


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
            resources_per_worker=resources.of_a_worker,
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
