"""Typed, validated settings of a run.

- There is one module and one frozen model per package that it configures. An unknown key is an error.
- Every path is absolute once loaded, because Ray changes the working directory of its workers. A relative path starts
  at `$AXML_RAY_HOME`, else at the current directory. `make cluster` sets that variable, because a submitted job runs in
  a copy of the working directory.
- `fingerprint` identifies the settings that a result depends on. Resuming compares fingerprints, never file times.
"""

from axml_ray.settings.base import (
    HOME_VARIABLE,
    NAME,
    SPLITS,
    AbsolutePath,
    AbsolutePlace,
    JobError,
    LabelFeatures,
    Name,
    NotNegative,
    Positive,
    Precision,
    Seed,
    Settings,
    SettingsError,
    Share,
    Stemmer,
    Weights,
    absolute,
    absolute_place,
    at_level,
    fingerprint,
)
from axml_ray.settings.conditions import LabelConditions
from axml_ray.settings.corpus import CorpusSettings, ExpectedCounts
from axml_ray.settings.ensemble import EnsembleSettings
from axml_ray.settings.evaluation import EvaluationSettings
from axml_ray.settings.experiment import Experiment, adapt, changed, register_member
from axml_ray.settings.members import FeatureSettings, MemberSettings
from axml_ray.settings.network import NetworkSettings
from axml_ray.settings.resources import ResourceSettings
from axml_ray.settings.tracking import TrackingSettings
from axml_ray.settings.training import TrainingSettings
from axml_ray.settings.tree import TreeSettings

__all__ = [
    "HOME_VARIABLE",
    "NAME",
    "SPLITS",
    "AbsolutePath",
    "AbsolutePlace",
    "CorpusSettings",
    "EnsembleSettings",
    "EvaluationSettings",
    "ExpectedCounts",
    "Experiment",
    "FeatureSettings",
    "JobError",
    "LabelConditions",
    "LabelFeatures",
    "MemberSettings",
    "Name",
    "NetworkSettings",
    "NotNegative",
    "Positive",
    "Precision",
    "ResourceSettings",
    "Seed",
    "Settings",
    "SettingsError",
    "Share",
    "Stemmer",
    "TrackingSettings",
    "TrainingSettings",
    "TreeSettings",
    "Weights",
    "absolute",
    "absolute_place",
    "adapt",
    "at_level",
    "changed",
    "fingerprint",
    "register_member",
]
