"""One trial: the main job's own training on a part of the documents, in a directory of its own.

The prepared corpus is opened where it lies, and label trees that an earlier trial built with the same settings are
taken from a directory that the trials share. A trial holds no CPU: those of its workers are theirs.
"""

import json
import logging
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from axml_ray.corpus.store import Corpus, Split
from axml_ray.ensemble import Ensemble
from axml_ray.evaluation.metrics import ndcg_at
from axml_ray.orchestration.label_trees import build_trees
from axml_ray.orchestration.members import Stopped, fit_members, never
from axml_ray.ragged import Ragged
from axml_ray.run import Run
from axml_ray.settings import Experiment, fingerprint
from axml_ray.storage.layout import RunLayout
from axml_ray.training.progress import EVENTS, JOURNAL
from axml_ray.tree.label_tree import LabelTree
from axml_ray.tuning.cost import milliseconds_a_text
from axml_ray.tuning.records import TRIAL, Scoring, trial_directory
from axml_ray.tuning.space import settings_of

log = logging.getLogger(__name__)

Say = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Trials:
    """What the trials of a sweep have in common."""

    base: Experiment
    """What isn't drawn; its `training.documents` are the part that trials train on."""
    directory: Path
    """Each trial has a directory below it."""
    trees: Path
    """Label trees that trials share."""
    cost: bool = False
    """Whether to measure what prediction costs."""

    def settings(self, number: int, parameters: Mapping[str, Any]) -> Experiment:
        """The experiment that a trial is.

        Raises:
            SettingsError: what was drawn are no settings.
        """
        drawn = settings_of(self.base, parameters)
        return drawn.model_copy(update={"name": trial_directory(self.directory, number).name, "runs": self.directory})

    def run(self, number: int, parameters: Mapping[str, Any], say: Say, stopped: Callable[[], bool] = never) -> None:
        """Train one trial, or go on with it. Ray must be initialised.

        Args:
            number: of the trial.
            parameters: what was drawn.
            say: called with every scoring (as fields of `Scoring`) and, at the end, with `finished`, `score`,
                `milliseconds` and `seconds`, or with `failed` and why.
            stopped: whether the trial is no longer wanted; its workers are then ended, and nothing more is said.
        """
        began = time.monotonic()
        try:
            settings = self.settings(number, parameters)
            run = Run(settings, Corpus.open(settings.corpus_directory))
            told = _Told(settings, run.corpus, say)
            for record in earlier_scorings(settings):
                told.record(record)
            self._share_trees(run)
            fit_members(run, told.record, stopped)
            score, milliseconds = self._judge(run, told)
        except Stopped:
            return
        except Exception as error:  # a trial that fails is no reason to stop the others
            say({"failed": f"{error}" or type(error).__name__, "seconds": time.monotonic() - began})
            return
        drop_weights(settings.run_directory)
        seconds = time.monotonic() - began
        say({"finished": True, "score": score, "milliseconds": milliseconds, "seconds": seconds})

    def _share_trees(self, run: Run) -> None:
        """Take the trees that others built, build those that are missing, leave them for others."""
        numbers = range(run.settings.ensemble.trees)
        keys = [shape_fingerprint(run.settings, run.corpus, number) for number in numbers]
        shared = [self.trees / key / run.layout.tree_file(0).name for key in keys]
        for number, path in enumerate(shared):
            if path.is_file() and not run.has_tree(number):
                run.keep_tree(number, LabelTree.load(path))
        build_trees(run)
        for number, path in enumerate(shared):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file():
                run.open_tree(number).save(path)

    def _judge(self, run: Run, told: "_Told") -> tuple[float, float | None]:
        alone = len(run.members) == 1
        if alone and not self.cost:
            return told.best_of_labels, None
        ensemble, valid = run.open_ensemble(), run.corpus.split("valid")
        score = told.best_of_labels if alone else ensemble_score(ensemble, valid, run.corpus.trained)
        return score, milliseconds_a_text(ensemble, valid.tokens) if self.cost else None


class _Told:
    """Turns journal records into scorings, each told once: a level that goes on from a checkpoint repeats some."""

    def __init__(self, settings: Experiment, corpus: Corpus, say: Say):
        self._say = say
        self._shapes = [shape_fingerprint(settings, corpus, number) for number in range(settings.ensemble.trees)]
        self._best: dict[tuple[int, int], float] = defaultdict(float)
        self._steps: dict[tuple[int, int], int] = defaultdict(int)
        self.best_of_labels = 0.0

    def record(self, record: dict[str, Any]) -> None:
        """Tell a record of a journal, if it is a scoring and new."""
        if "scoring" not in record:
            return
        tree, level, levels, found = record["tree"], record["level"], record["levels"], record["scoring"]
        place = tree, level
        if found["step"] <= self._steps[place]:
            return
        self._steps[place] = found["step"]
        self._best[place] = max(self._best[place], found["nDCG@5"])
        nodes = "labels" if level == levels else f"level {level} of {self._shapes[tree]}"
        scoring = Scoring(
            tree=tree, level=level, levels=levels, group=f"tree {tree}, {nodes}", step=found["step"],
            documents=found["documents"], score=self._best[place],
        )  # fmt: skip
        if scoring.is_of_labels:
            self.best_of_labels = max(self.best_of_labels, scoring.score)
        self._say(vars(scoring))


def shape_fingerprint(settings: Experiment, corpus: Corpus, number: int) -> str:
    """Changes with the nodes of tree `number`: the beam is a matter of searching it."""
    shape = {key: value for key, value in settings.tree.identity.items() if key != "beam"}
    return fingerprint(corpus.fingerprint, shape, settings.seed + number)


def earlier_scorings(settings: Experiment) -> Iterator[dict[str, Any]]:
    """The scorings in the journals of a trial that was interrupted."""
    for number in range(settings.ensemble.trees):
        journal = RunLayout(settings.run_directory).tree(number) / JOURNAL
        lines = journal.read_text(encoding="utf-8").splitlines() if journal.is_file() else []
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:  # the line that the kill cut short
                continue
            if "scoring" in record:
                yield record


def ensemble_score(ensemble: Ensemble, valid: Split, trained: int) -> float:
    """Mean nDCG@5 of an ensemble, in percent.

    Args:
        ensemble: trained.
        valid: validation documents.
        trained: labels from this id on were never seen in training and don't count, as in the score of a level.
    """
    labels = ensemble.rank(valid.tokens).labels
    rows = [row[row < trained] for row in (valid.labels[i] for i in range(len(valid)))]
    truth = Ragged.from_rows(rows)
    return 100 * float(np.mean(ndcg_at(labels, truth.values, truth.offsets, 5)))


def drop_weights(directory: Path) -> None:
    """Keep of a trial its record, its journals and its events; the rest is large, and of a part of the corpus."""
    trees = list(directory.glob("tree-*"))
    kept = {directory / TRIAL, *trees, *(tree / name for tree in trees for name in (JOURNAL, EVENTS))}
    for path in [*directory.glob("*"), *directory.glob("tree-*/*")]:
        if path in kept:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
