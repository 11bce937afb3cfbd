"""Frequency calibration: scores calibrated by the label's number of training documents. Not in the paper.

Networks and linear classifiers alike score labels with few training documents too low. By how much is estimated on the
validation documents, by a logistic regression of whether a ranked label is true,

    log-odds = intercept + (score + both · f) logit(s) + frequency · f,    f = ln(1 + n),

where s is the members' mean score, clipped to [`MARGIN`, 1 − `MARGIN`], and n the label's number of training documents.
Calibration may reorder the labels of a document, but for one label it never reorders the documents.

Legend: N documents, k ranked labels per document, L labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, ValidationError

from axml_ray.core.files import read_json, write_json
from axml_ray.core.topk import TopK
from axml_ray.ensemble.combiner import Combiner, Mean, MemberWeights, Validation
from axml_ray.evaluation.metrics.rankings import hits
from axml_ray.settings import Settings

MARGIN = 1e-6
"""Scores are clipped to at least this distance from 0 and 1, where the logit is infinite."""
FILE, FORMAT = "frequency.json", "axml-ray frequency calibration"
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Coefficients(Settings):
    """Coefficients of the module's equation; the defaults leave scores unchanged."""

    intercept: Finite = 0.0
    score: Finite = 1.0
    both: Finite = 0.0
    frequency: Finite = 0.0


@dataclass(frozen=True, eq=False)
class FrequencyCalibration(Combiner):
    """The weighted mean of the members' scores, calibrated by label frequency.

    Attributes:
        coefficients: fitted coefficients.
        counts: int [L], training documents of each label.
    """

    coefficients: Coefficients
    counts: np.ndarray

    solver: ClassVar[str] = "lbfgs"
    """Solver of the regression, as scikit-learn names it."""

    @classmethod
    def fit(cls, validation: Validation, k: int) -> Self:
        """Fit on the top k labels by the mean of each validation document.

        If a label's probability would fall with a rising score, the coefficient `both` is left out; if it still would,
        or if all or none of the ranked labels are true, scores are left unchanged.
        """
        from sklearn.linear_model import LogisticRegression  # slow to import, and needed only here

        mean, counts = Mean().rank(validation.members, validation.rankings, k), validation.counts
        is_ranked = mean.labels >= 0
        is_true = hits(mean.labels, validation.truth.values, validation.truth.offsets)[is_ranked]
        f_of_counts = np.log1p(counts)
        logits, f = logit(mean.scores[is_ranked]), f_of_counts[mean.labels[is_ranked]]
        if is_true.any() and not is_true.all():
            for names in (("score", "frequency", "both"), ("score", "frequency")):
                columns = {"score": logits, "frequency": f, "both": logits * f}
                regression = LogisticRegression(solver=cls.solver, max_iter=1_000)
                regression.fit(np.column_stack([columns[name] for name in names]), is_true)
                slopes = dict(zip(names, regression.coef_[0].tolist(), strict=True))
                coefficients = Coefficients(intercept=float(regression.intercept_[0]), **slopes)
                if (coefficients.score + coefficients.both * f_of_counts[counts > 0] > 0).all():
                    return cls(coefficients, counts)
        return cls(Coefficients(), counts)

    def rank(self, members: MemberWeights, rankings: Sequence[TopK], k: int) -> TopK:
        """Rank the top k labels by the mean in the order of their calibrated scores; padding stays last."""
        labels, mean = Mean().rank(members, rankings, k)
        scores = self.calibrate(labels, mean)
        order = np.argsort(np.where(labels >= 0, -scores, 1), axis=1, kind="stable")
        return TopK(np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1))

    def score(self, members: MemberWeights, labels: np.ndarray, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Compute the calibrated mean of the members' scores."""
        return self.calibrate(labels, Mean().score(members, labels, scores))

    def calibrate(self, labels: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Compute the module's equation for labels [k] or [N, k] of mean scores, float32 [N, k]; 0 for label -1."""
        c, f = self.coefficients, np.log1p(self.counts[labels])
        log_odds = c.intercept + (c.score + c.both * f) * logit(mean) + c.frequency * f
        scores: np.ndarray = np.where(labels >= 0, 1 / (1 + np.exp(-log_odds)), 0).astype(np.float32)
        return scores

    def save(self, directory: Path) -> None:
        """Write the coefficients."""
        write_json(directory / FILE, {"format": FORMAT, **self.coefficients.model_dump()})

    @classmethod
    def load(cls, directory: Path, counts: np.ndarray) -> Self:
        """Load what `save` wrote; an OSError or ValueError if the file is missing or broken."""
        path = directory / FILE
        content = read_json(path)
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(f"{path} is not a frequency calibration")
        try:
            return cls(Coefficients(**content), counts)
        except (ValidationError, TypeError) as error:
            raise ValueError(f"{path} is not a frequency calibration: {' '.join(str(error).split())}") from None


def logit(scores: np.ndarray) -> np.ndarray:
    """Compute ln(s / (1 − s)) of clipped scores, float64."""
    clipped = np.clip(scores.astype(np.float64), MARGIN, 1 - MARGIN)
    logits: np.ndarray = np.log(clipped / (1 - clipped))
    return logits
