"""The registry of trackers."""

import importlib
from pathlib import Path

from axml_ray.core.extras import require_extra
from axml_ray.settings import TrackingSettings
from axml_ray.tracking.tracker import Tracker

KINDS = {
    "tensorboard": "axml_ray.tracking.tensorboard_tracker:TensorBoardTracker",
    "mlflow": "axml_ray.tracking.mlflow_tracker:MlflowTracker",
    "wandb": "axml_ray.tracking.wandb_tracker:WandbTracker",
}
"""`module:Class` by the value of `tracking.tracker`; its further value `none` tracks nothing."""
CLIENTS = ("mlflow", "wandb")
"""Kinds that upload files, and need the package of their name from the extra `tracking`."""


def tracker_class(kind: str) -> type[Tracker]:
    """Import and return the class of a kind."""
    module, _, name = KINDS[kind].partition(":")
    implementation: type[Tracker] = getattr(importlib.import_module(module), name)
    return implementation


def check_installed(settings: TrackingSettings) -> None:
    """Check that the tracker's package is installed, before anything slow is started.

    Raises:
        SettingsError: it is not; the message has the command that installs it.
    """
    if settings.tracker in CLIENTS:
        require_extra("tracking", settings.tracker)


def with_address(settings: TrackingSettings, runs: Path) -> TrackingSettings:
    """Return the settings with the tracker's default address if they have none; `runs` is the directory of all runs."""
    if settings.uri is not None or settings.tracker == "none":
        return settings
    return settings.model_copy(update={"uri": tracker_class(settings.tracker).default_uri(runs)})
