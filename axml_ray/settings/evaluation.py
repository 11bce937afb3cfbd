"""Settings of the evaluation of a run (package `axml_ray.evaluation`)."""

from typing import Annotated

from pydantic import Field

from axml_ray.settings.base import AbsolutePath, Settings

Constant = Annotated[float, Field(gt=0)]


class EvaluationSettings(Settings):
    """Settings of the evaluation of a run; changing them never requires new training."""

    propensity: tuple[Constant, Constant] = (0.55, 1.5)
    """A and B of the propensity model; 0.6,2.6 for Amazon-670K and Amazon-3M, 0.5,0.4 for Wiki-500K."""
    filter_pairs: AbsolutePath | None = None
    """File of pairs that the evaluation of the test split leaves out of predictions and true labels, such as the
    Extreme Classification Repository's `filter_labels_test.txt`: lines of a document's number, counted from 0, a blank,
    and a label."""
