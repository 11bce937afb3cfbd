"""The evaluation of a finished run: its predictions of a split, `metrics.json`, and the report.

Stored predictions are used where the run's members made them; otherwise the split is predicted, which starts Ray.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from axml_ray.configuration import read_settings
from axml_ray.corpus.store import Corpus
from axml_ray.evaluation.examples import Explain, Reason, examples, right_and_wrong
from axml_ray.evaluation.judge import Labels, against, judge
from axml_ray.evaluation.page import write_page
from axml_ray.evaluation.predictions import Predictions
from axml_ray.evaluation.report import write_metrics
from axml_ray.files import read_json
from axml_ray.heartbeat import Heartbeat
from axml_ray.ragged import Ragged
from axml_ray.run import Run
from axml_ray.settings import SettingsError
from axml_ray.storage.layout import TEST
from axml_ray.training.progress import JOURNAL

log = logging.getLogger(__name__)


def open_run(directory: Path) -> Run:
    """A run, with the corpus that it was trained on.

    Raises:
        SettingsError: it is not a run, or its corpus is missing.
    """
    settings = read_settings(directory)
    return Run(settings, Corpus.open(settings.corpus_directory))


def evaluate(
    run: Run,
    split: str = TEST,
    *,
    other: Run | None = None,
    seconds: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Evaluate a run on a split, and write its metrics and its report.

    Args:
        run: trained.
        split: of the corpus.
        other: a run to compare it with, on the same documents.
        seconds: of each phase of the main job; by default those in the run's metrics.

    Returns:
        The content of the metrics file.

    Raises:
        SettingsError: the split has no documents, or predictions are missing or of other documents and the run cannot
            be opened, or the two runs cannot be compared.
    """
    settings, corpus = run.settings, run.corpus
    predictions = predicted(run, split)
    labels = Labels(corpus.labels.counts, corpus.documents("train"))
    log.info("evaluate: %s %s documents", f"{corpus.documents(split):,}", split)
    with Heartbeat("evaluate"):
        scores = judge(predictions, labels, settings.evaluation)
    path = run.layout.metrics(split)
    metrics = {"corpus": settings.corpus.name, "fingerprint": corpus.fingerprint, "split": split, **scores}
    if seconds := seconds_before(path, corpus) if seconds is None else seconds:
        metrics["seconds"] = dict(seconds)
    if other is not None:
        others = predicted(other, split)
        metrics["against"] = {
            "run": other.settings.name,
            "measures": against(predictions, others, labels, settings.evaluation),
        }
    write_metrics(path, metrics)
    log.info("report: writing it, with the words that labels of some documents attended to")
    with Heartbeat("report"):
        _report(run, predictions, metrics)
    return metrics


def predicted(run: Run, split: str) -> Predictions:
    """The run's predictions of a split, made now where they are missing or by other members.

    Raises:
        SettingsError: the split has no documents, the predictions are of other documents, or the run cannot be opened.
    """
    if not run.corpus.documents(split):
        raise SettingsError(f"{run.corpus.directory}: has no {split} documents to evaluate on")
    stored = Predictions.open(run.layout.predictions(split))
    if stored is None or set(stored.members) != set(run.member_names):
        stored = _predict(run, split)
    _check_documents(stored, run.corpus, split)
    return stored if _are_current(run, stored) else _predict(run, split)


def _are_current(run: Run, stored: Predictions) -> bool:
    """Whether predictions were made by the run as it is now, as far as can be told."""
    try:
        return stored.made_by is None or stored.made_by == run.predictions_key
    except SettingsError as error:  # a hierarchy's file that no longer exists
        log.info("evaluate: the stored predictions are taken as they are (%s)", error)
        return True


def _check_documents(stored: Predictions, corpus: Corpus, split: str) -> None:
    ids, truth = stored.documents()
    table = corpus.table(split, ["id", "labels"])
    labels = Ragged.from_arrow(table["labels"])
    same = np.array_equal(truth.offsets, labels.offsets) and np.array_equal(truth.values, labels.values)
    if not same or ids != table["id"].to_pylist():
        raise SettingsError(
            f"{stored.directory}: predictions of another corpus than {corpus.directory}; if the run is of this corpus, "
            "remove the directory, and the split is predicted again"
        )


def _predict(run: Run, split: str) -> Predictions:
    # Imported here, since stored predictions are evaluated without Ray.
    from axml_ray.cluster import connect, room_for
    from axml_ray.inference.batch import predict_split

    run.open_ensemble()  # in an actor the same error would be a page of Ray's
    connect()
    cpus = run.settings.resources.cpus_per_worker
    if not room_for({"CPU": cpus}):
        raise SettingsError(f"resources.cpus_per_worker: no node of the cluster has {cpus:g} CPUs; give fewer")
    log.info("predict: %s %s documents", f"{run.corpus.documents(split):,}", split)
    stored = Predictions.open(predict_split(run, split))
    assert stored is not None
    return stored


def seconds_before(path: Path, corpus: Corpus) -> dict[str, float]:
    """Seconds of the main job's phases in an earlier metrics file; empty where there is none of the corpus."""
    try:
        content = read_json(path) if path.is_file() else {}
        same = content.get("fingerprint", corpus.fingerprint) == corpus.fingerprint
        return dict(content.get("seconds", {})) if same else {}
    except (ValueError, AttributeError):
        return {}


def _report(run: Run, predictions: Predictions, metrics: Mapping[str, Any]) -> None:
    split, labels, explain = str(metrics["split"]), run.corpus.labels, _explainer(run)
    shown = [
        examples(predictions, rows, _texts(run.corpus, split, rows), labels.names, labels.counts, explain)
        for rows in right_and_wrong(predictions, seed=run.settings.evaluation.seed)
    ]
    write_page(
        run.layout.report(split),
        metrics,
        name=run.settings.name,
        journals=[run.layout.tree(number) / JOURNAL for number in range(run.settings.ensemble.trees)],
        right=shown[0],
        wrong=shown[1],
    )


def _explainer(run: Run) -> Explain | None:
    """Why labels were predicted, where the run's members can be opened."""
    from axml_ray.inference.explain import explain

    try:
        ensemble = run.open_ensemble()
    except SettingsError as error:
        log.info("report: no words are marked (%s)", error)
        return None
    tokenizer, index = run.corpus.tokenizer, run.corpus.labels

    def reasons(text: str, labels: Sequence[int]) -> list[Reason]:
        found = explain(ensemble, tokenizer, index, text, labels, run.settings.corpus.max_tokens)
        return [
            Reason(
                words=[
                    (word, *span, float(weight))
                    for word, span, weight in zip(one.words, one.spans, one.weights, strict=True)
                ],
                contributions=[(each.member.title, each.points) for each in one.contributions],
            )
            for one in found
        ]

    return reasons


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
