"""Evaluation of a finished run on a split: its predictions, `metrics.json`, and the HTML report.

Stored predictions are reused if the run's current members made them; otherwise the split is predicted, which starts
Ray.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from axml_ray.cluster.connection import call_in_task
from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import file_bytes, read_json
from axml_ray.core.lease import Lease, held
from axml_ray.core.ragged import Ragged
from axml_ray.core.run_layout import TEST
from axml_ray.core.topk import TopK
from axml_ray.corpus.store import Corpus
from axml_ray.ensemble.ensemble import Contribution
from axml_ray.evaluation.metrics.filter_pairs import read_pairs
from axml_ray.evaluation.metrics.label_sets import best_threshold, scores_above
from axml_ray.evaluation.metrics.prediction_metrics import TrainingCounts, evaluate_predictions, inverse_propensity
from axml_ray.evaluation.metrics.predictions import ENSEMBLE, Predictions
from axml_ray.evaluation.reports.examples import EXPLAINED_LABELS, LabelExplanation, best_and_worst, build_examples
from axml_ray.evaluation.reports.report import write_metrics
from axml_ray.evaluation.reports.report_page import write_page
from axml_ray.inference.explain.explain import assemble
from axml_ray.inference.predict.first_scores import scores_without_networks
from axml_ray.inference.predict.predict_split import predict_split
from axml_ray.inference.predict.shards import ROWS
from axml_ray.members.explanation import ExplainedText, TreePath
from axml_ray.members.member import Member
from axml_ray.planning.phases import report_bytes
from axml_ray.progress.heartbeat import Heartbeat, phase
from axml_ray.runs.run import Run
from axml_ray.settings import EvaluationSettings, Experiment
from axml_ray.training.progress import JOURNAL

log = logging.getLogger(__name__)


def evaluate(
    run: Run,
    split: str = TEST,
    *,
    seconds: Mapping[str, float] | None = None,
    with_label_sets: bool = False,
) -> dict[str, Any]:
    """Evaluate a run on a split, and write its metrics and its report.

    Args:
        run: a trained run.
        split: split of the corpus.
        seconds: seconds of each phase of the main job; by default those in the existing metrics file.
        with_label_sets: whether to score the labels above the threshold that is best on validation, for which the
            validation documents are predicted, too.

    Returns:
        The content of the metrics file.

    Raises:
        SettingsError: the split has no documents; or it must be predicted and a member is missing; or the predictions
            are of other documents; or another job is working on the run; or there is no threshold to choose.
    """
    settings, corpus = run.settings, run.corpus
    with held(run.layout.directory) as lease:
        predictions = current_predictions(run, split)
        threshold = best_threshold(current_predictions(run, "valid").read(ENSEMBLE)) if with_label_sets else None
        training = TrainingCounts(corpus.labels.counts, corpus.documents("train"))
        log.info("evaluate: %s %s documents", f"{corpus.documents(split):,}", split)
        with phase("evaluate"), Heartbeat("evaluate"):
            calibration = run.open_calibration()
            probability = None if calibration is None else calibration.probability
            scores = evaluate_predictions(predictions, training, settings.evaluation, probability)
            inverse = inverse_propensity(training, settings.evaluation)
            if first := scores_without_networks(run, predictions, inverse):
                scores["without_networks"] = first
        path = run.layout.metrics(split)
        metrics = {"corpus": settings.corpus.name, "fingerprint": corpus.fingerprint, "split": split, **scores}
        metrics["made_by"] = predictions.made_by
        if run.has_combiner() and (about := run.open_combiner().about()) is not None:
            metrics["combiner"] = about
        if seconds := read_phase_seconds(path, corpus) if seconds is None else seconds:
            metrics["seconds"] = dict(seconds)
        if predictions.left_out is not None:
            metrics["filter_pairs"] = len(predictions.left_out.values)
        if threshold is not None:
            metrics["label_sets"] = scores_above(predictions.read(ENSEMBLE), threshold)
        write_metrics(path, metrics)
        log.info("report: explaining the predicted labels of example documents, and writing the page")
        with phase("report"), Heartbeat("report"):
            largest = max(file_bytes(spec.directory) for spec in run.members)
            memory = report_bytes(largest, run.corpus.trained)
            problem = call_in_task(write_report, settings, predictions, metrics, lease, memory=memory)
            if problem is not None:
                log.info("report: example documents are shown without explanations (%s)", problem)
    return metrics


def current_predictions(run: Run, split: str, settings: EvaluationSettings | None = None) -> Predictions:
    """Open the run's predictions of a split, after predicting it if they are missing or by other members.

    Args:
        run: the run.
        split: split of its corpus.
        settings: which pairs of test documents and labels are left out; by default the run's.

    Raises:
        SettingsError: the split has no documents, the predictions are of other documents, the run cannot be opened, or
            the file of pairs is not of these documents; or another job is working on the run,
            and the split must be predicted.
    """
    if not run.corpus.documents(split):
        raise SettingsError(f"{run.corpus.directory}: has no {split} documents to evaluate on")
    stored = Predictions.open(run.layout.predictions(split))
    if stored is not None:
        _check_documents(stored, run.corpus, split)
    if stored is None or stored.made_by != run.predictions_key:
        log.info("predict: %s %s documents", f"{run.corpus.documents(split):,}", split)
        with held(run.layout.directory), phase("predict"):
            stored = predict_split(run, split)
    path = (settings or run.settings.evaluation).filter_pairs
    return stored if path is None or split != TEST else replace(stored, left_out=pairs_to_leave_out(path, run.corpus))


def pairs_to_leave_out(path: Path, corpus: Corpus) -> Ragged:
    """Read pairs of test documents and labels.

    Raises:
        SettingsError: they do not fit the corpus, or it lacks test documents, so that their numbers are unknown.
    """
    made_with, summary = corpus.manifest["settings"], corpus.manifest["summary"]
    left_out = summary["left_out"]["without_label"][TEST] + summary["left_out"]["duplicates"]
    if not made_with["test"] or left_out or summary["rejected"]:
        raise SettingsError(
            f"evaluation.filter_pairs: {path} numbers the documents of the test file, but {corpus.directory} lacks "
            "some: prepare it with corpus.test, without corpus.drop_duplicates, from records that can all be read and "
            "have a label"
        )
    storage.fetch(path)
    pairs = read_pairs(path, corpus.documents(TEST), corpus.labels.labels)
    log.info("evaluate: leaving out %s pairs of %s", f"{len(pairs.values):,}", path)
    return pairs


def _check_documents(stored: Predictions, corpus: Corpus, split: str) -> None:
    of_corpus = (
        pa.Table.from_batches([batch])
        for file in map(pq.ParquetFile, corpus.files(split))
        for batch in file.iter_batches(ROWS, columns=["id", "labels"])
    )
    if _digests(stored.tables(["id", "labels"])) != _digests(of_corpus):
        raise SettingsError(
            f"{stored.directory}: the predictions are of another corpus than {corpus.directory}. If the run belongs to "
            "this corpus, remove the directory to predict the split again"
        )


def _digests(tables: Iterable[pa.Table]) -> list[bytes]:
    """Return digests of the ids and true labels of documents, whatever their division into tables."""
    digests = [hashlib.sha256() for _ in range(3)]
    for table in tables:
        labels = Ragged.from_arrow(table["labels"])
        ids = "".join(map(json.dumps, table["id"].to_pylist())).encode()
        parts = ids, labels.lengths.tobytes(), labels.values.tobytes()
        for digest, part in zip(digests, parts, strict=True):
            digest.update(part)
    return [digest.digest() for digest in digests]


def read_phase_seconds(path: Path, corpus: Corpus) -> dict[str, float]:
    """Read the seconds of the main job's phases from a metrics file; empty if there is none for this corpus."""
    try:
        content = read_json(path) if path.is_file() else {}
        is_same = content.get("fingerprint", corpus.fingerprint) == corpus.fingerprint
        return dict(content.get("seconds", {})) if is_same else {}
    except (ValueError, AttributeError):
        return {}


def write_report(
    settings: Experiment, predictions: Predictions, metrics: Mapping[str, Any], lease: Lease | None = None
) -> str | None:
    """Write the report of a run on a split, with one member open at a time; a task of its own calls this.

    Returns:
        Why example documents are shown without explanations; None if they have some.
    """
    run, split = Run.open(settings, lease), str(metrics["split"])
    best, worst = best_and_worst(predictions)
    rows = [*best, *worst]
    text_of = dict(zip(rows, read_texts(run.corpus, split, rows), strict=True))
    explanations, problem = {}, None
    try:
        explanations = explain_rows(run, predictions, {row: text for row, text in text_of.items() if text})
    except SettingsError as error:
        problem = str(error)
    labels = run.corpus.labels
    best_examples, worst_examples = (
        build_examples(predictions, group, [text_of[row] for row in group], labels.names, labels.counts, explanations)
        for group in (best, worst)
    )
    journals = [run.layout.tree(number) / JOURNAL for number in range(settings.ensemble.trees)]
    for path in journals:
        storage.fetch(path)
    page = run.layout.report(split)
    write_page(page, metrics, name=settings.name, journals=journals, best=best_examples, worst=worst_examples)
    # Trackers may be servers of others: they get no texts.
    write_page(run.layout.charts(split), metrics, name=settings.name, journals=journals)
    return problem


def explain_rows(run: Run, predictions: Predictions, text_of: Mapping[int, str]) -> dict[int, list[LabelExplanation]]:
    """Explain the best labels of some documents: contributions by stored rankings, attention by one member at a time.

    Args:
        run: the run.
        predictions: its predictions of a split.
        text_of: texts of the documents, by row.

    Raises:
        SettingsError: a member is missing or broken.
    """
    run.check_fitted()
    index, tokenizer, names = run.corpus.labels, run.corpus.tokenizer, run.member_names
    combination = run.combination(run.open_combiner())
    labels_of: dict[int, list[int]] = {}
    contributions: dict[int, list[tuple[Contribution, ...]]] = {}
    start = 0  # row of the first document of a file
    for (combined, *of_members), truth in predictions.read_all([ENSEMBLE, *names]):
        for row in (row for row in text_of if start <= row < start + len(truth)):
            place = slice(row - start, row - start + 1)
            labels = combined.labels[place, :EXPLAINED_LABELS]
            labels_of[row] = [label for label in labels[0].tolist() if label >= 0]
            rankings = {
                name: TopK(ranking.labels[place], ranking.scores[place])
                for name, ranking in zip(names, of_members, strict=True)
            }
            contributions[row] = combination.contributions(labels, rankings)[0]
        start += len(truth)
    read = {row: tokenizer.encode_with_spans(text, run.settings.corpus.max_tokens) for row, text in text_of.items()}
    paths: dict[int, dict[str, list[TreePath]]] = {row: {} for row in text_of}
    for spec in run.members:
        if spec.implementation.explain is Member.explain:
            continue
        member = run.open_member(spec, run.open_features() if spec.implementation.uses_features else None)
        for row, (token_ids, spans) in read.items():
            of_labels = member.explain(ExplainedText(token_ids, len(spans)), labels_of[row], index)
            if of_labels is not None:
                paths[row][spec.name] = of_labels
        del member  # before the next one is opened
    return {
        row: [
            LabelExplanation(
                words=[
                    (word, *span, float(weight))
                    for word, span, weight in zip(
                        explanation.words, explanation.spans, explanation.weights, strict=True
                    )
                ],
                contributions=[
                    (contribution.member.title, contribution.points) for contribution in explanation.contributions
                ],
            )
            for explanation in assemble(
                text, read[row][1], labels_of[row], index, run.members, contributions[row], paths[row]
            )
        ]
        for row, text in text_of.items()
    }


def read_texts(corpus: Corpus, split: str, rows: list[int]) -> list[str]:
    """Read the texts of some documents; empty strings if the corpus stores none. Only the parts needed are read."""
    text_of: dict[int, str] = {}
    start = 0
    for file in map(pq.ParquetFile, corpus.files(split)):
        for group in range(file.num_row_groups):
            end = start + file.metadata.row_group(group).num_rows
            in_group = [row for row in rows if start <= row < end]
            if in_group and "text" in file.schema_arrow.names:
                texts = file.read_row_group(group, ["text"])["text"]
                text_of |= {row: texts[row - start].as_py() or "" for row in in_group}
            start = end
    return [text_of.get(row, "") for row in rows]
