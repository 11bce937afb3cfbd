"""A split's predictions judged: everything that `metrics.json` says of a run's quality.

Rankings are read one after the other, so that memory holds the values of one ranking's documents.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from axml_ray.evaluation.bands import Band, ByFrequency, bands
from axml_ray.evaluation.calibration import Calibration
from axml_ray.evaluation.metrics import Measured, Scores, propensities
from axml_ray.evaluation.predictions import ENSEMBLE, Predictions, Ranking
from axml_ray.evaluation.rankings import hits, only
from axml_ray.evaluation.resampling import compare, intervals
from axml_ray.settings import EvaluationSettings, SettingsError


@dataclass(frozen=True, slots=True)
class Labels:
    """What judging has to know of a corpus.

    Attributes:
        counts: int64[L], training documents of each label.
        documents: training documents in all.
    """

    counts: np.ndarray
    documents: int


def judge(predictions: Predictions, labels: Labels, settings: EvaluationSettings) -> dict[str, Any]:
    """All measures of all rankings.

    Args:
        predictions: of a split.
        labels: of the corpus.
        settings: constants, bands, and samples of the intervals.

    Returns:
        `documents` (those with a true label), `ensemble` and `members` (scores in percent by measure), `intervals` (of
        these, by the same names), `bands` (a row a band: `name`, `from`, `to`, `labels`, `documents`, and scores and
        intervals again), `frequency` (`bands.ByFrequency`), `calibration` (`calibration.Calibration`), `propensity`.

    Raises:
        SettingsError: the predictions are of other labels, or no document has a true label.
    """
    inverse = inverse_propensity(labels, settings)
    parts = bands(labels.counts, head_from=settings.head_from, torso_from=settings.torso_from)
    chosen = {"resamples": settings.resamples, "seed": settings.seed}
    rows = [
        {"name": each.name, "from": each.least, "to": each.most, "labels": int(each.inside.sum())} for each in parts
    ]
    found: dict[str, Any] = {"documents": 0, "members": {}, "intervals": {"members": {}}, "bands": rows}
    frequency, calibration = ByFrequency(labels.counts), Calibration()
    for who in predictions.rankings:
        read: Iterable[Ranking] = predictions.read(who)
        if who == ENSEMBLE:
            read = _counting(read, frequency, calibration)
        whole, *narrowed = _measure(predictions, read, inverse, parts)
        assert whole is not None
        _put(found, who, whole, intervals(whole, **chosen))
        for row, measured in zip(rows, narrowed, strict=True):
            row["documents"] = 0 if measured is None else len(measured)
            if measured is not None:
                _put(row, who, measured, intervals(measured, **chosen))
        found["documents"] = len(whole)
    return found | {
        "frequency": frequency.result(),
        "calibration": calibration.result(),
        "propensity": {"A": settings.propensity_a, "B": settings.propensity_b},
    }


def against(
    predictions: Predictions, others: Predictions, labels: Labels, settings: EvaluationSettings
) -> dict[str, dict[str, Any]]:
    """The ensemble of one run compared with that of another, measure by measure.

    Args:
        predictions: of a split by the one.
        others: of the same documents by the other; in any order.
        labels: of their corpus.
        settings: constants, and samples of intervals and tests.

    Returns:
        By measure: `difference` in points (the one less the other), its `interval`, and `p`.

    Raises:
        SettingsError: they aren't of the same documents with the same true labels.
    """
    inverse = inverse_propensity(labels, settings)
    ids, truth = predictions.documents()
    other_ids, other_truth = others.documents()
    place = {name: row for row, name in enumerate(other_ids)}
    mine = f"{predictions.directory} and {others.directory}"
    if len(place) != len(other_ids) or len(set(ids)) != len(ids):
        raise SettingsError(f"{mine}: ids of documents stand twice, so they can't be matched; prepare with unique ids")
    if place.keys() != set(ids):
        raise SettingsError(f"{mine}: predictions of other documents; compare runs on the same corpus and split")
    order = np.array([place[name] for name in ids], np.int64)
    if not _same(truth, other_truth.take(order)):
        raise SettingsError(f"{mine}: the documents have other labels; compare runs on the same corpus and split")
    (one,) = _measure(predictions, predictions.read(ENSEMBLE), inverse)
    (other,) = _measure(others, others.read(ENSEMBLE), inverse)
    assert one is not None and other is not None
    # Only documents with a true label were measured.
    labelled = np.flatnonzero(other_truth.lengths)
    rank = np.full(len(other_ids), -1)
    rank[labelled] = np.arange(len(labelled))
    rows = rank[order[truth.lengths > 0]]
    found = compare(
        one, Measured(other.values[rows], other.attainable[rows]), resamples=settings.resamples, seed=settings.seed
    )
    return {
        name: {"difference": each.points, "interval": list(each.interval), "p": each.p} for name, each in found.items()
    }


def _same(one: Any, other: Any) -> bool:
    return np.array_equal(one.offsets, other.offsets) and all(
        np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(one, other, strict=True)
    )


def inverse_propensity(labels: Labels, settings: EvaluationSettings) -> np.ndarray:
    """1 / propensity of each label, float64[L].

    Raises:
        SettingsError: the corpus is too small for the formula.
    """
    try:
        return 1 / propensities(labels.counts, labels.documents, a=settings.propensity_a, b=settings.propensity_b)
    except ValueError as error:
        raise SettingsError(f"evaluation: {error}") from None


def _counting(rankings: Iterable[Ranking], frequency: ByFrequency, calibration: Calibration) -> Iterable[Ranking]:
    """The rankings, each also counted by frequency and score."""
    for each in rankings:
        # First to the scores, which check the labels.
        yield each
        frequency.add(each.top, each.truth.values, each.truth.offsets)
        predicted = each.top >= 0
        right = hits(each.top, each.truth.values, each.truth.offsets)
        calibration.add(each.scores[predicted], right[predicted])


def _measure(
    predictions: Predictions, rankings: Iterable[Ranking], inverse: np.ndarray, parts: Sequence[Band] = ()
) -> list[Measured | None]:
    """The values of the whole rankings, and of each band's; None for a band that no document has a label of."""
    scores = [Scores(inverse) for _ in range(1 + len(parts))]
    try:
        for each in rankings:
            truth = each.truth.values, each.truth.offsets
            scores[0].add(each.top, *truth)
            for one, band in zip(scores[1:], parts, strict=True):
                one.add(*only(band.inside, each.top, *truth))
    except ValueError as error:
        raise SettingsError(f"{predictions.directory}: {error}; are they of another corpus?") from None
    if not scores[0].documents:
        raise SettingsError(
            f"{predictions.directory}: none of the documents has a true label, so nothing can be judged"
        )
    return [one.measured() if one.documents else None for one in scores]


def _put(into: dict[str, Any], who: str, measured: Measured, around: dict[str, tuple[float, float]]) -> None:
    """Scores and intervals of a ranking, where a reader looks for them."""
    limits = {name: list(interval) for name, interval in around.items()}
    if who == ENSEMBLE:
        into["ensemble"] = measured.result()
        into.setdefault("intervals", {})["ensemble"] = limits
    else:
        into.setdefault("members", {})[who] = measured.result()
        into.setdefault("intervals", {}).setdefault("members", {})[who] = limits
