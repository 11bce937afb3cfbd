"""A sweep: trials drawn one after the other, run side by side by Ray Tune, stopped early by ASHA.

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
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from axml_ray.cluster import check_fits, max_processes
from axml_ray.corpus.store import Corpus
from axml_ray.files import read_json, write_json
from axml_ray.orchestration.members import END_SECONDS
from axml_ray.settings import Experiment, ResourceSettings, SettingsError
from axml_ray.settings.members import members_model
from axml_ray.tuning.early_stopping import LevelwiseASHA
from axml_ray.tuning.records import Scoring, Trial, read_trials, trial_directory
from axml_ray.tuning.search import Direction, Method, Search, check_space
from axml_ray.tuning.space import Space
from axml_ray.tuning.trial import TrialRunner, drop_weights

log = logging.getLogger(__name__)

Objective = Literal["accuracy", "accuracy,cost"]
MANIFEST, TRIALS, TREES, RAY = "sweep.json", "trials", "trees", "ray-tune"
LINE_SECONDS = 15.0
TRIAL_RESOURCES = {"memory": 1}
"""Resources of a trial's actor: one byte, as Tune requires some, and the CPUs are for the trial's workers."""
FREE = ("trials", "settings.resources")
"""Keys that may change when a sweep is resumed."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A hyperparameter search: settings, search space and method."""

    settings: Experiment
    """The settings that are not drawn."""
    space: Space
    """The search space."""
    name: str
    """Name of the sweep's directory below `settings.runs`."""
    trials: int = 20
    """Number of trials."""
    part: float = 0.25
    """Share of the training documents that a trial trains on; `settings.training.documents` overrides it."""
    search: Method = "tpe"
    """How settings are drawn: Optuna's TPE, or at random."""
    objective: Objective = "accuracy"
    """The best nDCG@5 on validation, alone or together with the least cost of prediction."""
    early_stopping: bool = True
    """Whether ASHA stops trials. It never does with two objectives, as a trial with a low score may be the cheapest."""
    grace: float = 1.0
    """Number of epochs of a level before ASHA's first rung."""
    reduction: float = 2.0
    """At each rung, ASHA lets 1 / `reduction` of the trials continue."""
    at_once: int | None = None
    """Number of concurrent trials; by default as many as fit on the cluster."""

    @property
    def directory(self) -> Path:
        """The directory of the sweep."""
        return self.settings.runs / self.name

    @property
    def has_cost(self) -> bool:
        """Whether cost is an objective."""
        return self.objective == "accuracy,cost"

    def documents(self, corpus: Corpus) -> int:
        """Return the number of training documents of a trial."""
        every = corpus.documents("train")
        return min(every, self.settings.training.documents or max(1, round(every * self.part)))

    def about(self, corpus: Corpus) -> dict[str, Any]:
        """Return the content of `sweep.json`: another start must agree with it except for the keys in `FREE`."""
        free = dict.fromkeys(("name", "runs", "corpora", "evaluation", "features", "members"), True)
        left_out: Any = {**free, "ensemble": {"combiner"}}
        settings = self.settings.model_dump(mode="json", exclude=left_out)
        return {
            "space": list(self.space.names),
            "space_text": self.space.fingerprint,
            "search": self.search,
            "objective": self.objective,
            "early_stopping": self.stops_early,
            "grace": self.grace,
            "reduction": self.reduction,
            "documents": self.documents(corpus),
            "corpus": corpus.fingerprint,
            "trials": self.trials,
            "settings": settings,
        }

    @property
    def stops_early(self) -> bool:
        """Whether ASHA stops trials."""
        return self.early_stopping and not self.has_cost


def concurrent_trials(resources: ResourceSettings, at_once: int | None = None) -> int:
    """Return how many trials run concurrently, each with the workers of one tree. Ray must be initialised.

    The trees of a trial are trained one after the other if there is no more room, so trials cannot deadlock.

    Args:
        resources: resources of a trial.
        at_once: number that the user requires; None for as many as fit.

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


def run_sweep(sweep: Sweep, corpus: Corpus) -> list[Trial]:
    """Run a sweep, or resume it. Ray must be initialised.

    Args:
        sweep: the sweep.
        corpus: the prepared corpus.

    Returns:
        All trials, by number.

    Raises:
        SettingsError: the space or the resources are invalid, or the directory contains another sweep.
        RuntimeError: the sweep was interrupted; it can be resumed.
    """
    base = _base(sweep, corpus)
    check_space(sweep.space, base, sweep.settings.seed)
    side_by_side = concurrent_trials(sweep.settings.resources, sweep.at_once)
    _write_manifest(sweep, corpus)
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
            sweep.name, searcher.left, sweep.trials, side_by_side, f"{epoch:,}",
        )  # fmt: skip
        _tune(sweep, runner, searcher, scheduler, side_by_side)
    searcher.drop_weights()
    trials = searcher.trials
    running = [trial.number for trial in trials if trial.state == "running"]
    if running:
        raise RuntimeError(
            f"the sweep was interrupted with trials {running} running; run the same command again to resume it"
        )
    return trials


def _base(sweep: Sweep, corpus: Corpus) -> Experiment:
    """Return the settings that the trials start from: one network tree and nothing else, on a part of the corpus.

    Further members and the combiner are fitted when the best settings are trained on all documents.
    """
    training = sweep.settings.training.model_copy(update={"documents": sweep.documents(corpus)})
    ensemble = sweep.settings.ensemble.model_copy(update={"trees": 1, "combiner": "mean"})
    return sweep.settings.model_copy(update={"training": training, "ensemble": ensemble, "members": members_model()()})


def _write_manifest(sweep: Sweep, corpus: Corpus) -> None:
    """Write the sweep's manifest, or check that the stored one agrees.

    Raises:
        SettingsError: the directory contains another sweep or a run.
    """
    path, now = sweep.directory / MANIFEST, sweep.about(corpus)
    if path.exists():
        try:
            old = read_json(path)
        except ValueError as error:
            raise SettingsError(f"{error}; choose another --sweep, or remove the directory") from None
        changed = sorted(_differences(old, now))
        if changed:
            raise SettingsError(
                f"{sweep.directory}: this sweep was begun with other settings ({', '.join(changed)}); choose another "
                "--sweep, or remove the directory"
            )
    elif (sweep.directory / "settings.yaml").exists():
        raise SettingsError(f"{sweep.directory}: holds a run, not a sweep; choose another --sweep")
    sweep.directory.mkdir(parents=True, exist_ok=True)
    write_json(path, now)


def _differences(old: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the paths of the keys in which two manifests differ, except for those in `FREE`."""
    changed = []
    for key in old.keys() | now.keys():
        where = f"{prefix}{key}"
        if where in FREE or old.get(key) == now.get(key):
            continue
        both = isinstance(old.get(key), dict) and isinstance(now.get(key), dict)
        changed += _differences(old[key], now[key], f"{where}.") if both else [where]
    return changed


def _tune(
    sweep: Sweep, runner: TrialRunner, searcher: "TrialSearcher", scheduler: TrialScheduler, side_by_side: int
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
            max_concurrent_trials=side_by_side,
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


class TrialSearcher(Searcher):
    """Supplies trials to Tune, and records their results."""

    def __init__(self, sweep: Sweep, runner: TrialRunner, scheduler: TrialScheduler):
        super().__init__()
        self.sweep, self.runner = sweep, runner
        directions: tuple[Direction, ...] = ("maximize", "minimize") if sweep.has_cost else ("maximize",)
        self.search = Search(sweep.space, sweep.search, sweep.settings.seed, directions, sweep.settings)
        self.trials = read_trials(runner.directory)
        for trial in self.trials:
            self.search.replay(trial.parameters)
            if trial.state != "running":
                self._tell(trial)
                if isinstance(scheduler, LevelwiseASHA):
                    scheduler.remember(trial)
        self._waiting = [trial.number for trial in self.trials if trial.state == "running"]
        self._numbers: dict[str, int] = {}
        self._shown: dict[int, float] = {}

    @property
    def left(self) -> int:
        """The number of trials that are still to be run."""
        return max(0, self.sweep.trials - len(self.trials)) + len(self._waiting)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Return the next trial; Tune calls this."""
        if self._waiting:
            number = self._waiting.pop(0)
            # The trial reports its earlier evaluations again, from its journals.
            self.trials[number] = Trial(number=number, parameters=self.trials[number].parameters)
            log.info("trial %d · resumed", number)
        else:
            parameters = self.search.draw()
            if parameters is None:
                log.info("the search space is exhausted; %d trials were drawn", len(self.trials))
                return str(Searcher.FINISHED)
            number = len(self.trials)
            self.trials.append(Trial(number=number, parameters=parameters))
            self.trials[number].write(self.runner.directory)
            log.info("trial %d · %s", number, shown_parameters(parameters))
        self._numbers[trial_id] = number
        self._shown[number] = time.monotonic()
        return {"number": number, "parameters": self.trials[number].parameters}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Record an evaluation of a trial; Tune calls this."""
        number = self._numbers[trial_id]
        scoring = _scoring(result)
        self.trials[number] = self.trials[number].with_scoring(scoring)
        if time.monotonic() - self._shown[number] > LINE_SECONDS:
            self._shown[number] = time.monotonic()
            log.info("trial %d · %s", number, shown_scoring(scoring))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Record the end of a trial: finished, stopped or failed. Tune calls this."""
        number = self._numbers[trial_id]
        trial, end = self.trials[number], result or {}
        if "group" in end and not error:
            trial = trial.with_scoring(
                _scoring(end)
            )  # Tune reports the evaluation at which a trial is stopped only here
        if end.get("finished"):
            trial = replace(
                trial, state="finished", score=end["score"], milliseconds=end["milliseconds"], seconds=end["seconds"]
            )
        elif "failed" in end or error or not trial.curve:
            reason = end.get("failed", "its process died: out of memory, or killed from outside")
            trial = replace(trial, state="failed", reason=reason, score=None, seconds=end.get("seconds"))
        else:
            seconds = end.get("time_total_s")
            reason = f"ASHA, {shown_scoring(trial.curve[-1])}"
            trial = replace(trial, state="stopped", reason=reason, seconds=seconds)
        self.trials[number] = trial
        trial.write(self.runner.directory)
        self.drop_weights(except_number=number)  # its workers may still be writing
        self._tell(trial)
        outcome = trial.reason if trial.score is None or trial.reason else f"valid nDCG@5 {trial.score:.2f}"
        log.info("trial %d · %s · %s", number, trial.state, outcome)

    def drop_weights(self, except_number: int | None = None) -> None:
        """Remove the weights of all trials that have ended, with the exception of one."""
        for trial in self.trials:
            if trial.state != "running" and trial.number != except_number:
                drop_weights(trial_directory(self.runner.directory, trial.number))

    def _tell(self, trial: Trial) -> None:
        """Report the result of a trial to the search."""
        if trial.state == "finished" and trial.score is not None:
            cost = [] if trial.milliseconds is None else [trial.milliseconds]
            self.search.tell(trial.number, [trial.score, *cost])
        elif trial.state == "stopped":
            labels = [scoring for scoring in trial.curve if scoring.is_of_labels]
            documents = labels[-1].documents if labels else 0
            self.search.tell_stopped(trial.number, documents, trial.score)
        else:
            self.search.tell_failed(trial.number)

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the records of trials are the only state."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing, as nothing was saved."""


def _scoring(result: dict[str, Any]) -> Scoring:
    """Return the evaluation in a result of Tune, which adds keys of its own."""
    return Scoring(**{name: result[name] for name in Scoring.__dataclass_fields__})


def shown_parameters(parameters: dict[str, Any]) -> str:
    """Return the parameters of a trial on one line."""
    values = {path: f"{value:.3g}" if isinstance(value, float) else value for path, value in parameters.items()}
    return " ".join(f"{path}={value}" for path, value in values.items())


def shown_scoring(scoring: Scoring) -> str:
    """Return an evaluation on one line."""
    return (
        f"level {scoring.level}/{scoring.levels} · {scoring.documents:,} documents · valid nDCG@5 {scoring.score:.2f}"
    )
