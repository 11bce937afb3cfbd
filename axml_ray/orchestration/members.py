"""Fitting of a run's members by Ray tasks; those that train on several workers have a Ray Train group each.

- Members that are fitted in one process come first: they take seconds where networks take minutes, so there are scores
  early. They end before a group starts, and so never hold CPUs that a group waits for.
- On a machine of one's own, a single worker needs neither a process group nor a controller, so its task is the worker.
  For three trees on two cores that leaves three processes instead of nine, each of which takes seconds to start. On a
  cluster, whose nodes may be preempted, it is a group of one.
- The task that starts a group reserves no CPU, so any number of groups can wait for workers without a deadlock. A group
  starts when all of its workers fit; groups that do not fit on the cluster at the same time queue.
- All state is in the run's directory: a killed worker, task or driver loses only the steps since the last checkpoint.
  Ray starts a dead worker's task or group again, at most `resources.max_failures` times, not counting preemptions, and
  twice at most a task that starts a group or fits a member in one process.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from axml_ray.cluster.capacity import check_fits, reservable_memory
from axml_ray.cluster.connection import PREEMPTION_WATCHER
from axml_ray.cluster.failures import failure, root_cause
from axml_ray.cluster.tasks import ANYWHERE, cancel, check_device, maps_in_tasks
from axml_ray.core import storage as object_store
from axml_ray.core.errors import JobError
from axml_ray.core.files import check_fences, remove_directory
from axml_ray.core.lease import Lease, LeaseLostError
from axml_ray.members.member import MemberSpec
from axml_ray.network.backends.devices import reserved_device
from axml_ray.network.backends.precision import use_threads
from axml_ray.planning.phases import task_memory
from axml_ray.progress.heartbeat import Heartbeat, phase
from axml_ray.progress.reporter import current_reporter
from axml_ray.runs.fitting import fit_features
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.settings.members import kinds
from axml_ray.training.checkpoints import WorkerGroup
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level import TrainingDivergedError
from axml_ray.training.progress import Follower

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
END_SECONDS = 30.0
ONE_PROCESS = {"num_cpus": 1, "max_retries": 2, "max_calls": 1, **ANYWHERE}
"""Options of a task that fits something in one process."""

Follow = Callable[[dict[str, Any]], None]


class TrainingCancelledError(JobError):
    """Training was cancelled by the caller."""


def never() -> bool:
    """Do not stop training."""
    return False


def show(record: dict[str, Any]) -> None:
    """Show a record of a journal."""
    current_reporter().training(record)


def fit_members(
    run: Run,
    follow: Follow = show,
    stopped: Callable[[], bool] = never,
    before_networks: Callable[[], None] = lambda: None,
    spent: Callable[[str, float], None] = lambda kind, seconds: None,
) -> None:
    """Fit all members of a run that are not fitted yet. Its label trees must be built, and Ray initialised.

    Args:
        run: the run.
        follow: called with each record that workers write to the trees' journals.
        stopped: called about once a second; if it returns true, all tasks and their workers are cancelled.
        before_networks: called once if members remain to be trained by workers, when all others are fitted.
        spent: called with each kind, when its members are fitted or failed, and the seconds that they took in this
            call; members of one kind run in parallel.

    Raises:
        SettingsError: the cluster is too small for one group of workers, or PyTorch cannot use a GPU there.
        RuntimeError: members failed, when the others of their kind have ended; the levels that they finished are kept.
        TrainingCancelledError: `stopped` returned true.
    """
    # Barrier: the members of a kind run in parallel, and the next kind begins when they all have ended.
    by_kind: dict[str, list[MemberSpec]] = {}
    for spec in run.members:
        by_kind.setdefault(spec.kind, []).append(spec)
    networks = [kind for kind in by_kind if kinds()[kind].load().trained_by_workers]
    without_networks = [kind for kind in by_kind if kind not in networks]
    must_train = not all(member.is_fitted for kind in networks for member in by_kind[kind])
    if must_train:
        check_fits(run.settings.resources)
        if run.settings.resources.gpus_per_worker:  # networks come last, hours later
            check_device(reserved_device, run.settings.resources.of_a_worker)
    for kind in [*without_networks, *networks]:
        if must_train and kind == networks[0]:
            before_networks()
        began, missing = time.monotonic(), [spec for spec in by_kind[kind] if not spec.is_fitted]
        try:
            with phase(kind.replace("_", " ")):
                if kinds()[kind].load().uses_features and not run.has_features():
                    _fit_features(run)
                if missing and kind in networks:
                    _train(run, missing, follow, stopped)
                elif missing:
                    _fit(run, missing, stopped)
        finally:
            spent(kind, time.monotonic() - began)


def _train(run: Run, specs: list[MemberSpec], follow: Follow, stopped: Callable[[], bool]) -> None:
    """Train members on their workers; those that fit on the cluster run concurrently."""
    log.info("starting the workers of %d members", len(specs))
    resources, needed = run.settings.resources, task_memory(run.settings, run.counts)["worker"]
    memory = reservable_memory(needed, resources.min_workers, resources.of_a_worker)
    follower = Follower([run.layout.tree(number) for number in range(run.settings.ensemble.trees)])
    # max_calls=1: a process that stayed for the next member would keep its memory, and Ray Train's controller.
    if resources.max_workers > 1 or os.environ.get(PREEMPTION_WATCHER) != "0":
        # Where the driver is, as the group is lost with the node of this task.
        on_this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        task = ray.remote(num_cpus=0, max_retries=2, max_calls=1, scheduling_strategy=on_this_node)(train_on_group)
        tasks = {task.remote(run.settings, spec.name, run.lease, memory): spec for spec in specs}
    else:
        reserved = resources.of_a_worker
        task = ray.remote(
            num_cpus=reserved.get("CPU", 0),
            num_gpus=reserved.get("GPU", 0),
            memory=memory,
            max_retries=resources.max_failures,
            retry_exceptions=True,  # as Ray Train does: a fault of a GPU may be an exception
            max_calls=1,
            **ANYWHERE,
        )(train_member)
        tasks = {task.remote(run.settings, spec.name, run.lease): spec for spec in specs}

    def follow_new_records() -> None:
        for record in follower.new_records():
            follow(record)

    for spec, _ in _finished_members(tasks, stopped, follow_new_records):
        log.info("%s · finished", spec.title)


def train_member(
    settings: Experiment,
    name: str,
    lease: Lease | None = None,
    device: torch.device | None = None,
    group: WorkerGroup | None = None,
) -> JobError | None:
    """Train a member in this process, with the other workers of its process group, if there is one.

    Args:
        settings: settings of the run.
        name: name of the member.
        lease: lease of the job that trains the run.
        device: device of its networks; by default the GPU that Ray reserved for the task, if any, else the CPU.
        group: the group of Ray Train that runs the workers; by default, this process trains alone.

    Returns:
        An error that must not be retried as an exception would be: that of a training that diverged or, without a
        group, of a lost lease; else None.
    """
    use_threads(settings.resources.threads_of_worker)
    run = Run.open(settings, lease)
    spec = run.spec(name)
    context = DistributedContext.current(device or reserved_device(settings.resources.gpus_per_worker))
    try:
        spec.implementation.fit(spec, replace(run.prepare_fit(spec, context), group=group))
    except TrainingDivergedError as error:
        return error
    except LeaseLostError as error:
        if group is not None:  # the other workers would wait for this one
            raise
        return error
    # The files of a group are complete when all of its workers are done, which the task that started it awaits.
    if group is None and context.world_size == 1:
        _mark_trained(spec)
    return None


def train_on_group(settings: Experiment, name: str, lease: Lease | None, memory: int) -> TrainingDivergedError | None:
    """Train a member on a group of Ray Train workers, which restores the group after the death of a worker.

    Arguments and result are those of `train_member`; each worker reserves `memory` bytes.
    """
    # Not at the top: the processes that need no group would take another second to start.
    from axml_ray.orchestration.worker_group import train_in_group

    run = Run.open(settings, lease)
    spec = run.spec(name)
    storage = _storage(spec)
    config = {"settings": settings, "name": name, "lease": lease, "storage": storage}
    # Barrier: this waits for all workers of the group, and starts it again after the death of one.
    divergence: TrainingDivergedError | None = train_in_group(
        _train_as_worker, config, storage, settings.resources, memory
    )
    if not divergence:
        _mark_trained(spec)
    return divergence


def _train_as_worker(config: dict[str, Any]) -> JobError | None:
    """Train a member as one worker of a Ray Train group."""
    from ray.train.torch import get_device

    from axml_ray.orchestration.worker_group import RayTrainGroup

    settings, lease = config["settings"], config["lease"]
    if lease is not None:
        lease.enforce()
    gpus = settings.resources.gpus_per_worker
    device = reserved_device(gpus, str(get_device()) if gpus else "cpu")
    return train_member(settings, config["name"], lease, device, RayTrainGroup(config["storage"]))


def _storage(spec: MemberSpec) -> Path:
    """Return the directory in which Ray Train stores the checkpoints of a member."""
    return spec.directory / spec.name


def _mark_trained(spec: MemberSpec) -> None:
    """Mark a member as fitted, without the checkpoints of its groups."""
    remove_directory(_storage(spec))
    spec.mark_fitted()


def _fit(run: Run, specs: list[MemberSpec], stopped: Callable[[], bool]) -> None:
    """Fit members by one task each; those that fit on the cluster run concurrently."""
    kind, needed = specs[0].kind, task_memory(run.settings, run.counts)
    task = ray.remote(**ONE_PROCESS, memory=reservable_memory(needed[kind]))(_fit_member)
    what = f"fitting {kind.replace('_', ' ')}"
    log.info("%s · %d to fit", what, len(specs))
    parts = needed[f"{kind}, parts"]
    tasks = {task.remote(run.settings, spec.name, run.lease, parts): spec for spec in specs}
    with Heartbeat(what, len(specs), "members") as heartbeat:
        for spec, seconds in _finished_members(tasks, stopped):
            log.info("%s · fitted in %.0f s", spec.title, seconds)
            heartbeat.add()


def _fit_member(settings: Experiment, name: str, lease: Lease | None, part_memory: int) -> float:
    """Fit one member in this process; return the seconds that it took."""
    began, run = time.monotonic(), Run.open(settings, lease)
    spec = run.spec(name)
    parts = maps_in_tasks(part_memory)
    spec.implementation.fit(spec, replace(run.prepare_fit(spec), parallel_map=parts))
    spec.mark_fitted()
    return time.monotonic() - began


def _fit_features(run: Run) -> None:
    """Fit the featurizer that members share."""
    memory = reservable_memory(task_memory(run.settings, run.counts)["features"])
    task = ray.remote(**ONE_PROCESS, memory=memory)(_save_features)
    try:
        with Heartbeat("counting the features of the texts"):
            ray.get(task.remote(run.settings, run.lease))
    except ray.exceptions.RayError as error:
        raise failure(error, f"the features of the texts failed: {root_cause(error)}") from error


def _save_features(settings: Experiment, lease: Lease | None) -> None:
    fit_features(Run.open(settings, lease))


def _finished_members(
    tasks: dict[ray.ObjectRef, MemberSpec], stopped: Callable[[], bool], poll: Callable[[], None] = lambda: None
) -> Iterator[tuple[MemberSpec, Any]]:
    """Yield each member that was fitted and the result of its task, in the order in which the tasks end.

    Args:
        tasks: the members by their tasks, whose result may be the error of a training that diverged.
        stopped: called about once a second, whether to cancel the tasks.
        poll: called before each call of `stopped`.

    Raises:
        RuntimeError: tasks failed, which is raised when the others have ended.
        TrainingCancelledError: `stopped` returned true.
        LeaseLostError: another job has taken over the run.
    """
    waiting = dict(tasks)
    failures: dict[str, Exception] = {}
    try:
        while waiting:
            # A short wait, as Ray has no way to be told of a record that a worker has written, or of the caller's stop.
            done, _ = ray.wait(list(waiting), timeout=POLL_SECONDS)
            with suppress(OSError, object_store.StoreError):  # an outage, which ends: each write checks again
                check_fences(next(iter(tasks.values())).directory)  # stop as soon as another job has taken over the run
            poll()
            if stopped():
                raise TrainingCancelledError("training was stopped")
            for finished in done:
                spec = waiting.pop(finished)
                try:
                    result = ray.get(finished)
                except ray.exceptions.RayError as error:
                    result = error
                if isinstance(result, Exception):
                    failures[f"{spec.title} failed: {root_cause(result)}"] = result
                    if waiting:
                        log.warning("%s; the others go on", next(reversed(failures)))
                else:
                    yield spec, result
    except Exception:
        # An interrupt first, so that Ray Train releases the resources of a worker group, then by force.
        left = cancel(list(waiting), END_SECONDS, recursive=False)
        cancel(left, 0, force=True)
        raise
    if failures:
        causes = [failure(error, message) for message, error in failures.items()]
        kind = JobError if all(isinstance(cause, JobError) for cause in causes) else RuntimeError
        fitted = len(tasks) - len(failures)
        rest = f"; {fitted} of {len(tasks)} are fitted, and the same command fits the others" if fitted else ""
        raise kind("; ".join(failures) + rest) from ExceptionGroup("members failed", list(failures.values()))
