"""The members of a run, fitted by Ray tasks; those that train on several workers, by a Ray Train group each.

- The task that starts a group holds no CPU, so any number of groups can wait for the workers of others without a
  deadlock; a group starts when all of its workers fit. Groups that do not fit side by side queue.
- Members that are fitted by one process follow: earlier they could take the CPUs that a group's workers wait for.
- All state is in the run's directory: a killed worker, task or driver costs the level that was being trained.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

import ray
import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from axml_ray.cluster import check_fits, root_cause
from axml_ray.corpus.store import Corpus
from axml_ray.fitting import fit_features, fit_member
from axml_ray.heartbeat import Heartbeat
from axml_ray.members.member import MemberSpec
from axml_ray.network.precision import use_threads
from axml_ray.orchestration.tasks import ANYWHERE
from axml_ray.run import Run
from axml_ray.settings import Experiment
from axml_ray.settings.members import kinds
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level import TrainingDivergedError
from axml_ray.training.progress import Follower, format_record

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
END_SECONDS = 30.0

Follow = Callable[[dict[str, Any]], None]


class Stopped(RuntimeError):
    """Training was cancelled by the caller."""


def never() -> bool:
    """Do not stop training."""
    return False


def show(record: dict[str, Any]) -> None:
    """Log a journal's record as a line; scorings are many, and the lines in between include their results."""
    if "scoring" not in record:
        log.info("%s", format_record(record))


def fit_members(run: Run, follow: Follow = show, stopped: Callable[[], bool] = never) -> dict[str, float]:
    """Fit, or go on fitting, every member of a run. Its label trees are built, and Ray is initialised.

    Args:
        run: of the main job.
        follow: called with every record of the trees' journals that is written while workers train.
        stopped: called about once a second; when it returns true, all tasks and their workers are ended.

    Returns:
        Seconds that each kind took in this call, kinds in order; members of one kind run in parallel.

    Raises:
        SettingsError: the cluster is too small for one group of workers.
        RuntimeError: a member failed; what it had finished is kept.
        Stopped: `stopped` returned true.
    """
    classes = {spec.kind: kinds()[spec.kind].load() for spec in run.members}
    order = sorted(classes, key=lambda kind: not classes[kind].trained_by_workers)
    seconds = {}
    for kind in order:
        began = time.monotonic()
        missing = [spec for spec in run.members if spec.kind == kind and not spec.is_fitted]
        if classes[kind].uses_features:
            _fit_features(run)
        if classes[kind].trained_by_workers:
            check_fits(run.settings.resources)
            _train_groups(run, missing, follow, stopped)
        elif missing:
            _fit_in_tasks(run, missing, stopped)
        seconds[kind] = time.monotonic() - began
    return seconds


def _train_groups(run: Run, specs: list[MemberSpec], follow: Follow, stopped: Callable[[], bool]) -> None:
    """Train members on groups of workers, side by side as far as they fit."""
    directories = [run.layout.tree(number) for number in range(run.settings.ensemble.trees)]
    follower = Follower(directories)
    if specs:
        log.info("starting the workers of %d members", len(specs))
    # One process for each: one that stays for the next member keeps Ray Train's controller of the last alive.
    task = ray.remote(num_cpus=0, max_retries=2, max_calls=1, **ANYWHERE)(_train_on_workers)
    waiting = {task.remote(run.settings, spec.name): spec for spec in specs}
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=POLL_SECONDS)
        for record in follower.new_records():
            follow(record)
        if stopped():
            _end(list(waiting))
            raise Stopped("training was stopped")
        for finished in done:
            spec = waiting.pop(finished)
            try:
                ray.get(finished)
            except ray.exceptions.RayError as error:
                _end(list(waiting))
                raise RuntimeError(f"{spec.title} failed: {root_cause(error)}") from error
            log.info("%s · finished", spec.title)


def _train_on_workers(settings: Experiment, name: str) -> None:
    """Train one member on a group of Ray Train workers."""
    run = Run(settings, Corpus.open(settings.corpus_directory))
    spec, resources = run.spec(name), settings.resources
    trainer = TorchTrainer(
        _work,
        train_loop_config={"settings": settings, "name": name},
        torch_config=TorchConfig(backend="nccl" if resources.gpus_per_worker else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=resources.workers,
            use_gpu=resources.gpus_per_worker > 0,
            resources_per_worker=resources.of_a_worker,
        ),
        run_config=RunConfig(
            # Our own files say what is finished; a name of its own keeps Ray's record of an earlier attempt apart.
            name=f"{name}-{time.time_ns():x}",
            storage_path=str(run.layout.workers),
            failure_config=FailureConfig(max_failures=resources.max_failures),
        ),
    )
    diverged = trainer.fit().return_value
    if diverged:
        raise RuntimeError(diverged)
    spec.mark_fitted()


def _work(config: dict[str, Any]) -> str | None:
    """Fit a member on one worker; returns why it cannot be trained, which another attempt would not change."""
    settings = config["settings"]
    device = get_device() if settings.resources.gpus_per_worker else torch.device("cpu")
    use_threads(settings.resources.threads_of_worker)
    run = Run(settings, Corpus.open(settings.corpus_directory))
    try:
        fit_member(run, run.spec(config["name"]), DistributedContext.current(device))
    except TrainingDivergedError as error:
        return str(error)
    return None


def _fit_in_tasks(run: Run, specs: list[MemberSpec], stopped: Callable[[], bool]) -> None:
    """Fit members by one task each, side by side as far as they fit."""
    task = ray.remote(**_one_process(run.settings))(_fit_member)
    what = f"fitting {specs[0].kind.replace('_', ' ')}"
    log.info("%s · %d to fit", what, len(specs))
    waiting = {task.remote(run.settings, spec.name): spec for spec in specs}
    with Heartbeat(what, len(specs), "members") as heartbeat:
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=POLL_SECONDS)
            if stopped():
                _end(list(waiting))
                raise Stopped("training was stopped")
            for finished in done:
                spec = waiting.pop(finished)
                try:
                    log.info("%s · fitted in %.0f s", spec.title, ray.get(finished))
                except ray.exceptions.RayError as error:
                    _end(list(waiting))
                    raise RuntimeError(f"{spec.title} failed: {root_cause(error)}") from error
                heartbeat.add()


def _fit_member(settings: Experiment, name: str) -> float:
    """Fit one member in this process; returns the seconds that it took."""
    began = time.monotonic()
    run = Run(settings, Corpus.open(settings.corpus_directory))
    spec = run.spec(name)
    fit_member(run, spec)
    spec.mark_fitted()
    return time.monotonic() - began


def _fit_features(run: Run) -> None:
    """Fit the featurizer that members share, unless it is there."""
    if run.has_features():
        return
    try:
        with Heartbeat("counting the features of the texts"):
            ray.get(ray.remote(**_one_process(run.settings))(_save_features).remote(run.settings))
    except ray.exceptions.RayError as error:
        raise RuntimeError(f"the features of the texts failed: {root_cause(error)}") from error


def _save_features(settings: Experiment) -> None:
    fit_features(Run(settings, Corpus.open(settings.corpus_directory)))


def _one_process(settings: Experiment) -> dict[str, Any]:
    memory = settings.resources.of_a_worker.get("memory")
    return {"num_cpus": 1, "max_retries": 2, "max_calls": 1, "memory": memory, **ANYWHERE}


def _end(tasks: list[ray.ObjectRef]) -> None:
    """End tasks. An interrupt lets Ray Train give back what a worker group held; the rest is forced."""
    for task in tasks:
        ray.cancel(task, recursive=False)
    left = ray.wait(tasks, num_returns=len(tasks), timeout=END_SECONDS)[1] if tasks else []
    for task in left:
        ray.cancel(task, force=True)
