"""Scores corrected by how frequent a label is. Not in the paper.

Networks and linear classifiers alike score labels of few training documents lower than they are worth. By how much is
read off the validation documents, by a logistic regression of whether a label is true,

    log-odds = intercept + (score + both · f) logit(s) + frequency · f,    f = ln(1 + n),

with s the mean score of the trees, taken as `LEAST` where it is less, and n the label's training documents. The labels
of a text change places by it; the texts of a label never do.

Shapes: N documents, k ranked labels a document, L labels.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from axml_ray.evaluation.predictions import Ranking
from axml_ray.evaluation.rankings import hits
from axml_ray.files import read_json, write_json
from axml_ray.settings import Settings

LEAST = 1e-6
"""Scores nearer to 0 or 1 than this are taken as so far from it."""
FORMAT = "axml-ray frequency correction"
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Coefficients(Settings):
    """Of the equation above."""

    intercept: Finite = 0.0
    score: Finite = 1.0
    both: Finite = 0.0
    frequency: Finite = 0.0


@dataclass(frozen=True, eq=False)
class FrequencyCorrection:
    """The correction of an ensemble's scores.

    Attributes:
        coefficients: fitted.
        counts: int [L], training documents of each label.
    """

    coefficients: Coefficients
    counts: np.ndarray

    @classmethod
    def fit(cls, ranking: Ranking, counts: np.ndarray, trees: int) -> "FrequencyCorrection":
        """From what an ensemble found, uncorrected, for documents whose labels are known.

        A coefficient with which a label's probability would fall as its score rises is left out; where there is nothing
        to tell true labels by, scores stay as they are.

        Args:
            ranking: of the documents.
            counts: int [L].
            trees: whose scores were summed.
        """
        from sklearn.linear_model import LogisticRegression  # slow to import, and only training fits

        true = hits(ranking.top, ranking.truth.values, ranking.truth.offsets)
        given = ranking.top >= 0
        f = np.log1p(counts)
        logits, of_label, is_true = logits_of(ranking.scores[given] / trees), f[ranking.top[given]], true[given]
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

    def scores(self, labels: np.ndarray, summed: np.ndarray, trees: int) -> np.ndarray:
        """The corrected scores, float32 of the shape of `summed`: probabilities times the number of trees.

        Args:
            labels: integer [k], or [N, k] with -1 for none, which scores 0.
            summed: float32 [N, k], sums of the trees' scores.
            trees: how many.
        """
        log_odds = self.log_odds(labels, summed / trees)
        corrected: np.ndarray = np.where(labels >= 0, trees / (1 + np.exp(-log_odds)), 0).astype(np.float32)
        return corrected

    def log_odds(self, labels: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """The equation's, float64 of the shape of `mean`, the mean scores of some labels (those below 0 are none)."""
        c, f = self.coefficients, np.log1p(self.counts[labels])
        found: np.ndarray = c.intercept + (c.score + c.both * f) * logits_of(mean) + c.frequency * f
        return found

    def ranked(self, found: tuple[np.ndarray, np.ndarray], trees: int) -> tuple[np.ndarray, np.ndarray]:
        """A ranking by corrected scores; what isn't there stays last.

        Args:
            found: label ids, int32 [N, k], -1 for none, and the summed scores, float32 [N, k].
            trees: whose scores were summed.
        """
        labels, summed = found
        scores = self.scores(labels, summed, trees)
        order = np.argsort(np.where(labels >= 0, -scores, 1), axis=1, kind="stable")
        return np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1)

    def save(self, path: Path, fingerprint: str) -> None:
        """Write the coefficients, with the fingerprint of what they depend on."""
        write_json(path, {"format": FORMAT, "fingerprint": fingerprint, **self.coefficients.model_dump()})

    @classmethod
    def load(cls, path: Path, fingerprint: str, counts: np.ndarray) -> "FrequencyCorrection | None":
        """What `save` wrote; None where there is nothing of this fingerprint."""
        try:
            content = read_json(path)
            if content.pop("format") != FORMAT or content.pop("fingerprint") != fingerprint:
                return None
            return cls(Coefficients(**content), counts)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def logits_of(scores: np.ndarray) -> np.ndarray:
    """Log-odds of probabilities, float64, finite also at 0 and 1."""
    inside = np.clip(scores.astype(np.float64), LEAST, 1 - LEAST)
    found: np.ndarray = np.log(inside / (1 - inside))
    return found
