"""Typed, validated settings of a run.

- There is one module and one frozen model per package that it configures. An unknown key is an error.
- Every path is absolute once loaded, because Ray changes the working directory of its workers. A relative path starts
  at the project's directory: `$AXML_RAY_HOME`, else the current directory. `make cluster` sets that variable, because a
  submitted job runs in a copy of the working directory. Stored settings have relative paths: a project can move.
- `fingerprint` identifies the settings that a result depends on. Resuming compares fingerprints and contents, never
  paths or file times.
"""

from axml_ray.settings.base import (
    NAME,
    SPLITS,
    AbsolutePath,
    Name,
    Positive,
    Precision,
    Seed,
    Settings,
    Share,
    Weights,
    at_level,
    fingerprint,
    stored,
)
from axml_ray.settings.conditions import LabelConditions
from axml_ray.settings.corpus import CorpusSettings, ExpectedCounts, ReadingSettings
from axml_ray.settings.ensemble import EnsembleSettings
from axml_ray.settings.evaluation import EvaluationSettings
from axml_ray.settings.experiment import Experiment, adapt, changed, register_member, with_choices
from axml_ray.settings.members import FeatureSettings, MemberSettings
from axml_ray.settings.network import NetworkSettings
from axml_ray.settings.resources import ResourceSettings
from axml_ray.settings.tracking import TrackingSettings
from axml_ray.settings.training import TrainingSettings
from axml_ray.settings.tree import TreeSettings
