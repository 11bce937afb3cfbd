"""Settings of the label tree (package `axml_ray.tree`)."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from axml_ray.settings.base import Positive, Settings, check_power_of_two


class TreeSettings(Settings):
    """The shallow and wide label tree (paper, "Building Shallow and Wide PLT")."""

    height: Annotated[int, Field(ge=0)] = 1
    """H: levels between the root and the leaf level; 0 is the paper's network without a tree."""
    cluster_size: Annotated[int, Field(ge=2)] = 16
    """K = M = 2^c: largest number of children of an inner node."""
    beam: Positive = 40
    """C: beam width, the nodes of a level whose children are scored on the next."""
    kind: Literal["balanced", "random"] = "balanced"
    """Compressed balanced 2-means of TF-IDF centroids (the paper); or random clusters of the same sizes, a control."""

    @model_validator(mode="after")
    def _power_of_two(self) -> Self:
        check_power_of_two("tree.cluster_size", self.cluster_size)
        return self
