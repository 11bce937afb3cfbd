"""Settings of the ensemble: how many label trees, and how scores are combined (package `axml_ray.ensemble`)."""

from typing import Annotated

from pydantic import Field

from axml_ray.settings.base import Positive, Settings
from axml_ray.settings.members import CombinerKind


class EnsembleSettings(Settings):
    """The number of label trees, and how the members' scores are combined."""

    trees: Positive = 3
    """Number of label trees, each clustered and trained with its own seed."""
    top_labels: Annotated[int, Field(ge=5)] = 100
    """Number of labels that each member returns for the combiner; a label that a member does not return counts 0."""
    combiner: CombinerKind = "mean"
    """How the members' scores become the ensemble's: their weighted mean (the paper) or, not in the paper, that mean
    calibrated by label frequency on the validation documents (`calibrated`), before which the weights of the kinds of
    members may be fitted on the same documents (`weighted`, which starts from the given weights)."""
