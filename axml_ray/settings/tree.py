"""Settings of the label tree (package `axml_ray.tree`)."""

import hashlib
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from axml_ray.core.errors import SettingsError
from axml_ray.settings.base import AbsolutePath, LabelFeatures, Positive, Settings, check_power_of_two


class TreeSettings(Settings):
    """The shallow and wide label tree (paper, "Building Shallow and Wide PLT")."""

    height: Annotated[int, Field(ge=0)] = 1
    """H: levels between the root and the leaf level; 0 is the paper's network without a tree."""
    cluster_size: Annotated[int, Field(ge=2)] = 16
    """K = M = 2^c: largest number of children of an inner node."""
    beam: Positive = 40
    """C: beam width, the nodes of a level whose children are scored on the next."""
    kind: Literal["balanced", "kmeans", "hierarchy", "random"] = "balanced"
    """Compressed balanced 2-means (the paper); unbalanced K-way k-means (Bonsai); a given hierarchy; random
    clusters."""
    features: LabelFeatures = "tfidf"
    """Features that labels are clustered by: TF-IDF centroids (the paper), their word vectors, or the labels' names."""
    hierarchy: AbsolutePath | None = None
    """For `kind: hierarchy`: a file with lines of label, tab, parent; labels as they are written in the corpus."""

    @model_validator(mode="after")
    def _hierarchy_has_a_file(self) -> Self:
        if self.kind == "hierarchy" and self.hierarchy is None:
            raise ValueError("tree.hierarchy: give a file of label, tab, parent for kind hierarchy")
        if self.kind != "hierarchy" and self.hierarchy is not None:
            raise ValueError(f"tree.hierarchy: is read for kind hierarchy only, kind is {self.kind}; leave it out")
        return self

    @property
    def is_flat(self) -> bool:
        """Return whether trees have no clusters: the height is 0, and no hierarchy is given."""
        return not self.height and self.hierarchy is None

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that determine a tree, with the hash of the hierarchy file's content instead of its path.

        Raises:
            SettingsError: the hierarchy file cannot be read.
        """
        content: str | None = None
        if self.hierarchy is not None:
            try:
                content = hashlib.sha256(self.hierarchy.read_bytes()).hexdigest()
            except OSError as error:
                raise SettingsError(f"tree.hierarchy: {self.hierarchy} cannot be read ({error.strerror})") from None
        return {**self.model_dump(mode="json"), "hierarchy": content}

    @model_validator(mode="after")
    def _power_of_two(self) -> Self:
        check_power_of_two("tree.cluster_size", self.cluster_size)
        return self
