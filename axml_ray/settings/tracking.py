"""Settings of experiment tracking (package `axml_ray.tracking`)."""

from typing import Annotated, Literal

from pydantic import Field

from axml_ray.settings.base import AbsolutePlace, Settings


class TrackingSettings(Settings):
    """Settings of the tracker that parameters, metrics and artifacts of a run are logged to. No result depends on it,
    so that a run can go on with another tracker."""

    tracker: Literal["tensorboard", "mlflow", "wandb", "none"] = "tensorboard"
    """Where a run is logged: TensorBoard files in its directory, MLflow, Weights & Biases, or nowhere."""
    project: Annotated[str, Field(pattern=r"\S")] = "axml-ray"
    """MLflow's experiment, or the project of Weights & Biases, there also as `team/project`."""
    uri: AbsolutePlace | None = None
    """Address of the tracking server, or for MLflow also the file of an SQLite database. By default that of the
    environment (`MLFLOW_TRACKING_URI`, `WANDB_BASE_URL`); without one, MLflow writes to `mlflow.db` and
    `mlflow-artifacts` in the directory of all runs. Passwords belong in the environment, since runs store their
    settings."""
