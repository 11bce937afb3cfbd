"""Comparison of two rankings of the same documents: scores, differences with their intervals, and paired tests."""

from typing import Any

import numpy as np

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.evaluation.metrics.bands import frequency_bands
from axml_ray.evaluation.metrics.metrics import DocumentScores
from axml_ray.evaluation.metrics.prediction_metrics import TrainingCounts, inverse_propensity, score_documents
from axml_ray.evaluation.metrics.predictions import ENSEMBLE, Predictions
from axml_ray.evaluation.metrics.resampling import compare_paired
from axml_ray.settings import EvaluationSettings


def compare_predictions(
    first: Predictions, second: Predictions, training: TrainingCounts, settings: EvaluationSettings
) -> dict[str, Any]:
    """Compare the ensembles of two runs on the same documents, in any order; the gains are those of the second.

    Returns:
        - `documents`: number of documents with a true label;
        - `scores`: by metric, the scores of both in percent;
        - `measures`: by metric, the gain of the second (`difference`, in points), its `interval`, and `p`;
        - `bands`: a row for each band of label frequency, with the same `measures` if a document has a label of it.

    Raises:
        SettingsError: the documents or their true labels differ, or document ids are not unique.
    """
    place, truth = _match_documents(second, first)
    document = np.repeat(np.arange(len(truth)), truth.lengths)
    bands, inverse = frequency_bands(training.counts), inverse_propensity(training, settings)
    rows = [band.row for band in bands]
    result: dict[str, Any] = {"documents": 0, "scores": {}, "measures": {}, "bands": rows}
    for target, band in zip((result, *rows), (None, *bands), strict=True):
        now, before = (score_documents(ranked, ENSEMBLE, inverse, band) for ranked in (second, first))
        target["documents"] = 0 if now is None else len(now)
        if now is None or before is None:
            continue
        is_member = np.ones(len(training.counts), np.bool_) if band is None else band.is_member
        is_scored = np.bincount(document[is_member[truth.values]], minlength=len(truth)) > 0
        # Only these documents have scores: a document's row in `before` is its rank among them in the other's order.
        order = np.argsort(np.argsort(place[is_scored]))
        gains = compare_paired(now, DocumentScores(before.values[order], before.attainable[order]))
        target["measures"] = {
            name: {"difference": gain.points, "interval": list(gain.interval), "p": gain.p}
            for name, gain in gains.items()
        }
        if band is None:
            scores, old_scores = now.result(), before.result()
            target["scores"] = {name: [old_scores[name], scores[name]] for name in scores}
        del now, before  # before those of the next band
    return result


def _match_documents(predictions: Predictions, others: Predictions) -> tuple[np.ndarray, Ragged]:
    """Return the row of each document of `predictions` in `others` (int64[N]), and the true labels.

    Raises:
        SettingsError: the documents or their true labels differ, or document ids are not unique.
    """
    ids, truth = predictions.documents()
    other_ids, other_truth = others.documents()
    other_row = {document: row for row, document in enumerate(other_ids)}
    directories = f"{predictions.directory} and {others.directory}"
    if len(other_row) != len(other_ids) or len(set(ids)) != len(ids):
        raise SettingsError(
            f"{directories}: document ids are not unique, so documents cannot be matched. Prepare the corpus with "
            "unique ids"
        )
    if other_row.keys() != set(ids):
        raise SettingsError(f"{directories}: the documents differ. Compare runs on the same corpus and split")
    place = np.array([other_row[document] for document in ids], np.int64)
    matched = other_truth.take(place)
    if not np.array_equal(truth.offsets, matched.offsets) or any(
        not np.array_equal(np.sort(truth[row]), np.sort(matched[row])) for row in range(len(truth))
    ):
        raise SettingsError(f"{directories}: the true labels differ. Compare runs on the same corpus and split")
    return place, truth
