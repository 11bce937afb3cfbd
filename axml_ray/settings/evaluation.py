"""Settings of the evaluation of a run (package `axml_ray.evaluation`)."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from axml_ray.settings.base import AbsolutePath, Positive, Seed, Settings


class EvaluationSettings(Settings):
    """Settings of the evaluation of a run; changing them never requires new training."""

    propensity_a: Annotated[float, Field(gt=0)] = 0.55
    """A of the propensity model; 0.6 for Amazon-670K and Amazon-3M, 0.5 for Wiki-500K."""
    propensity_b: Annotated[float, Field(gt=0)] = 1.5
    """B of the propensity model; 2.6 for Amazon-670K and Amazon-3M, 0.4 for Wiki-500K."""
    head_from: Positive = 100
    """Least number of training documents of a head label; metrics are also reported by frequency band."""
    torso_from: Positive = 10
    """Least number of training documents of a torso label; tail labels have fewer, but at least one."""
    filter_pairs: AbsolutePath | None = None
    """File of pairs that the evaluation of the test split leaves out of predictions and true labels, such as the
    Extreme Classification Repository's `filter_labels_test.txt`: lines of a document's number, counted from 0, a blank,
    and a label."""
    resamples: Annotated[int, Field(ge=20)] = 1_000
    """Bootstrap resamples of an interval or a test."""
    seed: Seed = 0
    """Seed of the resamples, and of the draw of documents that a report shows."""

    @model_validator(mode="after")
    def _bands_are_ordered(self) -> Self:
        if self.torso_from >= self.head_from:
            raise ValueError(
                f"evaluation.torso_from is {self.torso_from}, evaluation.head_from {self.head_from}; take a smaller "
                "torso_from"
            )
        return self
