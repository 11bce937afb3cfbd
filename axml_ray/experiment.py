"""The main job: prepare a corpus, train an ensemble over it, predict the test split, judge it.

Started again, preparation and training find what they had finished and go on from there; predictions, minutes beside
hours, are made anew. The run's directory keeps the settings
that made it; other settings under the same name are refused rather than mixed in.
"""

import logging
import shutil
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import ray
import yaml

from axml_ray.cluster import connect, root_cause
from axml_ray.configuration import read_yaml
from axml_ray.corpus.prepare import prepare
from axml_ray.corpus.store import Corpus
from axml_ray.evaluation.predictions import ENSEMBLE, PREDICTIONS, Predictions, Ranking
from axml_ray.evaluation.rankings import hits
from axml_ray.files import read_json, whole_file, write_json
from axml_ray.inference.batch import predict_split
from axml_ray.inference.beam import JOIN, TreePredictor, join_fingerprint, without_join
from axml_ray.inference.combining import aligned
from axml_ray.inference.ensemble import FREQUENCY, correction_fingerprint
from axml_ray.inference.frequency import FrequencyCorrection
from axml_ray.inference.joining import Join
from axml_ray.judging import FREE, METRICS, SETTINGS, evaluate, seconds_before
from axml_ray.network.precision import use_threads
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment, SettingsError
from axml_ray.training.ensemble import train_ensemble
from axml_ray.tree.kinds import check_hierarchy

log = logging.getLogger(__name__)

ADDED = ("ensemble.trees", "ensemble.frequency_correction", "linear")
"""Settings that a run may be started again with: more trees, linear classifiers, corrected scores."""
JOINED = 10_000
"""Validation documents that a join is learned from, at most: of some 200 labels each."""
CORPUS = "corpus.json"
"""In a run's directory: the fingerprint of the corpus that it was begun with."""
UNCORRECTED = "uncorrected"
"""In a run's directory, while its correction is fitted: predictions of the validation split."""


def prepare_corpus(settings: Experiment) -> Corpus:
    """Prepare the experiment's corpus, unless it is up to date."""
    return prepare(settings.corpus, settings.corpus_directory)


def run(settings: Experiment) -> dict[str, Any]:
    """The whole main job, up to the report; returns what it writes to `metrics.json`.

    Raises:
        SettingsError: a setting or an input is wrong, or the run's directory holds a run with other settings.
        RuntimeError: training failed.
    """
    _check_settings(settings)
    check_hierarchy(settings.tree)
    seconds: dict[str, float] = {}
    corpus = prepare(settings.corpus, settings.corpus_directory, check=partial(_check_corpus, settings))
    _keep_settings(settings)
    write_json(settings.run_directory / CORPUS, {"fingerprint": corpus.fingerprint})
    connect()
    seconds["prepare"] = float(corpus.manifest["seconds"])
    before = seconds_before(settings.run_directory / METRICS, corpus)
    # A run that is started again finds most of its training done.
    seconds |= {phase: now + before.get(phase, 0) for phase, now in train_ensemble(settings, corpus).items()}
    began = time.monotonic()
    if settings.linear.learned_join:
        fit_join(settings, corpus)
        seconds["join"] = time.monotonic() - began
        began = time.monotonic()
    if settings.ensemble.frequency_correction:
        fit_correction(settings, corpus)
        seconds["correct"] = time.monotonic() - began
        began = time.monotonic()
    log.info("predict: %s test documents", f"{corpus.documents('test'):,}")
    predict_split(settings, corpus, "test")
    seconds["predict"] = time.monotonic() - began
    return evaluate(settings, corpus, seconds=seconds)


def fit_join(settings: Experiment, corpus: Corpus) -> None:
    """Fit how trees join what their networks and classifiers say, from validation documents. Ray must be initialised.

    Each tree speaks for a part of them, so that together they take as long as one.

    Raises:
        SettingsError: there are none.
        RuntimeError: a tree failed.
    """
    if not corpus.documents("valid"):
        raise SettingsError(f"{corpus.directory}: no validation documents; set linear.learned_join to false")
    log.info("predict: validation documents, to learn from how networks and classifiers are joined")
    options: dict[str, Any] = {"num_cpus": settings.resources.cpus_per_worker, "max_retries": 2, "max_calls": 1}
    task = ray.remote(**options)(_found_by_members)
    parts = []
    for number, found in enumerate([task.remote(settings, number) for number in range(settings.ensemble.trees)]):
        try:
            parts.append(ray.get(found))
        except ray.exceptions.RayError as error:
            raise RuntimeError(f"validation documents of tree {number + 1} failed: {root_cause(error)}") from error
    labels, networks, classifiers, true = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    join = Join(settings.linear.weight).fitted(labels, networks, classifiers, true, corpus.labels.counts)
    join.save(settings.run_directory / JOIN, join_fingerprint(settings, corpus))


def _found_by_members(settings: Experiment, number: int) -> tuple[np.ndarray, ...]:
    """What a tree finds for its part of the validation documents: labels, networks' and classifiers' scores, truth."""
    use_threads(settings.resources.threads_of_worker)
    corpus = Corpus.open(settings.corpus_directory)
    tree = TreePredictor.open(without_join(settings), corpus, number)
    valid = corpus.split("valid")
    step = settings.ensemble.trees * -(-len(valid) // JOINED)
    part = valid.take(np.arange(number, len(valid), step))
    labels, scores = aligned(*zip(*tree.by_members(part.tokens, settings.ensemble.top_labels), strict=True))
    there, true = labels >= 0, hits(labels, part.labels.values, part.labels.offsets)
    networks, classifiers = scores[there].astype(np.float32).T
    return labels[there], networks, classifiers, true[there]


def fit_correction(settings: Experiment, corpus: Corpus) -> None:
    """Fit what corrects the ensemble's scores, from the validation documents. Ray must be initialised.

    Raises:
        SettingsError: there are none.
    """
    if not corpus.documents("valid"):
        raise SettingsError(f"{corpus.directory}: no validation documents; set ensemble.frequency_correction to false")
    log.info("predict: %s validation documents, to correct scores by", f"{corpus.documents('valid'):,}")
    plain = settings.ensemble.model_copy(update={"frequency_correction": False})
    place = settings.run_directory / UNCORRECTED
    directory = predict_split(settings.model_copy(update={"ensemble": plain}), corpus, "valid", place)
    predictions = Predictions.open(directory)
    assert predictions is not None
    rankings = list(predictions.read(ENSEMBLE))
    ranking = Ranking(
        np.concatenate([one.top for one in rankings]),
        np.concatenate([one.scores for one in rankings]),
        Ragged.concatenate([one.truth for one in rankings]),
    )
    correction = FrequencyCorrection.fit(ranking, corpus.labels.counts, settings.ensemble.trees)
    correction.save(settings.run_directory / FREQUENCY, correction_fingerprint(settings, corpus))
    shutil.rmtree(directory)


def _check_settings(settings: Experiment) -> None:
    path = settings.run_directory / SETTINGS
    if path.exists():
        changed = sorted(_differences(read_yaml(path), settings.model_dump(mode="json")))
        if changed:
            raise SettingsError(
                f"{settings.run_directory}: this run was made with other settings ({', '.join(changed)}); "
                "choose another --name, or remove the directory"
            )


def _check_corpus(settings: Experiment, corpus: Corpus) -> None:
    """Its levels would all be trained anew, over those that are finished."""
    try:
        before = read_json(settings.run_directory / CORPUS)["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if before != corpus.fingerprint:
        raise SettingsError(
            f"{settings.run_directory}: this run was begun with another corpus than comes of its files now (other "
            "texts or packages, or word vectors learned anew, which round differently); choose another --name and "
            "--corpus.name, or remove the directory"
        )


def _keep_settings(settings: Experiment) -> None:
    # After the corpus is prepared: a run that never began for a wrong path mustn't refuse the right one.
    settings.run_directory.mkdir(parents=True, exist_ok=True)
    now, path = settings.model_dump(mode="json"), settings.run_directory / SETTINGS
    before = read_yaml(path) if path.exists() else now
    if any(before.get(part) != now.get(part) for part in ("ensemble", "linear")):
        shutil.rmtree(settings.run_directory / PREDICTIONS, ignore_errors=True)  # by other scores
    with whole_file(path) as temporary:
        temporary.write_text(yaml.safe_dump(now, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _differences(old: dict[str, Any], now: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key in old.keys() | now.keys():
        where = f"{prefix}{key}"
        if where in FREE or where in ADDED:
            continue
        if isinstance(now.get(key), dict) and isinstance(old.get(key), dict):
            yield from _differences(old[key], now[key], f"{where}.")
        elif old.get(key) != now.get(key):
            yield where
