"""The run of a sweep by Ray Tune: OptunaSearch draws trials, ASHA stops some, `Tuner.restore` continues a sweep.

The sweep's directory has `sweep.json` with its settings, and Tune's experiment in `trials`. A trial's directory there
is also that of its training. A trial that was running when the sweep ended goes on from the checkpoints of its levels.
"""

import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from optuna.samplers import RandomSampler, TPESampler
from ray import tune
from ray.tune.logger import JsonLoggerCallback
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search.optuna import OptunaSearch

from axml_ray.cluster.capacity import check_fits, max_processes
from axml_ray.core import storage
from axml_ray.core.errors import JobError, SettingsError
from axml_ray.core.files import check_fences
from axml_ray.core.lease import lease_of
from axml_ray.core.paths import uri_of
from axml_ray.corpus.store import Corpus
from axml_ray.orchestration.members import END_SECONDS
from axml_ray.settings import Experiment, ResourceSettings
from axml_ray.settings.members import members_model
from axml_ray.tracking.kinds import with_address
from axml_ray.tracking.tracked_run import TrackedRun, parameters_of
from axml_ray.tuning.early_stopping import LevelwiseASHA
from axml_ray.tuning.records import DIED, ERROR, Trial, read_trial, read_trials
from axml_ray.tuning.space import check_space, shown_parameters
from axml_ray.tuning.sweep import Sweep, write_manifest
from axml_ray.tuning.trial import TrialRunner, drop_weights

log = logging.getLogger(__name__)

TRIALS, TREES = "trials", "trees"
TRIAL_RESOURCES = {"memory": 1}
"""Resources of a trial's actor: one byte, as Tune requires some, and the CPUs are for the trial's workers."""
STARTUP = 8
"""Number of trials that TPE draws at random before it uses results."""
SAVE_SECONDS = 5
"""Least time between two writes of the state from which a killed sweep continues."""


def concurrent_trials(resources: ResourceSettings, at_once: int | None = None) -> int:
    """Return how many trials run concurrently, each with the workers of one tree. Ray must be initialised.

    The trees of a trial are trained one after the other if there is no more room, so trials cannot deadlock. `at_once`
    is the number that the user requires; without it, the cluster's resources decide.

    Raises:
        SettingsError: not even one trial fits, or fewer than `at_once`.
    """
    check_fits(resources)
    # Clustering the labels is a task of one CPU that runs before the workers start.
    required = {**resources.of_a_worker, "CPU": max(resources.cpus_per_worker, 1 / resources.min_workers)}
    fit = max(1, max_processes(required) // resources.min_workers)
    if at_once is not None and at_once > fit:
        raise SettingsError(
            f"--at-once: the workers of {at_once} trials don't fit, those of {fit} do; lower it, resources.workers or "
            "the resources of a worker"
        )
    return at_once or fit


def run_sweep(sweep: Sweep, corpus: Corpus, begun: Callable[[], None] = lambda: None) -> list[Trial]:
    """Run a sweep, or continue it, and return its trials by number. Ray must be initialised.

    `begun` is called when everything is checked, before the first trial.

    Raises:
        SettingsError: the space or the resources are invalid, the directory contains another sweep, or the corpus was
            replaced meanwhile.
        JobError: the sweep was interrupted; it can be continued.
        LeaseLostError: another job has taken over the sweep.
    """
    base = _base(sweep, corpus)
    check_space(sweep.space, base, sweep.settings.seed)
    concurrent = concurrent_trials(sweep.settings.resources, sweep.at_once)
    write_manifest(sweep, corpus)
    begun()
    directory = sweep.directory / TRIALS

    def check() -> None:
        check_fences(sweep.directory)
        if Corpus.open(corpus.directory).fingerprint != corpus.fingerprint:
            raise SettingsError(
                f"{corpus.directory}: was prepared from other texts or settings while the sweep went on; prepare it as "
                "it was, and run the same command again to continue"
            )

    lease = lease_of(sweep.directory)
    runner = TrialRunner(base=base, directory=directory, trees=sweep.directory / TREES, lease=lease)
    # Trials write their own journals, so of Tune's loggers only that of `result.json` is used.
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = str(SAVE_SECONDS)
    # Ctrl-C must end the job immediately; the state is written every few seconds anyway.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    trainable = tune.with_resources(tune.with_parameters(TrialActor, runner=runner), TRIAL_RESOURCES)
    place = uri_of(directory)
    if tune.Tuner.can_restore(place):
        tuner = tune.Tuner.restore(place, trainable, resume_errored=True)
        log.info("sweep %s continues, with its first number of trials at a time", sweep.name)
    else:
        tuner = _tuner(sweep, trainable, sweep.documents(corpus), concurrent)
        log.info(
            "sweep %s: %d trials, %d at a time, each on %s training documents",
            sweep.name, sweep.trials, concurrent, f"{sweep.documents(corpus):,}",
        )  # fmt: skip
    TrialLog.check, TrialLog.directory = staticmethod(check), directory
    try:
        tuner.fit()
    except tune.TuneError as error:
        check()  # what it raises is the reason
        raise JobError(f"the sweep was interrupted ({error}); run the same command again to continue it") from None
    trials = read_trials(directory)
    for trial in trials:
        if trial.reason != DIED:  # else the same command continues it
            drop_weights(runner.trial_directory(trial.number))
    return trials


def _tuner(sweep: Sweep, trainable: Any, epoch: int, concurrent: int) -> tune.Tuner:
    """Return the tuner of a new sweep, whose trials train on `epoch` documents."""
    seed, space = sweep.settings.seed, sweep.space
    is_random = sweep.search == "random"
    sampler = RandomSampler(seed) if is_random else TPESampler(seed=seed, n_startup_trials=STARTUP)
    first = space.of_settings(sweep.settings)
    if first is None:
        log.info("tune: the space cannot draw the config's own settings; the first trial is drawn like the others")
    scheduler: TrialScheduler = FIFOScheduler()
    if sweep.early_stopping:
        scheduler = LevelwiseASHA(max(1, round(sweep.grace * epoch)), sweep.reduction)
    return tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=OptunaSearch(
                space,
                metric="nDCG@5",
                mode="max",
                sampler=sampler,
                points_to_evaluate=[first] if first else None,
            ),
            scheduler=scheduler,
            num_samples=sweep.trials,
            max_concurrent_trials=concurrent,
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name=TRIALS,
            storage_path=uri_of(sweep.directory),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=sweep.settings.resources.max_failures),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # trials have checkpoints of their own
            sync_config=tune.SyncConfig(sync_period=SAVE_SECONDS),
            callbacks=[TrialLog(), JsonLoggerCallback()],  # in this order, as the first checks whether to write
        ),
    )


def track_sweep(sweep: Sweep, corpus: Corpus) -> TrackedRun:
    """Return the context in which a sweep is tracked; the tracked runs of its trials are below it or next to it."""
    base = _base(sweep, corpus)
    about = {f"sweep.{key}": value for key, value in sweep.about(corpus).items() if key != "settings"}
    return TrackedRun(
        sweep.name, sweep.directory, base.tracking, {**parameters_of(base), **about}, sweep=sweep.directory
    )


def _base(sweep: Sweep, corpus: Corpus) -> Experiment:
    """Return the settings that the trials start from: one network tree and nothing else, on a part of the corpus.

    Further members and the combiner are fitted when the best settings are trained on all documents.
    """
    training = sweep.settings.training.model_copy(update={"documents": sweep.documents(corpus)})
    ensemble = sweep.settings.ensemble.model_copy(update={"trees": 1, "combiner": "mean"})
    tracking = with_address(sweep.settings.tracking, sweep.settings.runs)
    return sweep.settings.model_copy(
        update={"training": training, "ensemble": ensemble, "members": members_model()(), "tracking": tracking}
    )


def _trial_name(trial: Any) -> str:
    return f"{trial.config['number']:03d}"


class TrialActor(tune.Trainable):
    """A trial as an actor of Tune: it trains in a thread, and each step returns the next result from a queue."""

    def setup(self, config: dict[str, Any], runner: TrialRunner) -> None:
        """Start the training."""
        self._results: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._stop = threading.Event()
        arguments = config["number"], config["parameters"], self._results.put, self._stop.is_set
        self._thread = threading.Thread(target=runner.run, args=arguments, daemon=True)
        self._thread.start()

    def step(self) -> dict[str, Any]:
        """Wait for the next evaluation, or for the end of the trial."""
        result = self._results.get()
        return result if "group" in result else {**result, "done": True}

    def cleanup(self) -> None:
        """Stop the training and wait until its workers have ended."""
        self._stop.set()
        self._thread.join(timeout=2 * END_SECONDS)


class TrialLog(tune.Callback):
    """Log lines at the start and the end of each trial, and the removal of weights that are not used again.

    Attributes:
        check: raises an error if the sweep may not go on.
        directory: directory of Tune's experiment. Both are of the class: Tune stores the object, and a start that
            continues the sweep has its own.
    """

    check: ClassVar[Callable[[], None]]
    directory: ClassVar[Path]

    def __init__(self) -> None:
        self._ended: list[str] = []

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Log the drawn parameters; Tune calls this."""
        TrialLog.check()
        for path in (Path(trial.local_path), TrialLog.directory / _trial_name(trial)):
            storage.remove(path / ERROR)  # its process died in an earlier start
        log.info("trial %d · %s", trial.config["number"], shown_parameters(trial.config["parameters"]))

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        """Check before the result is written; Tune calls this."""
        TrialLog.check()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Log the result; Tune calls this."""
        for name in self._ended:
            drop_weights(TrialLog.directory / name)
        self._ended.append(_trial_name(trial))  # its own workers may still be writing
        ended = read_trial(Path(trial.local_path))
        outcome = ended.reason or f"valid nDCG@5 {ended.score or 0:.2f}"
        log.info("trial %d · %s · %s", ended.number, ended.state, outcome)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Log that the trial's process died; Tune calls this."""
        log.info("trial %d · its process died", trial.config["number"])
