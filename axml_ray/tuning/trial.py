"""One trial of a sweep: the main job's training on a part of the documents, in a directory of its own.

Trials share the prepared corpus, and label trees that were built with the same settings. A trial's own process reserves
no CPU, as its workers reserve theirs.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from axml_ray.cluster.failures import record_failure
from axml_ray.core import storage
from axml_ray.core.files import check_fences, whole_records
from axml_ray.core.lease import DirectoryInUseError, Lease, LeaseLostError, own
from axml_ray.core.ragged import Ragged
from axml_ray.core.seeds import derived_seed
from axml_ray.corpus.store import Corpus
from axml_ray.ensemble.ensemble import Ensemble
from axml_ray.evaluation.metrics.metrics import ndcg_at
from axml_ray.orchestration.label_trees import build_trees
from axml_ray.orchestration.members import END_SECONDS, TrainingCancelledError, fit_members, never
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment, fingerprint
from axml_ray.tracking.tensorboard_tracker import EVENTS
from axml_ray.tracking.tracked_run import track
from axml_ray.training.level import EVALUATED
from axml_ray.training.progress import JOURNAL
from axml_ray.tree.label_tree import LabelTree
from axml_ray.tuning.records import Scoring
from axml_ray.tuning.space import apply_parameters

log = logging.getLogger(__name__)

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class TrialRunner:
    """Runs the trials of a sweep."""

    base: Experiment
    """Settings that are not drawn; `training.documents` is the number of documents that trials train on."""
    directory: Path
    """Directory below which each trial has its own."""
    trees: Path
    """Directory of the label trees that trials share."""
    lease: Lease | None = None
    """Lease of the sweep: when another job has taken over the sweep, the trial ends."""

    def trial_directory(self, number: int) -> Path:
        """Return the directory of trial `number` (from 0), Ray Tune's and of its run."""
        return self.directory / f"{number:03d}"

    def settings(self, number: int, parameters: Mapping[str, Any]) -> Experiment:
        """Return the settings of a trial.

        Raises:
            SettingsError: the drawn parameters are not valid settings.
        """
        drawn = apply_parameters(self.base, parameters)
        return drawn.model_copy(update={"name": self.trial_directory(number).name, "runs": self.directory})

    def run(
        self, number: int, parameters: Mapping[str, Any], report: Report, stopped: Callable[[], bool] = never
    ) -> None:
        """Train one trial, or resume it. Ray must be initialised.

        Args:
            number: number of the trial.
            parameters: the drawn parameters.
            report: called with every evaluation (the fields of `Scoring`) and, at the end, with `finished` and
                `seconds`, or with the reason as `failed`. Each has the objective `nDCG@5` of labels in percent, 0 above
                the leaf level and after a failure.
            stopped: returns whether the trial was stopped; its workers are then ended, and nothing more is reported.
        """
        began, started = time.monotonic(), time.time()
        if self.lease is not None:
            self.lease.enforce()
        try:
            settings = self.settings(number, parameters)
            run = Run.open(settings)
            reporter = ScoringReporter(settings, run.corpus, report)
            for tree in range(settings.ensemble.trees):  # those that it scored in an earlier start
                journal = run.layout.tree(tree) / JOURNAL
                storage.fetch(journal)
                for record in whole_records(journal.read_bytes() if journal.is_file() else b""):
                    reporter.record(record)
            with (
                own(settings.run_directory, wait=END_SECONDS),  # after a takeover, its last owner may still be ending
                track(settings, sweep=self.directory.parent, stops=(TrainingCancelledError,)) as tracked,
            ):
                tracked.open()
                self._share_trees(run)

                def follow(record: dict[str, Any]) -> None:
                    reporter.record(record)
                    tracked.record(record)

                fit_members(run, follow, stopped)
                score = reporter.best_of_labels
                if len(run.members) > 1:
                    score = ensemble_score(run.open_ensemble(), run.corpus)
                tracked.scores({"valid_nDCG@5": score})
        except TrainingCancelledError:
            return
        except LeaseLostError as error:  # another job trains this trial, and its files are not ours to remove
            report({"failed": f"{error}", "nDCG@5": 0.0, "seconds": time.monotonic() - began})
            return
        except Exception as error:  # a failed trial must not end the sweep
            record_failure(self.trial_directory(number), error, started)
            end: dict[str, Any] = {"failed": f"{error}" or type(error).__name__, "nDCG@5": 0.0}
        else:
            end = {"finished": True, "nDCG@5": score}
        report({**end, "seconds": time.monotonic() - began})

    def _share_trees(self, run: Run) -> None:
        """Copy the trees that other trials built, build the missing ones, and share those."""
        numbers = range(run.settings.ensemble.trees)
        keys = [shape_fingerprint(run.settings, run.corpus, number) for number in numbers]
        shared = [self.trees / key / run.layout.tree_file(0).name for key in keys]
        for number, path in enumerate(shared):
            storage.fetch(path)
            if path.is_file() and not run.has_tree(number):
                run.keep_tree(number, LabelTree.load(path))
        build_trees(run)
        for number, path in enumerate(shared):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file():
                run.open_tree(number).save(path)


class ScoringReporter:
    """Turns journal records into evaluations, each only once: a level resumed from a checkpoint repeats some.

    Attributes:
        best_of_labels: best nDCG@5 of the leaf level so far, in percent.
    """

    def __init__(self, settings: Experiment, corpus: Corpus, report: Report):
        self._report = report
        self._shapes = [shape_fingerprint(settings, corpus, number) for number in range(settings.ensemble.trees)]
        self._best: dict[tuple[int, int], float] = defaultdict(float)
        self._steps: dict[tuple[int, int], int] = defaultdict(lambda: -1)
        self.best_of_labels = 0.0

    def record(self, record: dict[str, Any]) -> None:
        """Report a record of a journal if it is an evaluation and new."""
        if "scoring" not in record:
            return
        tree, level, levels, evaluation = record["tree"], record["level"], record["levels"], record["scoring"]
        place = tree, level
        if evaluation["step"] <= self._steps[place]:
            return
        self._steps[place] = evaluation["step"]
        self._best[place] = max(self._best[place], evaluation["nDCG@5"])
        nodes = "labels" if level == levels else f"level {level} of {self._shapes[tree]}"
        scoring = Scoring(
            tree=tree, level=level, levels=levels, group=f"tree {tree}, {nodes}", step=evaluation["step"],
            documents=evaluation["documents"], score=self._best[place],
        )  # fmt: skip
        if scoring.is_of_labels:
            self.best_of_labels = max(self.best_of_labels, scoring.score)
        self._report({**vars(scoring), "nDCG@5": self.best_of_labels})


def shape_fingerprint(settings: Experiment, corpus: Corpus, number: int) -> str:
    """Return a fingerprint of the nodes of tree `number`, which do not depend on the beam."""
    shape = settings.tree.model_dump(mode="json", exclude={"beam"})
    return fingerprint(corpus.fingerprint, shape, derived_seed(settings.seed, number))


def ensemble_score(ensemble: Ensemble, corpus: Corpus) -> float:
    """Return the mean nDCG@5 of an ensemble, in percent, on the validation documents that a level is scored on.

    Only labels with training documents count, as in the score of a level.
    """
    valid = corpus.split("valid").part(EVALUATED)
    labels = ensemble.rank(valid.tokens).labels
    rows = [row[row < corpus.trained] for row in (valid.labels[i] for i in range(len(valid)))]
    truth = Ragged.from_rows(rows)
    return 100 * float(np.mean(ndcg_at(labels, truth.values, truth.offsets, 5)))


def drop_weights(directory: Path) -> None:
    """Remove the trees and members of a trial, which are large and not used again; keep records and journals.

    A trial that another job trains, which refused it to this sweep, keeps its files.
    """
    check_fences(directory)
    with suppress(DirectoryInUseError), own(directory):
        trees = [path for path in storage.children(directory) if path.name.startswith("tree-")]
        for path in [directory / "members", *chain.from_iterable(map(storage.children, trees))]:
            if path.name not in (EVENTS, JOURNAL):
                storage.remove(path)
