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
import yaml

from axml_ray.cluster import connect
from axml_ray.configuration import FREE, SETTINGS, read_yaml
from axml_ray.corpus.prepare import prepare
from axml_ray.corpus.store import Corpus
from axml_ray.evaluation.predictions import ENSEMBLE, PREDICTIONS, Predictions, Ranking
from axml_ray.files import read_json, whole_file, write_json
from axml_ray.inference.batch import ballots, predict_split
from axml_ray.inference.beam import join_fingerprint
from axml_ray.inference.combining import Votes, mean_ballot
from axml_ray.inference.ensemble import FREQUENCY, LEARNED_JOIN, learned_join_fingerprint
from axml_ray.inference.frequency import FrequencyCorrection
from axml_ray.inference.learned_join import LearnedJoin
from axml_ray.judging import METRICS, evaluate, seconds_before
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment, SettingsError
from axml_ray.training.ensemble import train_ensemble
from axml_ray.tree.kinds import check_hierarchy

log = logging.getLogger(__name__)

ADDED = ("ensemble.trees", "ensemble.frequency_correction", "linear")
"""Settings that a run may be started again with: more trees, linear classifiers, corrected scores."""
SMALL_TEXTS = 1_000
"""Training texts below which a tree of label clusters is advised against."""
SMALL_SETTINGS = {"tree.height": 0, "ensemble.trees": 1, "linear.weight": 0.8}
"""Settings for so few texts."""
JOINED = 6_000
"""Validation documents that a join is learned from, at most."""
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
    if warning := small_corpus_warning(settings, corpus):
        log.warning("WARNING: %s", warning)
    connect()
    seconds["prepare"] = float(corpus.manifest["seconds"])
    before = seconds_before(settings.run_directory / METRICS, corpus)
    # A run that is started again finds most of its training done.
    seconds |= {phase: now + before.get(phase, 0) for phase, now in train_ensemble(settings, corpus).items()}
    began = time.monotonic()
    if settings.linear.learned_join or settings.ensemble.frequency_correction:
        fit_votes(settings, corpus)
        seconds["correct"] = time.monotonic() - began
        began = time.monotonic()
    log.info("predict: %s test documents", f"{corpus.documents('test'):,}")
    predict_split(settings, corpus, "test")
    seconds["predict"] = time.monotonic() - began
    return evaluate(settings, corpus, seconds=seconds)


def small_corpus_warning(settings: Experiment, corpus: Corpus) -> str | None:
    """A warning where there are too few training texts for a tree, with settings that suit them."""
    texts = corpus.documents("train")
    if texts >= SMALL_TEXTS or not settings.tree.height:
        return None
    flags = " ".join(f"--{key} {value}" for key, value in SMALL_SETTINGS.items())
    return (
        f"{texts:,} training texts are too few to learn a tree of label clusters; a flat network beside linear "
        f"classifiers is faster and as good: add {flags} and a new --name"
    )


def fit_votes(settings: Experiment, corpus: Corpus) -> None:
    """Fit what corrects the ensemble's scores, and what networks and classifiers are worth together, as far as settings
    ask for it, from the validation documents. Ray must be initialised.

    Raises:
        SettingsError: there are none.
    """
    wanted = {
        "ensemble.frequency_correction": settings.ensemble.frequency_correction,
        "linear.learned_join": settings.linear.learned_join,
    }
    if not corpus.documents("valid"):
        mend = " and ".join(name for name, yes in wanted.items() if yes)
        raise SettingsError(f"{corpus.directory}: no validation documents; set {mend} to false")
    log.info("predict: %s validation documents, to correct scores by", f"{corpus.documents('valid'):,}")
    place = settings.run_directory / UNCORRECTED
    directory = predict_split(settings, corpus, "valid", place, Votes(settings.ensemble.top_labels))
    predictions = Predictions.open(directory)
    assert predictions is not None
    correction, counts = None, corpus.labels.counts
    if settings.ensemble.frequency_correction:
        rankings = list(predictions.read(ENSEMBLE))
        ranking = Ranking(
            np.concatenate([one.top for one in rankings]),
            np.concatenate([one.scores for one in rankings]),
            Ragged.concatenate([one.truth for one in rankings]),
        )
        correction = FrequencyCorrection.fit(ranking, counts, settings.ensemble.trees)
        correction.save(settings.run_directory / FREQUENCY, join_fingerprint(settings, corpus))
    if settings.linear.learned_join:
        top = settings.ensemble.top_labels
        found = [(*mean_ballot(each, top), truth) for each, truth in ballots(predictions, True)]
        labels, means = (np.concatenate([one[part] for one in found]) for part in (0, 1))
        rows = np.arange(0, len(labels), -(-len(labels) // JOINED))
        truth = Ragged.concatenate([one[2] for one in found]).take(rows)
        join = LearnedJoin.fit(labels[rows], means[rows], truth, counts, correction)
        join.save(settings.run_directory / LEARNED_JOIN, learned_join_fingerprint(settings, corpus))
        log.info("%d regression trees join what networks and classifiers say", len(join.asked))
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
