"""Fitting of a run's members by Ray tasks; those that train on several workers have a Ray Train group each.

- Members that are fitted in one process come first: they take seconds where networks take minutes, so there are scores
  early. They end before a group starts, and so never hold CPUs that a group waits for.
- `worker_group` trains the others. Groups that do not fit on the cluster at the same time queue.
- All state is in the run's directory: a killed worker, task or driver loses only the level that was being trained.
"""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import ray

from axml_ray.cluster.connection import check_fits, failure, root_cause
from axml_ray.core.errors import JobError
from axml_ray.corpus.store import Corpus
from axml_ray.members.member import Member, MemberSpec
from axml_ray.orchestration.tasks import ANYWHERE
from axml_ray.orchestration.worker_group import training_task
from axml_ray.progress.heartbeat import Heartbeat, phase
from axml_ray.progress.reporter import current_reporter
from axml_ray.runs.fitting import fit_features, fit_member
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.settings.members import kinds
from axml_ray.training.progress import Follower

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
END_SECONDS = 30.0

Follow = Callable[[dict[str, Any]], None]


class TrainingCancelledError(JobError):
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
        TrainingCancelledError: `stopped` returned true.
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
    task = training_task(run.settings.resources)

    def follow_new_records() -> None:
        for record in follower.new_records():
            follow(record)

    tasks = {task.remote(run.settings, spec.name): spec for spec in specs}
    for spec, divergence in _finished_members(tasks, stopped, follow_new_records):
        if divergence:
            _end(list(tasks))
            raise JobError(f"{spec.title} failed: {divergence}")
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
        TrainingCancelledError: `stopped` returned true.
    """
    waiting = dict(tasks)
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=POLL_SECONDS)
        poll()
        if stopped():
            _end(list(waiting))
            raise TrainingCancelledError("training was stopped")
        for finished in done:
            spec = waiting.pop(finished)
            try:
                result = ray.get(finished)
            except ray.exceptions.RayError as error:
                _end(list(waiting))
                raise failure(error, f"{spec.title} failed: {root_cause(error)}") from error
            yield spec, result


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
        raise failure(error, f"the features of the texts failed: {root_cause(error)}") from error


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
