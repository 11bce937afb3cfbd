"""Fitting of a run's members by Ray tasks, and of those that train on several workers by one Ray Train group each.

- The task that starts a group reserves no CPU, so any number of groups can wait for workers without a deadlock. A group
  starts when all of its workers fit; groups that do not fit at the same time queue.
- Members that are fitted in one process come first: they take seconds where networks take minutes, so there are scores
  early. They end before a group starts, and so never hold CPUs that a group waits for.
- All state is in the run's directory: a killed worker, task or driver loses only the level that was being trained.
"""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import ray
import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from axml_ray.cluster import check_fits, root_cause
from axml_ray.corpus.store import Corpus
from axml_ray.fitting import fit_features, fit_member
from axml_ray.heartbeat import Heartbeat, phase
from axml_ray.members.member import Member, MemberSpec
from axml_ray.network.devices import reserved_device
from axml_ray.network.precision import use_threads
from axml_ray.orchestration.tasks import ANYWHERE
from axml_ray.reporter import current_reporter
from axml_ray.run import Run
from axml_ray.settings import Experiment
from axml_ray.settings.members import kinds
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level import TrainingDivergedError
from axml_ray.training.progress import Follower

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
END_SECONDS = 30.0

Follow = Callable[[dict[str, Any]], None]


class Stopped(RuntimeError):
    """Training was cancelled by the caller."""


def never() -> bool:
    """Do not stop training."""
    return False


def ignore(record: dict[str, Any]) -> None:
    """Do nothing with a record of a journal."""


def show(record: dict[str, Any]) -> None:
    """Show a record of a journal."""
    current_reporter().training(record)


def fit_members(
    run: Run,
    follow: Follow = show,
    stopped: Callable[[], bool] = never,
    before_networks: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Fit all members of a run that are not fitted yet. Its label trees must be built, and Ray initialised.

    Args:
        run: the run.
        follow: called with each record that workers write to the trees' journals.
        stopped: called about once a second; if it returns true, all tasks and their workers are cancelled.
        before_networks: called once if members remain to be trained by workers, when all others are fitted.

    Returns:
        Seconds that each kind took in this call, in the order of fitting; members of one kind run in parallel.

    Raises:
        SettingsError: the cluster is too small for one group of workers.
        RuntimeError: a member failed; the levels that it finished are kept.
        Stopped: `stopped` returned true.
    """
    by_kind: dict[str, list[MemberSpec]] = {}
    for spec in run.members:
        by_kind.setdefault(spec.kind, []).append(spec)
    networks = [kind for kind in by_kind if kinds()[kind].load().trained_by_workers]
    others = [kind for kind in by_kind if kind not in networks]
    if networks:
        check_fits(run.settings.resources)
    seconds = {kind: _fit_kind(run, by_kind[kind], follow, stopped) for kind in others}
    if not all(spec.is_fitted for kind in networks for spec in by_kind[kind]):
        before_networks()
    return seconds | {kind: _fit_kind(run, by_kind[kind], follow, stopped) for kind in networks}


def _fit_kind(run: Run, specs: list[MemberSpec], follow: Follow, stopped: Callable[[], bool]) -> float:
    """Fit the members of a kind that are not fitted yet; return the seconds that it took."""
    began, kind = time.monotonic(), specs[0].kind
    implementation: type[Member] = kinds()[kind].load()
    missing = [spec for spec in specs if not spec.is_fitted]
    with phase(kind.replace("_", " ")):
        if implementation.uses_features:
            _fit_features(run)
        if implementation.trained_by_workers:
            _train_groups(run, missing, follow, stopped)
        elif missing:
            _fit_in_tasks(run, missing, stopped)
    return time.monotonic() - began


def _train_groups(run: Run, specs: list[MemberSpec], follow: Follow, stopped: Callable[[], bool]) -> None:
    """Train members on groups of workers; those that fit on the cluster run concurrently."""
    directories = [run.layout.tree(number) for number in range(run.settings.ensemble.trees)]
    follower = Follower(directories)
    if specs:
        log.info("starting the workers of %d members", len(specs))
    # max_calls=1: a process that stayed for the next member would keep Ray Train's controller of the last one alive.
    task = ray.remote(num_cpus=0, max_retries=2, max_calls=1, **ANYWHERE)(_train_on_workers)

    def follow_new_records() -> None:
        for record in follower.new_records():
            follow(record)

    tasks = {task.remote(run.settings, spec.name): spec for spec in specs}
    for spec, _ in _finished_members(tasks, stopped, follow_new_records):
        log.info("%s · finished", spec.title)


def _finished_members(
    tasks: dict[ray.ObjectRef, MemberSpec], stopped: Callable[[], bool], poll: Callable[[], None] = lambda: None
) -> Iterator[tuple[MemberSpec, Any]]:
    """Yield each member and the result of its task, in the order in which the tasks end.

    Args:
        tasks: the members by their tasks.
        stopped: called about once a second, whether to cancel the tasks.
        poll: called before each call of `stopped`.

    Raises:
        RuntimeError: a task failed; the others are cancelled.
        Stopped: `stopped` returned true.
    """
    waiting = dict(tasks)
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=POLL_SECONDS)
        poll()
        if stopped():
            _end(list(waiting))
            raise Stopped("training was stopped")
        for finished in done:
            spec = waiting.pop(finished)
            try:
                result = ray.get(finished)
            except ray.exceptions.RayError as error:
                _end(list(waiting))
                raise RuntimeError(f"{spec.title} failed: {root_cause(error)}") from error
            yield spec, result


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
            # Our own files record what is finished; a unique name keeps Ray from resuming an earlier attempt.
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
    """Fit a member on one worker; return the message of diverged training, which must not be retried, or None."""
    settings = config["settings"]
    gpus = settings.resources.gpus_per_worker
    device = reserved_device(gpus, str(get_device()) if gpus else "cpu")
    use_threads(settings.resources.threads_of_worker)
    run = Run(settings, Corpus.open(settings.corpus_directory))
    try:
        fit_member(run, run.spec(config["name"]), DistributedContext.current(device))
    except TrainingDivergedError as error:
        return str(error)
    return None


def _fit_in_tasks(run: Run, specs: list[MemberSpec], stopped: Callable[[], bool]) -> None:
    """Fit members by one task each; those that fit on the cluster run concurrently."""
    task = ray.remote(**_one_process(run.settings))(_fit_member)
    what = f"fitting {specs[0].kind.replace('_', ' ')}"
    log.info("%s · %d to fit", what, len(specs))
    tasks = {task.remote(run.settings, spec.name): spec for spec in specs}
    with Heartbeat(what, len(specs), "members") as heartbeat:
        for spec, seconds in _finished_members(tasks, stopped):
            log.info("%s · fitted in %.0f s", spec.title, seconds)
            heartbeat.add()


def _fit_member(settings: Experiment, name: str) -> float:
    """Fit one member in this process; return the seconds that it took."""
    began = time.monotonic()
    run = Run(settings, Corpus.open(settings.corpus_directory))
    spec = run.spec(name)
    fit_member(run, spec)
    spec.mark_fitted()
    return time.monotonic() - began


def _fit_features(run: Run) -> None:
    """Fit the featurizer that members share, unless it is fitted."""
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
    """Cancel tasks: an interrupt first, so that Ray Train releases the resources of a worker group, then by force."""
    for task in tasks:
        ray.cancel(task, recursive=False)
    left = ray.wait(tasks, num_returns=len(tasks), timeout=END_SECONDS)[1] if tasks else []
    for task in left:
        ray.cancel(task, force=True)
