"""Evaluation of a split's stored predictions: the metrics of `metrics.json` that describe prediction quality.

Rankings (the ensemble's and each member's) and their bands are scored one after the other, and the files are read anew
for each, so memory holds a file and the document scores of one ranking or band: 256 bytes a document.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from axml_ray.core.errors import SettingsError
from axml_ray.evaluation.metrics.bands import Band, FrequencyCurve, frequency_bands
from axml_ray.evaluation.metrics.metrics import DocumentScores, Scores, propensities
from axml_ray.evaluation.metrics.predictions import ENSEMBLE, Predictions
from axml_ray.evaluation.metrics.rankings import hits, restrict_to
from axml_ray.evaluation.metrics.reliability import ReliabilityCurve
from axml_ray.evaluation.metrics.resampling import bootstrap_intervals
from axml_ray.settings import EvaluationSettings


@dataclass(frozen=True, slots=True)
class TrainingCounts:
    """Label frequencies of the training split, from which propensities and bands are computed."""

    counts: np.ndarray
    """int64[L], training documents of each label."""
    documents: int


def evaluate_predictions(
    predictions: Predictions,
    training: TrainingCounts,
    settings: EvaluationSettings,
    probability: Callable[[np.ndarray], np.ndarray] | None = None,
) -> dict[str, Any]:
    """Compute all metrics of the ensemble and of each member.

    `probability` calibrates the ensemble's scores to probabilities, if there is a calibration.

    Returns:
        `documents` (those with a true label), `ensemble` and `members` (scores in percent by metric), `intervals` (with
        the same names), `bands` (one row for each band: `name`, `from`, `to`, `labels`, `documents`, and again scores
        and intervals), `frequency` (of `bands.FrequencyCurve`), `calibration` (of `reliability.ReliabilityCurve`),
        `propensity`; and with a calibration, `probabilities` (like `calibration`, of probabilities instead of scores).

    Raises:
        SettingsError: the predictions contain labels outside the corpus, or no document has a true label.
    """
    inverse = inverse_propensity(training, settings)
    bands = frequency_bands(training.counts)
    rows = [band.row for band in bands]
    metrics: dict[str, Any] = {"documents": 0, "members": {}, "intervals": {"members": {}}, "bands": rows}
    for name in (ENSEMBLE, *predictions.members):
        for target, band in zip((metrics, *rows), (None, *bands), strict=True):
            scores = score_documents(predictions, name, inverse, band)
            target["documents"] = 0 if scores is None else len(scores)
            if scores is None:
                continue
            limits = {metric: list(interval) for metric, interval in bootstrap_intervals(scores).items()}
            intervals = target.setdefault("intervals", {})
            if name == ENSEMBLE:
                target["ensemble"], intervals["ensemble"] = scores.result(), limits
            else:
                target.setdefault("members", {})[name] = scores.result()
                intervals.setdefault("members", {})[name] = limits
            del scores  # before the next ones are computed
    # After the scores, which validate the label ids with which the curve over frequency is indexed.
    frequency, calibration, probabilities = FrequencyCurve(training.counts), ReliabilityCurve(), ReliabilityCurve()
    for ranking, truth in predictions.read(ENSEMBLE):
        is_true = hits(ranking.labels, truth.values, truth.offsets)
        is_predicted = ranking.labels >= 0
        frequency.add(ranking.labels, truth.values, truth.offsets)
        calibration.add(ranking.scores[is_predicted], is_true[is_predicted])
        if probability is not None:
            probabilities.add(probability(ranking.scores[is_predicted]), is_true[is_predicted])
    return metrics | {
        "frequency": frequency.result(),
        "calibration": calibration.result(),
        **({} if probability is None else {"probabilities": probabilities.result()}),
        "propensity": dict(zip("AB", settings.propensity, strict=True)),
    }


def inverse_propensity(training: TrainingCounts, settings: EvaluationSettings) -> np.ndarray:
    """Compute 1 / propensity of each label, float64[L].

    Raises:
        SettingsError: the corpus is too small for the formula.
    """
    a, b = settings.propensity
    try:
        return 1 / propensities(training.counts, training.documents, a=a, b=b)
    except ValueError as error:
        raise SettingsError(f"evaluation: {error}") from None


def score_documents(
    predictions: Predictions, name: str, inverse: np.ndarray, band: Band | None = None
) -> DocumentScores | None:
    """Score the ranking of a name, or that of a band's labels, of which None is returned if no document has one.

    The whole ranking is scored first: it validates the label ids.

    Raises:
        SettingsError: the predictions contain labels outside the corpus, or no document has a true label.
    """
    scores = Scores(inverse)
    try:
        for ranking, truth in predictions.read(name):
            rows = ranking.labels, truth.values, truth.offsets
            scores.add(*(rows if band is None else restrict_to(band.is_member, *rows)))
    except ValueError as error:
        raise SettingsError(
            f"{predictions.directory}: {error}. Check that the predictions belong to this corpus"
        ) from None
    if not scores.documents and band is None:
        raise SettingsError(f"{predictions.directory}: no document has a true label, so there is nothing to evaluate")
    return scores.document_scores() if scores.documents else None
