"""Evaluation of a split's stored predictions: the metrics of `metrics.json` that describe prediction quality.

Rankings (the ensemble's and each member's) are read one after the other, so memory holds the document scores of one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.evaluation.metrics.bands import Band, FrequencyCurve, frequency_bands
from axml_ray.evaluation.metrics.metrics import DocumentScores, Scores, propensities
from axml_ray.evaluation.metrics.predictions import ENSEMBLE, Predictions, Ranking
from axml_ray.evaluation.metrics.rankings import hits, restrict_to
from axml_ray.evaluation.metrics.reliability import ReliabilityCurve
from axml_ray.evaluation.metrics.resampling import bootstrap_intervals, compare_paired
from axml_ray.settings import EvaluationSettings


@dataclass(frozen=True, slots=True)
class TrainingCounts:
    """Label frequencies of the training split, from which propensities and bands are computed.

    Attributes:
        counts: int64[L], training documents of each label.
        documents: number of training documents.
    """

    counts: np.ndarray
    documents: int


def evaluate_predictions(
    predictions: Predictions,
    training: TrainingCounts,
    settings: EvaluationSettings,
    probability: Callable[[np.ndarray], np.ndarray] | None = None,
) -> dict[str, Any]:
    """Compute all metrics of the ensemble and of each member.

    Args:
        predictions: predictions of a split.
        training: label frequencies of the corpus.
        settings: propensity constants, limits of the bands, and number of bootstrap samples.
        probability: calibration of the ensemble's scores to probabilities, if there is one.

    Returns:
        `documents` (those with a true label), `ensemble` and `members` (scores in percent by metric), `intervals` (with
        the same names), `bands` (one row for each band: `name`, `from`, `to`, `labels`, `documents`, and again scores
        and intervals), `frequency` (of `bands.FrequencyCurve`), `calibration` (of `reliability.ReliabilityCurve`),
        `propensity`; and with a calibration, `probabilities` (like `calibration`, of probabilities instead of scores).

    Raises:
        SettingsError: the predictions contain labels outside the corpus, or no document has a true label.
    """
    inverse = inverse_propensity(training, settings)
    bands = frequency_bands(training.counts, head_from=settings.head_from, torso_from=settings.torso_from)
    rows = [
        {"name": band.name, "from": band.min_count, "to": band.max_count, "labels": int(band.is_member.sum())}
        for band in bands
    ]
    metrics: dict[str, Any] = {"documents": 0, "members": {}, "intervals": {"members": {}}, "bands": rows}
    frequency = FrequencyCurve(training.counts)
    maps = {"calibration": lambda scores: scores} | ({} if probability is None else {"probabilities": probability})
    curves = {name: ReliabilityCurve() for name in maps}
    for name in predictions.rankings:
        parts: Iterable[Ranking] = predictions.read(name)
        if name == ENSEMBLE:
            parts = _add_to_curves(parts, frequency, [(maps[key], curve) for key, curve in curves.items()])
        overall, *of_bands = _score_documents(predictions, parts, inverse, bands)
        assert overall is not None
        _store(metrics, name, overall, settings)
        for row, of_band in zip(rows, of_bands, strict=True):
            row["documents"] = 0 if of_band is None else len(of_band)
            if of_band is not None:
                _store(row, name, of_band, settings)
        metrics["documents"] = len(overall)
    return metrics | {
        "frequency": frequency.result(),
        **{key: curve.result() for key, curve in curves.items()},
        "propensity": {"A": settings.propensity_a, "B": settings.propensity_b},
    }


def compare_predictions(
    predictions: Predictions, others: Predictions, training: TrainingCounts, settings: EvaluationSettings
) -> dict[str, dict[str, Any]]:
    """Compare the ensembles of two runs on the same documents, metric by metric.

    Args:
        predictions: predictions of a split by one run.
        others: predictions of the same documents by the other run, in any order.
        training: label frequencies of their corpus.
        settings: propensity constants, and number of samples for intervals and tests.

    Returns:
        By metric: `difference` in percentage points (`predictions` minus `others`), its `interval`, and `p`.

    Raises:
        SettingsError: the documents or their true labels differ, or document ids are not unique.
    """
    inverse = inverse_propensity(training, settings)
    (pair,) = score_pairs(predictions, others, inverse)
    assert pair is not None
    return paired_differences(*pair, settings)


def paired_differences(
    one: DocumentScores, other: DocumentScores, settings: EvaluationSettings
) -> dict[str, dict[str, Any]]:
    """Return by metric the `difference` in percentage points (`one` minus `other`), its `interval`, and `p`.

    Args:
        one: document scores of one ranking.
        other: those of another ranking of the same documents, in the same order.
        settings: number of samples for intervals and tests, and their seed.
    """
    differences = compare_paired(one, other, resamples=settings.resamples, seed=settings.seed)
    return {
        name: {"difference": each.points, "interval": list(each.interval), "p": each.p}
        for name, each in differences.items()
    }


def score_pairs(
    predictions: Predictions, others: Predictions, inverse: np.ndarray, bands: Sequence[Band] = ()
) -> list[tuple[DocumentScores, DocumentScores] | None]:
    """Score the ensembles of two runs on the same documents.

    Args:
        predictions: predictions of a split by one run.
        others: predictions of the same documents by the other run, in any order.
        inverse: 1 / propensity of each label, float64[L].
        bands: bands of labels to score by themselves.

    Returns:
        The scores of both, with the documents in the same order: of all labels, and then of each band; None for a band
        of which no document has a true label.

    Raises:
        SettingsError: the documents or their true labels differ, or document ids are not unique.
    """
    order, truth = _match_documents(predictions, others)
    pairs: list[tuple[DocumentScores, DocumentScores] | None] = []
    scores = (_score_documents(each, each.read(ENSEMBLE), inverse, bands) for each in (predictions, others))
    for number, (one, other) in enumerate(zip(*scores, strict=True)):
        if one is None or other is None:
            pairs.append(None)
            continue
        # Document scores exist only for documents with a true label of the band: `row_of` maps rows of `others` to
        # rows of `other`.
        is_scored = truth.lengths > 0 if number == 0 else _have_label(truth, bands[number - 1].is_member)
        row_of = np.full(len(order), -1)
        row_of[np.sort(order[is_scored])] = np.arange(int(is_scored.sum()))
        rows = row_of[order[is_scored]]
        pairs.append((one, DocumentScores(other.values[rows], other.attainable[rows])))
    return pairs


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
    order = np.array([other_row[document] for document in ids], np.int64)
    if not _have_equal_labels(truth, other_truth.take(order)):
        raise SettingsError(f"{directories}: the true labels differ. Compare runs on the same corpus and split")
    return order, truth


def _have_label(truth: Ragged, is_member: np.ndarray) -> np.ndarray:
    """Return whether each document has a true label of a band, bool[N]."""
    document = np.repeat(np.arange(len(truth)), truth.lengths)
    return np.bincount(document[is_member[truth.values]], minlength=len(truth)) > 0


def inverse_propensity(training: TrainingCounts, settings: EvaluationSettings) -> np.ndarray:
    """Compute 1 / propensity of each label, float64[L].

    Raises:
        SettingsError: the corpus is too small for the formula.
    """
    try:
        return 1 / propensities(training.counts, training.documents, a=settings.propensity_a, b=settings.propensity_b)
    except ValueError as error:
        raise SettingsError(f"evaluation: {error}") from None


def _have_equal_labels(one: Ragged, other: Ragged) -> bool:
    """Return whether two sequences of documents have the same true labels, in any order within a document."""
    return np.array_equal(one.offsets, other.offsets) and all(
        np.array_equal(np.sort(one[row]), np.sort(other[row])) for row in range(len(one))
    )


def _add_to_curves(
    parts: Iterable[Ranking],
    frequency: FrequencyCurve,
    reliability: Sequence[tuple[Callable[[np.ndarray], np.ndarray], ReliabilityCurve]],
) -> Iterable[Ranking]:
    """Yield each part of a ranking, and then add it to the curves.

    Args:
        parts: the ranking.
        frequency: curve over label frequency.
        reliability: each curve of reliability, with the function of the scores whose reliability it counts.
    """
    for part in parts:
        # Yielded first, because `Scores.add` validates the label ids that the curves index with.
        yield part
        frequency.add(part.top, part.truth.values, part.truth.offsets)
        is_predicted = part.top >= 0
        is_true = hits(part.top, part.truth.values, part.truth.offsets)
        for of_scores, curve in reliability:
            curve.add(of_scores(part.scores[is_predicted]), is_true[is_predicted])


def _score_documents(
    predictions: Predictions, parts: Iterable[Ranking], inverse: np.ndarray, bands: Sequence[Band] = ()
) -> list[DocumentScores | None]:
    """Score the whole ranking, and then each band; None for a band of which no document has a true label."""
    overall, of_bands = Scores(inverse), [Scores(inverse) for _ in bands]
    try:
        for part in parts:
            truth = part.truth.values, part.truth.offsets
            overall.add(part.top, *truth)
            for scores, band in zip(of_bands, bands, strict=True):
                scores.add(*restrict_to(band.is_member, part.top, *truth))
    except ValueError as error:
        raise SettingsError(
            f"{predictions.directory}: {error}. Check that the predictions belong to this corpus"
        ) from None
    if not overall.documents:
        raise SettingsError(f"{predictions.directory}: no document has a true label, so there is nothing to evaluate")
    return [scores.document_scores() if scores.documents else None for scores in (overall, *of_bands)]


def _store(target: dict[str, Any], name: str, scores: DocumentScores, settings: EvaluationSettings) -> None:
    """Store the scores and intervals of one ranking in the whole result, or in a band's row."""
    intervals = bootstrap_intervals(scores, resamples=settings.resamples, seed=settings.seed)
    limits = {metric: list(interval) for metric, interval in intervals.items()}
    if name == ENSEMBLE:
        target["ensemble"] = scores.result()
        target.setdefault("intervals", {})["ensemble"] = limits
    else:
        target.setdefault("members", {})[name] = scores.result()
        target.setdefault("intervals", {}).setdefault("members", {})[name] = limits
