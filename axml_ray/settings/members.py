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

from axml_ray.settings.base import NotNegative, Positive, Settings, Share, Stemmer, check_power_of_two

PLUGINS_VARIABLE = "AXML_RAY_PLUGINS"
_plugins_are_loaded = False
CombinerKind = Literal["mean", "calibrated", "stacked"]


class MemberSettings(Settings):
    """Base of every kind's settings."""

    weight: Share = 0.0
    """Share of the kind in the ensemble's scores, relative to the other kinds' weights; 0 leaves the kind out. Where
    each label tree has a member of the kind, they divide it equally."""


class NetworkTreeSettings(MemberSettings):
    """AttentionXML (the paper's): a network for each level of a label tree. Settings are in `tree`, `network`, and
    `training`."""

    weight: Share = 1.0
    """Share in the ensemble's scores, relative to the other kinds' weights."""


class LinearTreeSettings(MemberSettings):
    """Not in the paper: linear classifiers of a label tree's nodes on TF-IDF features, as in Parabel."""

    cluster_size: Annotated[int, Field(ge=2)] | None = 512
    """About the most children of a node of their own tree, 2^c, clustered by the same features; null for the networks'
    tree, all of whose first nodes are told from each other on all documents: as good, and slow where they are
    thousands. A flat tree stays flat."""
    cost: Annotated[float, Field(gt=0)] = 1.0
    """C of liblinear: the cost of a training document on the wrong side, against the size of weights."""
    threshold: Annotated[float, Field(ge=0)] = 0.1
    """Weights nearer to zero than this are dropped."""

    @model_validator(mode="after")
    def _cluster_size_is_a_power_of_two(self) -> Self:
        if self.cluster_size is not None:
            check_power_of_two("members.linear_tree.cluster_size", self.cluster_size)
        return self


class KnnSettings(MemberSettings):
    """Not in the paper: the labels of the training texts that are most similar by TF-IDF features."""

    neighbours: Positive = 20
    """k: most similar training texts whose labels count."""


class LabelNamesSettings(MemberSettings):
    """Not in the paper: labels whose names occur in the text, each with the probability that it is then true, learned
    on the training texts. Where the corpus has no names, a label is its own and should be readable."""

    stemmer: Stemmer | None = "english"
    """Language of Snowball's stemmers, by which the words of names and texts are compared, so that plurals are found;
    null compares words as they are."""


class FeatureSettings(Settings):
    """TF-IDF features of a text, which all members that read features share."""

    lead_words: NotNegative = 0
    """First words of a text, where its title is, that count `lead_weight` times."""
    lead_weight: Annotated[float, Field(ge=1)] = 10.0
    """How many times each of the first `lead_words` counts."""
    prefix_letters: Positive | None = None
    """Longer words count by this many first letters too, which brings inflected and compound words together."""
    lead_letters: Positive | None = None
    """Longer words among the first `lead_words` count by each run of this many letters too, which brings compounds
    together that share a part."""
    names_as_texts: bool = False
    """The readable name of each label is one more training text of it. Where the corpus has no names, a label is its
    own and should be readable."""

    @model_validator(mode="after")
    def _runs_are_of_lead_words(self) -> Self:
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
        """The class, a subclass of `axml_ray.members.member.Member`."""
        module, _, name = self.implementation.partition(":")
        return getattr(importlib.import_module(module), name)


KINDS: dict[str, Kind] = {
    "network_tree": Kind(NetworkTreeSettings, "axml_ray.members.network_tree:NetworkTree"),
    "linear_tree": Kind(LinearTreeSettings, "axml_ray.members.linear_tree:LinearTree"),
    "knn": Kind(KnnSettings, "axml_ray.members.knn:NearestNeighbours"),
    "label_names": Kind(LabelNamesSettings, "axml_ray.members.label_names:LabelNames"),
}


class _Members(Settings):
    """The members of the ensemble, by kind."""

    @model_validator(mode="after")
    def _someone_counts(self) -> Self:
        if not any(own.weight for _, own in self):
            raise ValueError("members: every weight is 0; give at least one kind a weight")
        return self

    @property
    def chosen(self) -> dict[str, MemberSettings]:
        """The settings of the kinds that have a weight."""
        return {kind: own for kind, own in self if own.weight}


def kinds() -> Mapping[str, Kind]:
    """All kinds, those of plugins included: modules that `AXML_RAY_PLUGINS` names are imported at the first call.

    Not when this module is imported, since plugins import much of the package.
    """
    global _plugins_are_loaded
    if not _plugins_are_loaded:
        _plugins_are_loaded = True
        for module in filter(None, os.environ.get(PLUGINS_VARIABLE, "").split(",")):
            importlib.import_module(module)
    return KINDS


def members_model() -> type[_Members]:
    """The settings of all registered kinds: one group each."""
    fields: Any = {
        name: (kind.settings, Field(default=kind.settings(), description=kind.settings.__doc__))
        for name, kind in KINDS.items()
    }
    return create_model("MembersSettings", __base__=_Members, __doc__=_Members.__doc__, **fields)
