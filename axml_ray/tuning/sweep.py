"""A sweep: trials drawn one after the other, run side by side by Ray Tune, stopped early by ASHA.

The directory of the sweep says all that is needed to go on with it: `sweep.json`, what is searched and how, and a
record for each trial, written when it is drawn and when it ends. A sweep that was killed hands its finished trials to
search and ASHA again, goes on with those that were running, each from its own checkpoints, and draws the rest. Ray
Tune's own files serve it while it runs, and are not read again.
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

from axml_ray.cluster import check_fits, room_for
from axml_ray.corpus.store import Corpus
from axml_ray.files import read_json, write_json
from axml_ray.orchestration.members import END_SECONDS
from axml_ray.settings import Experiment, ResourceSettings, SettingsError
from axml_ray.settings.members import members_model
from axml_ray.tuning.early_stopping import LevelwiseASHA
from axml_ray.tuning.records import Scoring, Trial, read_trials, trial_directory
from axml_ray.tuning.search import Direction, Method, Search, check_space
from axml_ray.tuning.space import Space
from axml_ray.tuning.trial import Trials, drop_weights

log = logging.getLogger(__name__)

Objective = Literal["accuracy", "accuracy,cost"]
MANIFEST, TRIALS, TREES, RAY = "sweep.json", "trials", "trees", "ray-tune"
LINE_SECONDS = 15.0
OF_A_TRIAL = {"memory": 1}  # of bytes: Tune wants something reserved, and any share of a CPU would be its workers'
FREE = ("trials", "settings.resources")
"""What may change when a sweep goes on: how many trials, and where they run."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What is searched, and how."""

    settings: Experiment
    """What isn't drawn."""
    space: Space
    """What is."""
    name: str
    """Directory of the sweep below `settings.runs`."""
    trials: int = 20
    """How many."""
    part: float = 0.25
    """Share of the training documents that a trial trains on; `settings.training.documents` goes before it."""
    search: Method = "tpe"
    """How settings are drawn."""
    objective: Objective = "accuracy"
    """The best nDCG@5 on validation; or that, and the least cost of prediction."""
    early_stopping: bool = True
    """ASHA. With two objectives there is none: what scores low may be what costs least."""
    grace: float = 1.0
    """Epochs of a level before ASHA's first rung."""
    reduction: float = 2.0
    """Of the trials at a rung, ASHA lets one in so many go on."""
    at_once: int | None = None
    """Trials side by side; by default as many as the cluster holds."""

    @property
    def directory(self) -> Path:
        """Where it lies."""
        return self.settings.runs / self.name

    @property
    def has_cost(self) -> bool:
        """Whether cost is an objective."""
        return self.objective == "accuracy,cost"

    def documents(self, corpus: Corpus) -> int:
        """Training documents of a trial."""
        every = corpus.documents("train")
        return min(every, self.settings.training.documents or max(1, round(every * self.part)))

    def about(self, corpus: Corpus) -> dict[str, Any]:
        """What another start must agree with, but for `FREE`."""
        free = dict.fromkeys(("name", "runs", "corpora", "evaluation", "features", "members"), True)
        left_out: Any = {**free, "ensemble": {"combiner"}}
        settings = self.settings.model_dump(mode="json", exclude=left_out)
        return {
            "space": list(self.space.names),
            "space_text": self.space.mark,
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


def places(resources: ResourceSettings, at_once: int | None = None) -> int:
    """How many trials run side by side, each with room for the workers of one tree. Ray must be initialised.

    A trial's trees wait for one another, so no trial waits for room that it holds itself.

    Args:
        resources: of a trial.
        at_once: what the user asks for.

    Raises:
        SettingsError: not even one trial fits, or not as many as asked for.
    """
    check_fits(resources)
    # Clustering the labels is a task of one CPU, before the workers start.
    asked = {**resources.of_a_worker, "CPU": max(resources.cpus_per_worker, 1 / resources.workers)}
    fit = max(1, room_for(asked) // resources.workers)
    if at_once is not None and at_once > fit:
        raise SettingsError(
            f"--at-once: the workers of {at_once} trials don't fit, those of {fit} do; lower it, or resources.workers "
            "and what a worker asks for"
        )
    return at_once or fit


def run_sweep(sweep: Sweep, corpus: Corpus) -> list[Trial]:
    """Run a sweep, or go on with it. Ray must be initialised.

    Args:
        sweep: what is searched, and how.
        corpus: prepared.

    Returns:
        All trials, by number.

    Raises:
        SettingsError: the space or the resources are wrong, or the directory holds another sweep.
        RuntimeError: the sweep was interrupted; started again, it goes on.
    """
    base = _base(sweep, corpus)
    check_space(sweep.space, base, sweep.settings.seed)
    side_by_side = places(sweep.settings.resources, sweep.at_once)
    _keep_manifest(sweep, corpus)
    common = Trials(base=base, directory=sweep.directory / TRIALS, trees=sweep.directory / TREES, cost=sweep.has_cost)
    epoch = sweep.documents(corpus)
    scheduler: TrialScheduler = FIFOScheduler()
    if sweep.stops_early:
        scheduler = LevelwiseASHA(max(1, round(sweep.grace * epoch)), sweep.reduction)
    drawn = _Drawn(sweep, common, scheduler)
    if drawn.left:
        log.info(
            "sweep %s: %d of %d trials to run, %d side by side, each on %s training documents",
            sweep.name, drawn.left, sweep.trials, side_by_side, f"{epoch:,}",
        )  # fmt: skip
        _tune(sweep, common, drawn, scheduler, side_by_side)
    drawn.drop_weights()
    trials = drawn.trials
    running = [trial.number for trial in trials if trial.state == "running"]
    if running:
        raise RuntimeError(f"the sweep was interrupted with trials {running} running; the same command goes on")
    return trials


def _base(sweep: Sweep, corpus: Corpus) -> Experiment:
    training = sweep.settings.training.model_copy(update={"documents": sweep.documents(corpus)})
    # What is searched for is a network, and its tree; what joins them comes when the best is trained.
    ensemble = sweep.settings.ensemble.model_copy(update={"trees": 1, "combiner": "mean"})
    return sweep.settings.model_copy(update={"training": training, "ensemble": ensemble, "members": members_model()()})


def _keep_manifest(sweep: Sweep, corpus: Corpus) -> None:
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
    found = []
    for key in old.keys() | now.keys():
        where = f"{prefix}{key}"
        if where in FREE or old.get(key) == now.get(key):
            continue
        both = isinstance(old.get(key), dict) and isinstance(now.get(key), dict)
        found += _differences(old[key], now[key], f"{where}.") if both else [where]
    return found


def _tune(sweep: Sweep, common: Trials, drawn: "_Drawn", scheduler: TrialScheduler, side_by_side: int) -> None:
    # Trials have journals of their own; Tune's loggers would write the same again.
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    # Ctrl-C ends the job as any other; records of trials are all that another start needs.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"

    storage = sweep.directory / RAY
    shutil.rmtree(storage, ignore_errors=True)  # of a killed sweep
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    tune.Tuner(
        tune.with_resources(tune.with_parameters(TrialActor, common=common), OF_A_TRIAL),
        tune_config=tune.TuneConfig(
            search_alg=drawn,
            scheduler=scheduler,
            num_samples=drawn.left,
            max_concurrent_trials=side_by_side,
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(storage),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # trials have checkpoints of their own
        ),
    ).fit()
    shutil.rmtree(storage, ignore_errors=True)


def _name(trial: Any) -> str:
    return f"{trial.config['number']:03d}"


class TrialActor(tune.Trainable):
    """A trial as Tune knows it: it trains in a thread, whose words Tune takes one by one, and is ended in order."""

    def setup(self, config: dict[str, Any], common: Trials) -> None:
        """Start to train."""
        self._said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._stop = threading.Event()
        words = config["number"], config["parameters"], self._said.put, self._stop.is_set
        self._thread = threading.Thread(target=common.run, args=words, daemon=True)
        self._thread.start()

    def step(self) -> dict[str, Any]:
        """The next scoring, or the end."""
        said = self._said.get()
        return said if "group" in said else {**said, "done": True}

    def cleanup(self) -> None:
        """End the workers, and wait for that."""
        self._stop.set()
        self._thread.join(timeout=2 * END_SECONDS)


class _Drawn(Searcher):
    """Hands trials to Tune, and keeps the record of what comes of them."""

    def __init__(self, sweep: Sweep, common: Trials, scheduler: TrialScheduler):
        super().__init__()
        self.sweep, self.common = sweep, common
        directions: tuple[Direction, ...] = ("maximize", "minimize") if sweep.has_cost else ("maximize",)
        self.search = Search(sweep.space, sweep.search, sweep.settings.seed, directions, sweep.settings)
        self.trials = read_trials(common.directory)
        for trial in self.trials:
            self.search.again(trial.parameters)
            if trial.state != "running":
                self._tell(trial)
                if isinstance(scheduler, LevelwiseASHA):
                    scheduler.remember(trial)
        self._waiting = [trial.number for trial in self.trials if trial.state == "running"]
        self._numbers: dict[str, int] = {}
        self._shown: dict[int, float] = {}

    @property
    def left(self) -> int:
        """Trials to run."""
        return max(0, self.sweep.trials - len(self.trials)) + len(self._waiting)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """The next trial for Tune."""
        if self._waiting:
            number = self._waiting.pop(0)
            # Its scorings are told again, from its journals.
            self.trials[number] = Trial(number=number, parameters=self.trials[number].parameters)
            log.info("trial %d · goes on", number)
        else:
            parameters = self.search.draw()
            if parameters is None:
                log.info("the space holds nothing new; %d trials were drawn", len(self.trials))
                return str(Searcher.FINISHED)
            number = len(self.trials)
            self.trials.append(Trial(number=number, parameters=parameters))
            self.trials[number].write(self.common.directory)
            log.info("trial %d · %s", number, shown_parameters(parameters))
        self._numbers[trial_id] = number
        self._shown[number] = time.monotonic()
        return {"number": number, "parameters": self.trials[number].parameters}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """A trial said something."""
        number = self._numbers[trial_id]
        scoring = _scoring(result)
        self.trials[number] = self.trials[number].with_scoring(scoring)
        if time.monotonic() - self._shown[number] > LINE_SECONDS:
            self._shown[number] = time.monotonic()
            log.info("trial %d · %s", number, shown_scoring(scoring))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """A trial is over: at its end, stopped, or failed."""
        number = self._numbers[trial_id]
        trial, end = self.trials[number], result or {}
        if "group" in end and not error:
            trial = trial.with_scoring(_scoring(end))  # the one at which it was stopped is told here only
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
        trial.write(self.common.directory)
        self.drop_weights(but=number)  # its workers may still be ending
        self._tell(trial)
        said = trial.reason if trial.score is None or trial.reason else f"valid nDCG@5 {trial.score:.2f}"
        log.info("trial %d · %s · %s", number, trial.state, said)

    def drop_weights(self, but: int | None = None) -> None:
        """Drop those of trials that are over, but one."""
        for trial in self.trials:
            if trial.state != "running" and trial.number != but:
                drop_weights(trial_directory(self.common.directory, trial.number))

    def _tell(self, trial: Trial) -> None:
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
        """Nothing: the records are all there is to keep."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing, as nothing was saved."""


def _scoring(result: dict[str, Any]) -> Scoring:
    return Scoring(**{name: result[name] for name in Scoring.__dataclass_fields__})


def shown_parameters(parameters: dict[str, Any]) -> str:
    """What was drawn, on one line."""
    values = {path: f"{value:.3g}" if isinstance(value, float) else value for path, value in parameters.items()}
    return " ".join(f"{path}={value}" for path, value in values.items())


def shown_scoring(scoring: Scoring) -> str:
    """Where a trial is, on one line."""
    return (
        f"level {scoring.level}/{scoring.levels} · {scoring.documents:,} documents · valid nDCG@5 {scoring.score:.2f}"
    )
