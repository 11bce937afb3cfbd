"""Weights of the kinds of members, and frequency calibration by them, fitted on validation documents. Not in the paper.

A kind that helps on one corpus harms on another. So the weight of each kind is fitted; the members of a kind keep their
relative weights. The gain of a vector of weights w over the preset's weights p is the mean over N documents

    gain(w) = 1/N Σ [nDCG@5(w) − nDCG@5(p)],

and the vector with the greatest gain(w) − SE(w) is chosen, where SE is the standard error of that mean. The penalty SE
grows with the distance from the preset's weights, and falls with √N: few documents leave the weights as they were.

The ensemble must not rank worse than by the preset's weights, or than one of its kinds. So the chosen weights, those of
the preset and each kind alone rank documents that they were not fitted on, all calibrated alike. If one of these is
better by more than a standard error of the difference, it is taken. In the same way the calibration, which is fitted to
probabilities, must not rank worse than the mean that it calibrates: scores are left unchanged then.

Legend: N documents, M members, K kinds, G vectors of weights, U candidate labels of a document.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field, ValidationError

from axml_ray.core.files import read_json, write_json
from axml_ray.core.topk import TopK
from axml_ray.ensemble.combiner import FOLDS, Combiner, Mean, MemberWeights, Validation, out_of_fold
from axml_ray.ensemble.frequency import Coefficients, FrequencyCalibration
from axml_ray.evaluation.metrics.metrics import ndcg_at
from axml_ray.settings import Settings

MEASURED = 5
"""k of the nDCG@k that weights are chosen by."""
CANDIDATES = 20
"""Number of best labels of each member that weights are compared by: among these are the best `MEASURED`."""
CALIBRATED = 10
"""Number of best labels of a document that the calibration is fitted on: with all of them, those that no one looks at
would outweigh those that are measured."""
MOST_VECTORS, MOST_PARTS = 50, 20
"""Largest number of vectors of weights that are compared, and of parts that a weight of 1 is divided into."""
MIN_DOCUMENTS = 10
"""Of fewer validation documents, the deviation is not known well enough to change the weights of a preset."""
HALVES = 2
"""Number of folds of the comparison with each kind alone; more would take most of the time of a fit."""
FILE, FORMAT = "weights.json", "axml-ray weights of kinds"
PRESET, FITTED, UNCALIBRATED = "preset", "fitted", "uncalibrated"
Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class KindWeights(Settings):
    """The weights of the kinds, and the scores by which they were chosen."""

    weights: Annotated[dict[str, Finite], Field(min_length=1)]
    """Weight of each kind; they add up to 1."""
    documents: int
    """Number of documents that they were fitted on."""
    scores: dict[str, Finite]
    """nDCG@5 in percent on documents held out from the fit: by the preset's weights (`preset`), by the fitted ones
    (`fitted`), by each kind alone, and by `weights` without calibration (`uncalibrated`)."""


class TopCalibration(FrequencyCalibration):
    """Frequency calibration that is fitted on the best labels of a document only."""

    solver: ClassVar[str] = "newton-cholesky"  # several times faster for four coefficients

    @classmethod
    def fit(cls, validation: Validation, k: int) -> Self:
        """Fit on the top `CALIBRATED` labels by the mean of each validation document."""
        return super().fit(validation, min(k, CALIBRATED))


@dataclass(frozen=True, eq=False)
class PenalisedWeights(Combiner):
    """The mean by fitted weights of the kinds, calibrated by label frequency.

    Attributes:
        kinds: the weights.
        calibration: calibration of the mean.
    """

    kinds: KindWeights
    calibration: TopCalibration

    @classmethod
    def fit(cls, validation: Validation, k: int) -> Self:
        """Choose the weights, then fit the calibration of the mean by them."""
        vectors = weight_vectors(kind_weights(validation.members))
        return cls.of(vectors[choose(quality_of(vectors, _cut(validation)))], validation, k)

    @classmethod
    def of(cls, weights: Mapping[str, float], validation: Validation, k: int) -> Self:
        """Fit the calibration of the mean by given weights of the kinds."""
        kinds = KindWeights(weights=dict(weights), documents=len(validation.truth), scores={})
        return cls(kinds, TopCalibration.fit(_reweighted(validation, weights), k))

    def reweighted(self, members: MemberWeights) -> MemberWeights:
        """Return the members with the fitted weights of their kinds; their own if all of these are 0."""
        return reweighted(members, self.kinds.weights)

    def rank(self, members: MemberWeights, rankings: Sequence[TopK], k: int) -> TopK:
        """Rank the top k labels of the members with a weight, by their calibrated mean."""
        return self.calibration.rank(*_with_weight(self.reweighted(members), rankings), k)

    def score(self, members: MemberWeights, labels: np.ndarray, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Compute the calibrated mean of the members' scores."""
        return self.calibration.score(self.reweighted(members), labels, scores)

    def about(self) -> dict[str, Any]:
        """Return the weights of the kinds and the scores by which they were chosen."""
        return self.kinds.model_dump()

    def save(self, directory: Path) -> None:
        """Write the weights and the coefficients."""
        self.calibration.save(directory)
        write_json(directory / FILE, {"format": FORMAT, **self.kinds.model_dump()})

    @classmethod
    def load(cls, directory: Path, counts: np.ndarray) -> Self:
        """Load what `save` wrote; an OSError or ValueError if a file is missing or broken."""
        path = directory / FILE
        content = read_json(path)
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(f"{path} has no weights of kinds")
        try:
            return cls(KindWeights(**content), TopCalibration.load(directory, counts))
        except (ValidationError, TypeError) as error:
            raise ValueError(f"{path} has no weights of kinds: {' '.join(str(error).split())}") from None


class FittedWeights(PenalisedWeights):
    """Penalised weights with calibration, unless the preset's, one kind alone, or no calibration rank better."""

    @classmethod
    def fit(cls, validation: Validation, k: int) -> Self:
        """Choose the weights, compare them with fixed ones on held-out documents, and fit the calibration."""
        preset, short = kind_weights(validation.members), _cut(validation)
        scores = {}
        if len(preset) == 1:
            chosen = cls.of(preset, validation, k)
        else:
            fixed = {PRESET: preset, **{kind: {other: float(other == kind) for other in preset} for kind in preset}}
            scores = {name: _held_out(TopCalibration, _reweighted(short, w), HALVES) for name, w in fixed.items()}
            scores[FITTED] = _held_out(PenalisedWeights, short, HALVES)
            best = max(fixed, key=lambda name: float(scores[name].mean()))
            is_fixed = _is_better(scores[best], scores[FITTED])
            chosen = cls.of(fixed[best], validation, k) if is_fixed else super().fit(validation, k)
        calibration, weighted = chosen.calibration, _reweighted(short, chosen.kinds.weights)
        scores[UNCALIBRATED] = _held_out(Mean, weighted)
        if _is_better(scores[UNCALIBRATED], _held_out(TopCalibration, weighted)):
            calibration = TopCalibration(Coefficients(), validation.counts)
        means = {name: 100 * float(of_documents.mean()) for name, of_documents in scores.items()}
        return cls(chosen.kinds.model_copy(update={"scores": means}), calibration)


def _held_out(combiner: type[Combiner], validation: Validation, folds: int = FOLDS) -> np.ndarray:
    """Return nDCG@5 of each document by a combiner that was fitted on the others, float64 [N]."""
    labels, truth = out_of_fold(combiner, validation, CALIBRATED, folds).labels, validation.truth
    return ndcg_at(labels, truth.values, truth.offsets, MEASURED)


def _is_better(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether the quality of documents, float64 [N], is above another by more than a standard error."""
    return bool((one - other).mean() > standard_error(one - other))


def kind_weights(members: MemberWeights) -> dict[str, float]:
    """Return the sum of the members' shares of each kind, in the order of the members."""
    weights: dict[str, float] = {}
    for kind, share in zip(members.kinds, members.shares, strict=True):
        weights[kind] = weights.get(kind, 0.0) + share
    return weights


def weight_vectors(preset: dict[str, float]) -> list[dict[str, float]]:
    """Return vectors of weights of the kinds that add up to 1: the preset's, then a grid with each kind alone."""
    kinds, parts = len(preset), MOST_PARTS
    while parts > 1 and math.comb(parts + kinds - 1, kinds - 1) > MOST_VECTORS:
        parts -= 1
    vectors = [preset]
    # Each choice of K − 1 bars among n stars and bars divides n parts among K kinds.
    for bars in itertools.combinations(range(parts + kinds - 1), kinds - 1):
        stars = np.diff([-1, *bars, parts + kinds - 1]) - 1
        vectors.append(dict(zip(preset, (stars / parts).tolist(), strict=True)))
    return vectors


def choose(quality: np.ndarray) -> int:
    """Return the row of the greatest gain over row 0 less its standard error; 0 if none is above 0.

    `quality` (float64 [G, N]) is what each of G candidates is worth on each of N documents.
    """
    gains = quality - quality[0]
    return int(np.argmax(gains.mean(axis=1) - standard_error(gains))) if quality.shape[1] > 1 else 0


def standard_error(gains: np.ndarray) -> Any:
    """Return the standard error of the mean over the last axis, of N documents; infinite for too few of them."""
    documents = gains.shape[-1]
    return gains.std(axis=-1, ddof=1) / math.sqrt(documents) if documents >= MIN_DOCUMENTS else math.inf


def quality_of(vectors: Sequence[Mapping[str, float]], validation: Validation) -> np.ndarray:
    """Return nDCG@5 of each document by each vector of weights, float64 [G, N].

    Scores are calibrated by the coefficients of the first vector: a fit for each would take most of the time.
    """
    calibration = TopCalibration.fit(_reweighted(validation, vectors[0]), CALIBRATED)
    labels, scores = candidates(validation, list(vectors[0]))
    labels, scores = (
        np.pad(labels, ((0, 0), (0, MEASURED)), constant_values=-1),
        np.pad(scores, ((0, 0), (0, MEASURED), (0, 0))),
    )
    truth, quality = validation.truth, np.zeros((len(vectors), len(labels)))
    for row, vector in enumerate(vectors):
        mean = scores @ np.array(list(vector.values()), np.float32)
        points = np.where(mean > 0, -calibration.calibrate(labels, mean), np.float32(1))
        best = np.argpartition(points, MEASURED - 1, axis=1)[:, :MEASURED]
        best = np.take_along_axis(best, np.argsort(np.take_along_axis(points, best, 1), axis=1), 1)
        top = np.where(np.take_along_axis(mean, best, 1) > 0, np.take_along_axis(labels, best, 1), -1)
        quality[row] = ndcg_at(top, truth.values, truth.offsets, MEASURED)
    return quality


def candidates(validation: Validation, kinds: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the best labels of each document by any member, int32 [N, U], and their scores, float32 [N, U, K].

    The score by a kind is the mean of its members', 0 if none ranks the label; missing labels are -1.
    """
    members = validation.members
    total: defaultdict[str, float] = defaultdict(float)
    for kind, weight in zip(members.kinds, members.weights, strict=True):
        total[kind] += weight
    rankings = validation.rankings
    labels = np.concatenate([ranking.labels for ranking in rankings], axis=1)
    parts = zip(rankings, members.kinds, members.weights, strict=True)
    points = np.concatenate([np.float32(w / total[kind]) * ranking.scores for ranking, kind, w in parts], axis=1)
    kind_of = np.repeat(
        [kinds.index(kind) for kind in members.kinds], [ranking.labels.shape[1] for ranking in rankings]
    )
    order = np.argsort(labels, axis=1, kind="stable")
    labels, points, kind_of = np.take_along_axis(labels, order, 1), np.take_along_axis(points, order, 1), kind_of[order]
    # A label's scores are neighbours now; the first of them names the column into which all are added.
    column = np.cumsum(np.diff(labels, axis=1, prepend=-2) != 0, axis=1) - 1
    distinct = np.full((len(labels), int(column.max(initial=0)) + 1), -1, np.int32)
    np.put_along_axis(distinct, column, labels, axis=1)
    scores = np.zeros((*distinct.shape, len(kinds)), np.float32)
    np.add.at(scores, (np.arange(len(labels))[:, None], column, kind_of), points)
    return distinct, scores


def reweighted(members: MemberWeights, weights: Mapping[str, float]) -> MemberWeights:
    """Return the members with other weights of their kinds, which they divide as before; unchanged if all are 0."""
    total: defaultdict[str, float] = defaultdict(float)
    for kind, weight in zip(members.kinds, members.weights, strict=True):
        total[kind] += weight
    changed = [
        weights.get(kind, 0.0) * own / total[kind] for kind, own in zip(members.kinds, members.weights, strict=True)
    ]
    return MemberWeights(members.kinds, changed) if any(changed) else members


def _with_weight(members: MemberWeights, rankings: Sequence[TopK]) -> tuple[MemberWeights, list[TopK]]:
    """Return the members with a weight, and their rankings: the labels of the others are no candidates."""
    places = [place for place, weight in enumerate(members.weights) if weight > 0]
    kept = MemberWeights([members.kinds[place] for place in places], [members.weights[place] for place in places])
    return kept, [rankings[place] for place in places]


def _reweighted(validation: Validation, weights: Mapping[str, float]) -> Validation:
    members, rankings = _with_weight(reweighted(validation.members, weights), validation.rankings)
    return replace(validation, members=members, rankings=rankings)


def _cut(validation: Validation) -> Validation:
    """Return the validation documents with the best `CANDIDATES` labels of each member."""
    rankings = [TopK(*(array[:, :CANDIDATES] for array in ranking)) for ranking in validation.rankings]
    return replace(validation, rankings=rankings)
