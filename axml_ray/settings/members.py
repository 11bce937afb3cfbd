"""Settings of ensemble members, and the registry of their kinds.

A kind is one line of `KINDS`: its settings, and where its class is, which is imported when a member is fitted or
loaded. Kinds of other packages are registered by modules that the environment variable `AXML_RAY_PLUGINS` names,
separated by commas; every process of a job needs it. A bundle never names code: one with an unknown kind is refused.
"""

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, create_model, model_validator

from axml_ray.core.errors import SettingsError
from axml_ray.settings.base import NotNegative, Positive, Settings, Share, Stemmer, check_power_of_two

PLUGINS_VARIABLE = "AXML_RAY_PLUGINS"
_plugins_are_loaded = False
CombinerKind = Literal["mean", "calibrated", "weighted"]


class MemberSettings(Settings):
    """Base of the settings of every kind of member."""

    weight: Share = 0.0
    """Weight of the kind in the ensemble's scores, relative to those of the other kinds; 0 leaves the kind out. If
    each label tree has a member of the kind, they divide it equally."""


class NetworkTreeSettings(MemberSettings):
    """The paper's AttentionXML: one network per level of a label tree, configured by `tree`, `network` and
    `training`."""

    weight: Share = 1.0
    """Weight in the ensemble's scores, relative to those of the other kinds."""


class LinearTreeSettings(MemberSettings):
    """Not in the paper: linear classifiers of a label tree's nodes on TF-IDF features, as in Parabel."""

    cluster_size: Annotated[int, Field(ge=2)] | None = 512
    """Largest number of children, 2^c, rounded by a factor of up to 1.4, of a node in a tree of their own, clustered by
    the same features; null uses the networks' tree, which is as accurate, but slow if its first level has thousands of
    nodes. A flat tree stays flat."""
    cost: Annotated[float, Field(gt=0)] = 1.0
    """C of liblinear: the cost of misclassified training documents, relative to the norm of the weights."""
    flat: bool = Field(default=False, exclude_if=lambda value: not value)
    """One classifier for each label against all other documents (one-vs-all), without a tree: more accurate for some
    thousand labels, and slow for many."""

    @model_validator(mode="after")
    def _cluster_size_is_a_power_of_two(self) -> Self:
        if self.cluster_size is not None:
            check_power_of_two("members.linear_tree.cluster_size", self.cluster_size)
        return self


class KnnSettings(MemberSettings):
    """Not in the paper: k-nearest neighbours, the labels of the most similar training texts by TF-IDF features."""

    neighbours: Positive = 20
    """k: number of nearest training texts whose labels count."""


class LabelNamesSettings(MemberSettings):
    """Not in the paper: labels whose names occur in the text, scored with the precision of such matches in the
    training texts. In a corpus without names, the label itself serves as its name."""

    stemmer: Stemmer | None = "english"
    """Snowball stemmer for the words of names and texts, so that inflected forms match; null compares exact words."""


class FeatureSettings(Settings):
    """TF-IDF features of a text, shared by all members that use features."""

    lead_words: NotNegative = 0
    """Number of leading words of a text, for example its title, that count ten times."""
    prefix_letters: Positive | None = None
    """Also count longer words by their first letters, this number of them, so that inflected forms and compounds
    match."""
    lead_letters: Positive | None = None
    """Also count longer words among the first `lead_words` by each run of this number of letters, so that compounds
    with a common part match."""
    names_as_texts: bool = False
    """Add the readable name of each label as one training text of it. In a corpus without names, the label itself
    serves as its name."""

    @model_validator(mode="after")
    def _lead_letters_need_lead_words(self) -> Self:
        if self.lead_letters is not None and not self.lead_words:
            raise ValueError(
                "features.lead_letters: it applies to the first features.lead_words, which are 0; set both"
            )
        return self


@dataclass(frozen=True)
class Kind:
    """A kind of member: its settings, and `module:Class` of its implementation."""

    settings: type[MemberSettings]
    implementation: str

    def load(self) -> Any:
        """Import and return the class, a subclass of `axml_ray.members.member.Member`."""
        module, _, name = self.implementation.partition(":")
        return getattr(importlib.import_module(module), name)


KINDS: dict[str, Kind] = {
    "network_tree": Kind(NetworkTreeSettings, "axml_ray.members.network_tree:NetworkTree"),
    "linear_tree": Kind(LinearTreeSettings, "axml_ray.members.linear_tree:LinearTree"),
    "knn": Kind(KnnSettings, "axml_ray.members.knn:NearestNeighbours"),
    "label_names": Kind(LabelNamesSettings, "axml_ray.members.label_names:LabelNames"),
}


class _Members(Settings):
    """The ensemble's members by kind."""

    @model_validator(mode="after")
    def _a_weight_is_positive(self) -> Self:
        if not any(member.weight for _, member in self):
            raise ValueError("members: every weight is 0; give at least one kind a weight")
        return self

    @property
    def chosen(self) -> dict[str, MemberSettings]:
        """The settings of the kinds that have a weight."""
        return {kind: member for kind, member in self if member.weight}


def kinds() -> Mapping[str, Kind]:
    """Return all kinds, including those of plugins: the first call imports the modules that `AXML_RAY_PLUGINS` names.

    Importing this module does not import them, because plugins import much of the package.
    """
    global _plugins_are_loaded
    if not _plugins_are_loaded:
        _plugins_are_loaded = True
        for module in filter(None, os.environ.get(PLUGINS_VARIABLE, "").split(",")):
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise SettingsError(f"{PLUGINS_VARIABLE}: {module} cannot be imported: {error}") from None
    return KINDS


def members_model() -> type[_Members]:
    """Return the settings model with one group per registered kind."""
    fields: Any = {
        name: (kind.settings, Field(default=kind.settings(), description=kind.settings.__doc__))
        for name, kind in KINDS.items()
    }
    return create_model("MembersSettings", __base__=_Members, __doc__=_Members.__doc__, **fields)
