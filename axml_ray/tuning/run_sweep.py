"""The run of a sweep: trials are drawn one after the other, run concurrently by Ray Tune, and stopped early by ASHA.

The sweep's directory holds all of its state: `sweep.json` with its settings, and a record of each trial, written when
it is drawn and when it ends. A sweep that was killed and is started again replays its finished trials to the search and
to ASHA, resumes those that were running from their own checkpoints, and draws the rest. Ray Tune's own files are not
read again.
"""

import logging
import os
import queue
import shutil
import threading
from collections.abc import Callable
from typing import Any

from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from axml_ray.cluster.connection import check_fits, max_processes
from axml_ray.core.errors import JobError, SettingsError
from axml_ray.corpus.store import Corpus
from axml_ray.orchestration.members import END_SECONDS
from axml_ray.settings import Experiment, ResourceSettings
from axml_ray.settings.members import members_model
from axml_ray.tracking.kinds import with_address
from axml_ray.tracking.tracked_run import TrackedRun, parameters_of
from axml_ray.tuning.early_stopping import LevelwiseASHA
from axml_ray.tuning.records import Trial
from axml_ray.tuning.search import check_space
from axml_ray.tuning.sweep import Sweep, write_manifest
from axml_ray.tuning.trial import TrialRunner
from axml_ray.tuning.trial_searcher import TrialSearcher

log = logging.getLogger(__name__)

TRIALS, TREES, RAY = "trials", "trees", "ray-tune"
TRIAL_RESOURCES = {"memory": 1}
"""Resources of a trial's actor: one byte, as Tune requires some, and the CPUs are for the trial's workers."""


def concurrent_trials(resources: ResourceSettings, at_once: int | None = None) -> int:
    """Return how many trials run concurrently, each with the workers of one tree. Ray must be initialised.

    The trees of a trial are trained one after the other if there is no more room, so trials cannot deadlock.

    Args:
        resources: resources of a trial.
        at_once: number that the user requires; None for the number that fits.

    Raises:
        SettingsError: not even one trial fits, or fewer than `at_once`.
    """
    check_fits(resources)
    # Clustering the labels is a task of one CPU that runs before the workers start.
    required = {**resources.of_a_worker, "CPU": max(resources.cpus_per_worker, 1 / resources.workers)}
    fit = max(1, max_processes(required) // resources.workers)
    if at_once is not None and at_once > fit:
        raise SettingsError(
            f"--at-once: the workers of {at_once} trials don't fit, those of {fit} do; lower it, resources.workers or "
            "the resources of a worker"
        )
    return at_once or fit


def run_sweep(sweep: Sweep, corpus: Corpus, begun: Callable[[], None] = lambda: None) -> list[Trial]:
    """Run a sweep, or resume it. Ray must be initialised.

    Args:
        sweep: the sweep.
        corpus: the prepared corpus.
        begun: called when everything is checked, before the first trial.

    Returns:
        All trials, by number.

    Raises:
        SettingsError: the space or the resources are invalid, or the directory contains another sweep.
        JobError: the sweep was interrupted; it can be resumed.
    """
    base = _base(sweep, corpus)
    check_space(sweep.space, base, sweep.settings.seed)
    concurrent = concurrent_trials(sweep.settings.resources, sweep.at_once)
    write_manifest(sweep, corpus)
    begun()
    runner = TrialRunner(
        base=base, directory=sweep.directory / TRIALS, trees=sweep.directory / TREES, cost=sweep.has_cost
    )
    epoch = sweep.documents(corpus)
    scheduler: TrialScheduler = FIFOScheduler()
    if sweep.stops_early:
        scheduler = LevelwiseASHA(max(1, round(sweep.grace * epoch)), sweep.reduction)
    searcher = TrialSearcher(sweep, runner, scheduler)
    if searcher.left:
        log.info(
            "sweep %s: %d of %d trials to run, %d at a time, each on %s training documents",
            sweep.name, searcher.left, sweep.trials, concurrent, f"{epoch:,}",
        )  # fmt: skip
        _tune(sweep, runner, searcher, scheduler, concurrent)
    searcher.drop_weights()
    trials = searcher.trials
    running = [trial.number for trial in trials if trial.state == "running"]
    if running:
        raise JobError(
            f"the sweep was interrupted with trials {running} running; run the same command again to resume it"
        )
    return trials


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


def _tune(
    sweep: Sweep, runner: TrialRunner, searcher: TrialSearcher, scheduler: TrialScheduler, concurrent: int
) -> None:
    """Run the trials with Ray Tune."""
    # Trials write their own journals; Tune's loggers would write the same again.
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    # Ctrl-C must end the job immediately; the records of trials are all that a resumed sweep needs.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"

    storage = sweep.directory / RAY
    shutil.rmtree(storage, ignore_errors=True)  # left by a sweep that was killed
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    tune.Tuner(
        tune.with_resources(tune.with_parameters(TrialActor, runner=runner), TRIAL_RESOURCES),
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=scheduler,
            num_samples=searcher.left,
            max_concurrent_trials=concurrent,
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(storage),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # trials have checkpoints of their own
        ),
    ).fit()
    shutil.rmtree(storage, ignore_errors=True)


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
