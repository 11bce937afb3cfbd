"""The main job: prepare a corpus, build label trees, fit members and combiner, predict the test split, evaluate.

Each step is a function that can be called from a notebook. When the job is started again, preparation, fits and
predictions continue from what is finished. The settings are stored in the run's directory, and a run of the same name
with other settings is refused.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from axml_ray.cluster.connection import connect, local_cpus
from axml_ray.cluster.failures import recorded_failures
from axml_ray.cluster.shared_state import check_nodes_see
from axml_ray.cluster.tasks import map_in_tasks, maps_on_node
from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import remove_directory, whole_file, write_json
from axml_ray.core.lease import own
from axml_ray.core.ragged import Ragged
from axml_ray.core.run_layout import TEST, RunLayout
from axml_ray.core.run_manifest import read_run_manifest, write_run_manifest
from axml_ray.core.topk import TopK
from axml_ray.corpus.counts import counts_of
from axml_ray.corpus.preparation.prepare import prepare
from axml_ray.corpus.store import Corpus
from axml_ray.ensemble.combiner import Mean, Validation
from axml_ray.evaluation.metrics.predictions import Predictions
from axml_ray.inference.predict.first_scores import FirstScores, first_scores
from axml_ray.inference.predict.predict_split import predict_split
from axml_ray.orchestration.label_trees import build_trees
from axml_ray.orchestration.members import Follow, fit_members, show
from axml_ray.planning.phases import task_memory
from axml_ray.progress.heartbeat import Heartbeat, phase
from axml_ray.runs.continuation import check_corpora, check_trained, describe_continuation
from axml_ray.runs.fitting import fit_combiner
from axml_ray.runs.run import Run
from axml_ray.runs.run_record import RunRecord
from axml_ray.runs.selection import Job, is_needed, keep_selection, open_selection, select, selection_key
from axml_ray.settings import Experiment, adapt, stored, with_choices
from axml_ray.settings.configuration import read_settings
from axml_ray.settings.presets import SMALL_DOCUMENTS
from axml_ray.tracking.kinds import check_installed
from axml_ray.tracking.tracked_run import scores_of, track
from axml_ray.workflow.evaluate import evaluate, pairs_to_leave_out, read_phase_seconds

log = logging.getLogger(__name__)

ShowFirst = Callable[[FirstScores, float], None]


def prepare_corpus(settings: Experiment) -> Corpus:
    """Prepare the experiment's corpus, unless it is up to date.

    Raises:
        SettingsError: an input is wrong, or a run was trained on the corpus that would be replaced.
    """
    check_nodes_see(settings.corpora)
    return prepare(settings.corpus, settings.corpus_directory, check_inputs=partial(check_replaced, settings))


def check_replaced(settings: Experiment, key: str, own_run: Path | None = None) -> None:
    """Raise SettingsError if a run was trained on a corpus that would be replaced: it could not be used any more.

    Args:
        settings: the settings.
        key: key of the settings and inputs of the corpus that would be prepared.
        own_run: directory of the run that may prepare its corpus again, from inputs that come out the same.
    """
    try:
        old = Corpus.open(settings.corpus_directory)
    except storage.IncompleteError:
        return
    except storage.StoreError:
        raise
    except SettingsError:  # there is none
        return
    if old.manifest["inputs"] == key:
        return
    for directory in sorted(storage.children(settings.runs)):
        try:
            fingerprint, trained = read_run_manifest(directory)["corpus"], read_settings(directory)
        except storage.StoreError:  # it may be one
            raise
        except SettingsError:  # no run, or one of another version
            continue
        is_of_it = fingerprint == old.fingerprint and trained.corpus_directory == settings.corpus_directory
        if is_of_it and directory != own_run:
            raise SettingsError(
                f"{settings.corpus_directory}: {directory} was trained on this corpus, and other texts, packages or "
                "settings of the corpus would replace it; choose another --corpus.name, or remove that run"
            )


def run(settings: Experiment, show_first: ShowFirst | None = None) -> dict[str, Any]:
    """Run the whole main job, up to the report; return the content of `metrics.json`.

    Args:
        settings: settings of the experiment.
        show_first: called before networks are trained, with the test scores of the members without networks and the
            seconds since the job began; not called if there are no such members, or if no network is trained.

    Raises:
        SettingsError: a setting or an input is wrong, the run's directory holds a run with other settings, or another
            job is working on it.
        RuntimeError: a member failed.
    """
    if not settings.corpus.has_test:
        raise SettingsError("corpus.test_share is 0 and corpus.test names no file; give one of them, to evaluate on")
    check_nodes_see(settings.runs, settings.corpora)
    with recorded_failures(settings.run_directory), own(settings.run_directory):
        return _run(settings, show_first)


def _run(settings: Experiment, show_first: ShowFirst | None) -> dict[str, Any]:
    began = time.monotonic()
    current = begin(settings)
    if warning := small_corpus_warning(current):
        log.warning("WARNING: %s", warning)

    def rank_early() -> None:
        if show_first is None:
            return
        path = settings.evaluation.filter_pairs
        left_out = None if path is None else pairs_to_leave_out(path, current.corpus)
        with phase("first scores"):
            first = first_scores(current, TEST, left_out=left_out)
        if first is not None:
            show_first(first, time.monotonic() - began)

    with track(current.settings) as tracked:
        tracked.open()
        tracked.artifact("settings", current.layout.settings)
        times = train(current, rank_early, tracked.record)
        log.info("predict: %s test documents", f"{current.corpus.documents(TEST):,}")
        with times.measured("predict"):
            predict_split(current, TEST)
        metrics = evaluate(current, seconds=times.seconds)
        tracked.scores(scores_of(metrics))
        tracked.artifact("report", current.layout.charts())
    return metrics


def begin(settings: Experiment) -> Run:
    """Prepare the corpus, and store the settings in the run's directory.

    Raises:
        SettingsError: as in `run`.
    """
    check_installed(settings.tracking)
    before = RunRecord.read(settings.run_directory)
    # What `auto` chooses depends on the corpus, which is not prepared anew for a change that is refused.
    before.check_settings(settings, ("corpus", "seed") if settings.preset == "auto" else None)
    check_trained(settings)

    def check_inputs(key: str) -> None:
        before.check_inputs(settings, key)
        check_replaced(settings, key, settings.run_directory)

    corpus = prepare(settings.corpus, settings.corpus_directory, check_inputs=check_inputs, check=before.check_corpus)
    if settings.preset == "auto":
        settings = adapted(settings, corpus)
        before.check_settings(settings)  # before minutes are spent on choices, which change no other settings
        settings = selected(settings, corpus)
    current = Run(settings, corpus)
    if settings.evaluation.filter_pairs is not None:  # a wrong file is found now, not after the training
        pairs_to_leave_out(settings.evaluation.filter_pairs, corpus)
    continues: list[str] = []
    if current.previous is not None:
        check_corpora(current, current.previous)
        continues = current.previous.tree_contents(settings.ensemble.trees)
        before.check_continued(settings, continues)
        log.info("%s", describe_continuation(current, current.previous))
    # Only now: a run that failed because of a wrong path must accept the right one.
    write_run_manifest(
        settings.run_directory,
        corpus=corpus.fingerprint,
        inputs=corpus.manifest["inputs"],
        continues=continues,
    )
    with whole_file(current.layout.settings) as temporary:
        temporary.write_text(yaml.safe_dump(stored(settings), sort_keys=False, allow_unicode=True), encoding="utf-8")
    return current


class PhaseTimes:
    """Seconds of each phase of a run over all its starts, also those that failed; a file has them.

    Attributes:
        seconds: seconds by the name of the phase.
    """

    def __init__(self, run: Run):
        self._file, self._fingerprint = run.layout.seconds, run.corpus.fingerprint
        prepared = {"prepare": float(run.corpus.manifest["seconds"])}
        self.seconds = read_phase_seconds(self._file, run.corpus) | prepared

    def add(self, name: str, seconds: float) -> None:
        """Add the seconds of a phase that has ended in this start."""
        self.seconds[name] = self.seconds.pop(name, 0.0) + seconds  # last, so that they are in the order of this start
        write_json(self._file, {"fingerprint": self._fingerprint, "seconds": self.seconds})

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Add the seconds that the block takes."""
        began = time.monotonic()
        try:
            with phase(name):
                yield
        finally:
            self.add(name, time.monotonic() - began)


def train(
    current: Run, before_networks: Callable[[], None] = lambda: None, record: Follow = lambda entry: None
) -> PhaseTimes:
    """Build the label trees, and fit the members and the combiner, as far as they are not finished.

    Args:
        current: the run, from `begin`.
        before_networks: called when all members but networks are fitted, if networks must be trained.
        record: called with each record that workers write to the trees' journals, which are also logged as lines.

    Returns:
        Seconds of each phase, those of earlier starts of the run included.

    Raises:
        SettingsError: the cluster is too small.
        RuntimeError: a member failed.
    """
    connect()
    times = PhaseTimes(current)
    with times.measured("cluster"):
        build_trees(current)

    def follow(entry: dict[str, Any]) -> None:
        show(entry)
        record(entry)

    fit_members(current, follow, before_networks=before_networks, spent=times.add)
    if not current.has_combiner():
        with times.measured("combiner"):
            log.info("predict: %s validation documents, to fit the combiner", f"{current.corpus.documents('valid'):,}")
            predictions = predict_split(current, "valid", current.layout.directory / "uncombined", Mean())
            validation = validation_of(current, predictions)
            remove_directory(predictions.directory)
            fit_combiner(current, validation)
    return times


def adapted(settings: Experiment, corpus: Corpus) -> Experiment:
    """Return the settings with the choices of the preset `auto` for a corpus; other presets are unchanged."""
    if "preset" not in settings.given:
        log.info("preset: %s, since none is named; auto adds members and fits the corpus", settings.preset)
    documents, labels, words = corpus.documents("train"), corpus.trained, corpus.mean_words
    settings, choices = adapt(settings, documents, labels, words, local_cpus())
    for choice in choices:
        log.info("auto: %s = %s (%s)", choice.key, choice.value, choice.reason)
    return settings


def selected(settings: Experiment, corpus: Corpus) -> Experiment:
    """Return the settings with what `auto` chooses by held-out training documents (`select`).

    Fits are Ray tasks. Their results are kept in the run's directory, and used when the run is started again.
    """
    counts = counts_of(corpus, settings)
    if not is_needed(settings, counts):
        return settings
    choices = open_selection(settings, corpus)
    if choices is None:
        connect()
        needed, times = task_memory(settings, counts), PhaseTimes(Run(settings, corpus))
        # A fit's files are on a disk of its node, so its parts run there.
        parts = maps_on_node(needed["choose members, parts"])

        def fits(rank: Callable[..., TopK], jobs: Iterable[Job]) -> Iterator[TopK]:
            return map_in_tasks(rank, jobs, needed["choose members"], parallel_map=parts)

        with times.measured("choose members"), Heartbeat("ranking held-out training documents"):
            choices = select(settings, corpus, fits)
        keep_selection(RunLayout(settings.run_directory), selection_key(settings, corpus), choices)
    for choice in choices:
        log.info("auto: %s = %s (%s)", choice.key, choice.value, choice.reason)
    return with_choices(settings, choices)


def small_corpus_warning(current: Run) -> str | None:
    """Return a warning if there are too few training texts for a tree of label clusters, else None."""
    texts = current.corpus.documents("train")
    texts = min(texts, current.settings.training.documents or texts)
    if texts >= SMALL_DOCUMENTS or not current.settings.tree.height:
        return None
    return (
        f"{texts:,} training texts are too few to learn a tree of label clusters; one network with linear classifiers "
        "is faster and as good: give --preset auto, or --tree.height 0, and a new --name"
    )


def validation_of(current: Run, predictions: Predictions) -> Validation:
    """Return the stored rankings of the members, as a combiner is fitted on them."""
    shards, truth = zip(*predictions.read_all(current.member_names), strict=True)
    rankings = [TopK(*map(np.concatenate, zip(*of_member, strict=True))) for of_member in zip(*shards, strict=True)]
    return Validation(current.member_weights, rankings, Ragged.concatenate(truth), current.corpus.labels.counts)
