"""A finished run judged: its predictions of a split, `metrics.json`, and the report.

Stored predictions are used where they are of the run's trees; else the split is predicted, which starts Ray. Of the
test split the results are `metrics.json` and `report/index.html`, of another `metrics-<split>.json` and
`report/<split>.html`.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from axml_ray.corpus.store import Corpus
from axml_ray.evaluation.examples import Explain, Words, examples, right_and_wrong
from axml_ray.evaluation.judge import Labels, against, judge
from axml_ray.evaluation.page import write_page
from axml_ray.evaluation.predictions import PREDICTIONS, Predictions
from axml_ray.evaluation.report import write_metrics
from axml_ray.files import read_json
from axml_ray.heartbeat import Heartbeat
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment, SettingsError
from axml_ray.training.progress import JOURNAL
from axml_ray.training.tree import tree_directory

log = logging.getLogger(__name__)

METRICS = "metrics.json"
"""There too: scores of the test split, and seconds of each phase, training's over all starts that came to their end."""
TEST = "test"


def evaluate(
    settings: Experiment,
    corpus: Corpus,
    split: str = TEST,
    *,
    other: Experiment | None = None,
    seconds: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Judge a run on a split, and write its metrics and its report.

    Args:
        settings: of the run.
        corpus: that it was trained on.
        split: of the corpus.
        other: a run to compare it with, on the same documents.
        seconds: of each phase of the main job; by default those that the run's metrics tell.

    Returns:
        What the metrics file holds.

    Raises:
        SettingsError: the split has no documents, or predictions are missing or of other documents and the run can't
            be opened, or the two runs can't be compared.
    """
    predictions = predicted(settings, corpus, split)
    labels = Labels(corpus.labels.counts, corpus.documents("train"))
    log.info("evaluate: %s %s documents", f"{corpus.documents(split):,}", split)
    with Heartbeat("evaluate"):
        found = judge(predictions, labels, settings.evaluation)
    path = settings.run_directory / (METRICS if split == TEST else f"metrics-{split}.json")
    metrics = {"corpus": settings.corpus.name, "fingerprint": corpus.fingerprint, "split": split, **found}
    if seconds := seconds_before(path, corpus) if seconds is None else seconds:
        metrics["seconds"] = dict(seconds)
    if other is not None:
        others = predicted(other, Corpus.open(other.corpus_directory), split)
        metrics["against"] = {
            "run": other.name,
            "measures": against(predictions, others, labels, settings.evaluation),
        }
    write_metrics(path, metrics)
    log.info("report: writing it, with the words that labels of some documents attended to")
    with Heartbeat("report"):
        _report(settings, corpus, predictions, metrics)
    return metrics


def report_path(settings: Experiment, split: str = TEST) -> Path:
    """Where the report of a run on a split lies."""
    return settings.run_directory / "report" / ("index.html" if split == TEST else f"{split}.html")


def predicted(settings: Experiment, corpus: Corpus, split: str) -> Predictions:
    """The run's predictions of a split, made now where they are missing or by other trees.

    Raises:
        SettingsError: the split has no documents, the predictions are of other documents, or the run can't be opened.
    """
    if not corpus.documents(split):
        raise SettingsError(f"{corpus.directory}: has no {split} documents to evaluate on")
    found = Predictions.open(settings.run_directory / PREDICTIONS / split)
    if found is None or found.trees != settings.ensemble.trees:
        found = _predict(settings, corpus, split)
    _check_documents(found, corpus, split)
    return found if _are_of(settings, corpus, found) else _predict(settings, corpus, split)


def _are_of(settings: Experiment, corpus: Corpus, found: Predictions) -> bool:
    """Whether predictions are of the run as it is now, as far as can be told."""
    from axml_ray.inference.ensemble import predictions_fingerprint

    try:
        return found.made_by is None or found.made_by == predictions_fingerprint(settings, corpus)
    except SettingsError as error:  # a hierarchy's file that is gone
        log.info("evaluate: the stored predictions are taken as they are (%s)", error)
        return True


def _check_documents(found: Predictions, corpus: Corpus, split: str) -> None:
    ids, truth = found.documents()
    table = corpus.table(split, ["id", "labels"])
    given = Ragged.from_arrow(table["labels"])
    same = np.array_equal(truth.offsets, given.offsets) and np.array_equal(truth.values, given.values)
    if not same or ids != table["id"].to_pylist():
        raise SettingsError(
            f"{found.directory}: predictions of another corpus than {corpus.directory}; if the run is of this corpus, "
            "remove the directory, and the split is predicted again"
        )


def _predict(settings: Experiment, corpus: Corpus, split: str) -> Predictions:
    # Only here, for stored predictions are judged without Ray.
    from axml_ray.cluster import connect, room_for
    from axml_ray.inference.batch import predict_split
    from axml_ray.inference.ensemble import Ensemble

    Ensemble.open(settings, corpus)  # in an actor the same error would be a page of Ray's
    connect()
    cpus = settings.resources.cpus_per_worker
    if not room_for({"CPU": cpus}):
        raise SettingsError(f"resources.cpus_per_worker: no node of the cluster has {cpus:g} CPUs; give fewer")
    log.info("predict: %s %s documents", f"{corpus.documents(split):,}", split)
    found = Predictions.open(predict_split(settings, corpus, split))
    assert found is not None
    return found


def seconds_before(path: Path, corpus: Corpus) -> dict[str, float]:
    """Of the phases of the main job, as an earlier metrics file tells them; empty where there is none of the corpus."""
    try:
        found = read_json(path) if path.is_file() else {}
        same = found.get("fingerprint", corpus.fingerprint) == corpus.fingerprint
        return dict(found.get("seconds", {})) if same else {}
    except (ValueError, AttributeError):
        return {}


def _report(settings: Experiment, corpus: Corpus, predictions: Predictions, metrics: Mapping[str, Any]) -> None:
    split = str(metrics["split"])
    labels, explain = corpus.labels, _explainer(settings, corpus)
    shown = [
        examples(predictions, rows, _texts(corpus, split, rows), labels.names, labels.counts, explain)
        for rows in right_and_wrong(predictions, seed=settings.evaluation.seed)
    ]
    directories = (tree_directory(settings.run_directory, number) for number in range(settings.ensemble.trees))
    write_page(
        report_path(settings, split),
        metrics,
        name=settings.name,
        journals=[directory / JOURNAL for directory in directories],
        right=shown[0],
        wrong=shown[1],
    )


def _explainer(settings: Experiment, corpus: Corpus) -> Explain | None:
    """Which words a label attended to, where the run's networks have attention and are still there."""
    if settings.network.kind != "attention":
        return None
    from axml_ray.inference.ensemble import open_trees
    from axml_ray.inference.explain import explain

    try:
        trees = open_trees(settings, corpus)
    except SettingsError as error:
        log.info("report: no words are marked (%s)", error)
        return None
    tokenizer, index = corpus.tokenizer, corpus.labels

    def told(text: str, labels: Sequence[int]) -> list[Words]:
        found = explain(trees, tokenizer, index, text, labels, settings.corpus.max_tokens)
        return [
            [(word, *span, float(weight)) for word, span, weight in zip(one.words, one.spans, one.weights, strict=True)]
            for one in found
        ]

    return told


def _texts(corpus: Corpus, split: str, rows: list[int]) -> list[str]:
    """The texts of some documents; empty where the corpus keeps none. Only files that hold one are read."""
    found: dict[int, str] = {}
    start = 0
    for file in corpus.files(split):
        end = start + pq.read_metadata(file).num_rows
        here = [row for row in rows if start <= row < end]
        if here and "text" in pq.read_schema(file).names:
            texts = pq.read_table(file, columns=["text"])["text"]
            found |= {row: texts[row - start].as_py() or "" for row in here}
        start = end
    return [found.get(row, "") for row in rows]
