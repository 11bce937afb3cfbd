"""The registry of trackers."""

import importlib
from dataclasses import dataclass
from pathlib import Path

from axml_ray.core.extras import require_extra
from axml_ray.settings import TrackingSettings
from axml_ray.tracking.tracker import Tracker


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of tracker."""

    implementation: str
    """`module:Class`, a subclass of `Tracker`."""
    package: str | None = None
    """Package of the extra `tracking` that it needs."""
    takes_artifacts: bool = True
    """Whether files can be uploaded."""

    def load(self) -> type[Tracker]:
        """Import and return the class."""
        module, _, name = self.implementation.partition(":")
        implementation: type[Tracker] = getattr(importlib.import_module(module), name)
        return implementation


KINDS = {
    "tensorboard": Kind("axml_ray.tracking.tensorboard_tracker:TensorBoardTracker", takes_artifacts=False),
    "mlflow": Kind("axml_ray.tracking.mlflow_tracker:MlflowTracker", "mlflow"),
    "wandb": Kind("axml_ray.tracking.wandb_tracker:WandbTracker", "wandb"),
}
"""Kinds by the value of `tracking.tracker`; its further value `none` tracks nothing."""


def check_installed(settings: TrackingSettings) -> None:
    """Check that the tracker's package is installed, before anything slow is started.

    Raises:
        SettingsError: it is not; the message has the command that installs it.
    """
    kind = KINDS.get(settings.tracker)
    if kind is not None and kind.package is not None:
        require_extra("tracking", kind.package)


def with_address(settings: TrackingSettings, runs: Path) -> TrackingSettings:
    """Return the settings with the tracker's default address if they have none.

    Args:
        settings: the settings.
        runs: directory of all runs.
    """
    if settings.uri is not None or settings.tracker == "none":
        return settings
    return settings.model_copy(update={"uri": KINDS[settings.tracker].load().default_uri(runs)})
