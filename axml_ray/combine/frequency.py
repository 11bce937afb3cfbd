"""Scores calibrated by how frequent a label is. Not in the paper.

Networks and linear classifiers alike score labels of few training documents lower than they are worth. By how much is
learned on the validation documents, by a logistic regression of whether a label is true,

    log-odds = intercept + (score + both · f) logit(s) + frequency · f,    f = ln(1 + n),

where s is the members' mean score, kept at least `LEAST` away from 0 and 1, and n the label's training documents. It
changes the order of a text's labels, never that of a label's texts.

Legend: N documents, k labels of each, L labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, ValidationError

from axml_ray.combine.combiner import Combiner, Mean, Validation, Weighted
from axml_ray.evaluation.rankings import hits
from axml_ray.files import read_json, write_json
from axml_ray.members.topk import TopK
from axml_ray.ragged import Ragged
from axml_ray.settings import Settings

LEAST = 1e-6
"""Scores nearer to 0 or 1 than this are moved to this distance."""
FILE, FORMAT = "frequency.json", "axml-ray frequency calibration"
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Coefficients(Settings):
    """Coefficients of the equation above; the default leaves scores as they are."""

    intercept: Finite = 0.0
    score: Finite = 1.0
    both: Finite = 0.0
    frequency: Finite = 0.0


@dataclass(frozen=True, eq=False)
class FrequencyCalibration(Combiner):
    """The weighted mean of the members' scores, calibrated.

    Attributes:
        coefficients: fitted.
        counts: int [L], training documents of each label.
    """

    coefficients: Coefficients
    counts: np.ndarray

    @classmethod
    def fit(cls, validation: Validation, k: int) -> "FrequencyCalibration":
        """Learn from the mean's best k labels of each validation document."""
        mean = Mean().rank(validation.members, validation.rankings, k)
        return cls.of(mean, validation.truth, validation.counts)

    @classmethod
    def of(cls, mean: TopK, truth: Ragged, counts: np.ndarray) -> "FrequencyCalibration":
        """Learn from rankings by the mean.

        A coefficient with which a label's probability would fall as its score rises is left out. Where all ranked
        labels are true, or none is, scores stay as they are.

        Args:
            mean: [N, k].
            truth: true label ids of the documents.
            counts: int [L].
        """
        from sklearn.linear_model import LogisticRegression  # slow to import, and only training fits

        true = hits(mean.labels, truth.values, truth.offsets)
        present = mean.labels >= 0
        f = np.log1p(counts)
        logits, of_label, is_true = logits_of(mean.scores[present]), f[mean.labels[present]], true[present]
        if is_true.any() and not is_true.all():
            for names in (("score", "frequency", "both"), ("score", "frequency")):
                columns = {"score": logits, "frequency": of_label, "both": logits * of_label}
                regression = LogisticRegression(max_iter=1_000)
                regression.fit(np.column_stack([columns[name] for name in names]), is_true)
                found = dict(zip(names, regression.coef_[0].tolist(), strict=True))
                coefficients = Coefficients(intercept=float(regression.intercept_[0]), **found)
                if (coefficients.score + coefficients.both * f[counts > 0] > 0).all():
                    return cls(coefficients, counts)
        return cls(Coefficients(), counts)

    def rank(self, members: Weighted, rankings: Sequence[TopK], k: int) -> TopK:
        """The mean's best k labels, in the order of their calibrated scores."""
        return self.reordered(Mean().rank(members, rankings, k))

    def reordered(self, mean: TopK) -> TopK:
        """A ranking by the mean, in the order of calibrated scores; missing labels stay last."""
        scores = self.calibrated(mean.labels, mean.scores)
        order = np.argsort(np.where(mean.labels >= 0, -scores, 1), axis=1, kind="stable")
        return TopK(np.take_along_axis(mean.labels, order, 1), np.take_along_axis(scores, order, 1))

    def score(self, members: Weighted, labels: np.ndarray, scores: Sequence[np.ndarray]) -> np.ndarray:
        """The calibrated mean."""
        return self.calibrated(labels, Mean().score(members, labels, scores))

    def calibrated(self, labels: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Calibrated scores, float32 of the shape of `mean`; 0 for labels below 0, which are none."""
        log_odds = self.log_odds(labels, mean)
        scores: np.ndarray = np.where(labels >= 0, 1 / (1 + np.exp(-log_odds)), 0).astype(np.float32)
        return scores

    def log_odds(self, labels: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """The equation's left side, float64 [N, k], for labels (integer [k] or [N, k]) with mean scores [N, k]."""
        c, f = self.coefficients, np.log1p(self.counts[labels])
        found: np.ndarray = c.intercept + (c.score + c.both * f) * logits_of(mean) + c.frequency * f
        return found

    def save(self, directory: Path) -> None:
        """Write the coefficients."""
        write_json(directory / FILE, {"format": FORMAT, **self.coefficients.model_dump()})

    @classmethod
    def load(cls, directory: Path, counts: np.ndarray) -> "FrequencyCalibration":
        """Open what `save` wrote.

        Raises:
            OSError, ValueError: the file is missing or broken.
        """
        path = directory / FILE
        content = read_json(path)
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(f"{path} holds no frequency calibration")
        try:
            return cls(Coefficients(**content), counts)
        except (ValidationError, TypeError) as error:
            raise ValueError(f"{path} holds no frequency calibration: {' '.join(str(error).split())}") from None


def logits_of(scores: np.ndarray) -> np.ndarray:
    """Log-odds of probabilities, float64, finite also at 0 and 1."""
    inside = np.clip(scores.astype(np.float64), LEAST, 1 - LEAST)
    found: np.ndarray = np.log(inside / (1 - inside))
    return found
