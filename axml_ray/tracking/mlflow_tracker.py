"""MLflow, through its client for servers and databases; the trials of a sweep are its nested runs."""

import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from axml_ray.settings import TrackingSettings
from axml_ray.tracking.tracker import Artifact, LevelMetrics, Outcome, RunIdentity, Tracker

BATCH = 100
"""Largest number of parameters that MLflow takes at once."""
SQLITE = "sqlite:///"
STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MlflowTracker(Tracker):
    """A run in MLflow."""

    def __init__(self, identity: RunIdentity, settings: TrackingSettings):
        from mlflow import MlflowClient

        # Its messages about a new database are lines of a migration each.
        logging.getLogger("alembic").setLevel(logging.WARNING)
        uri = f"{SQLITE}{settings.uri}" if isinstance(settings.uri, Path) else settings.uri
        self._client = MlflowClient(uri)
        self.id = self._resume(identity.known_id) or self._create(identity, settings, uri)
        self.address = f"{uri} · experiment {settings.project} · run {self.id}"

    def _resume(self, known_id: str | None) -> str | None:
        """Continue a tracked run; return None if there is none in this store, or it was deleted."""
        from mlflow.exceptions import MlflowException

        try:
            found = self._client.get_run(known_id) if known_id else None
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            found = None
        if found is None or found.info.lifecycle_stage != "active":
            return None
        self._client.update_run(known_id, status="RUNNING")
        return known_id

    def _create(self, identity: RunIdentity, settings: TrackingSettings, uri: str | None) -> str:
        """Create the run, and the experiment if it is new; return the run's id."""
        tags = {"mlflow.source.name": "axml-ray", "directory": str(identity.directory)}
        if identity.sweep:
            tags["sweep"] = identity.sweep
        if identity.sweep_id:
            tags["mlflow.parentRunId"] = identity.sweep_id
        created = self._client.create_run(self._experiment(settings, uri), tags=tags, run_name=identity.name)
        return str(created.info.run_id)

    def _experiment(self, settings: TrackingSettings, uri: str | None) -> str:
        """Return the id of the experiment; another process may create it at the same time."""
        from mlflow.exceptions import MlflowException

        if found := self._client.get_experiment_by_name(settings.project):
            return str(found.experiment_id)
        place = None
        if uri and uri.startswith(SQLITE):  # MLflow would put artifacts into the current directory
            database = Path(uri.removeprefix(SQLITE)).absolute()
            place = database.with_name(f"{database.stem}-artifacts").as_uri()
        try:
            return str(self._client.create_experiment(settings.project, place))
        except MlflowException:
            if found := self._client.get_experiment_by_name(settings.project):
                return str(found.experiment_id)
            raise

    def log_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Log parameters that are not logged yet: MLflow refuses to change one, as a resumed run may."""
        from mlflow.entities import Param

        before = self._client.get_run(self.id).data.params
        new = [Param(key, str(value)) for key, value in parameters.items() if key not in before]
        for start in range(0, len(new), BATCH):
            self._client.log_batch(self.id, params=new[start : start + BATCH])

    def log_level(self, metrics: LevelMetrics) -> None:
        """Log the metrics of a level by its steps."""
        values = {f"{metrics.group}/{name}": value for name, value in metrics.values.items()}
        self._log(values, metrics.step, metrics.time)

    def log_scores(self, scores: Mapping[str, float]) -> None:
        """Log the final metrics."""
        self._log(scores, 0, time.time())

    def _log(self, values: Mapping[str, float], step: int, when: float) -> None:
        from mlflow.entities import Metric

        stamp = round(1_000 * when)
        self._client.log_batch(
            self.id, metrics=[Metric(metric_name(name), value, stamp, step) for name, value in values.items()]
        )

    def log_artifact(self, kind: Artifact, path: Path) -> None:
        """Upload a file to the artifact directory of its kind, a directory below it under its own name."""
        if path.is_dir():
            self._client.log_artifacts(self.id, str(path), f"{kind}/{path.name}")
        else:
            self._client.log_artifact(self.id, str(path), kind)

    def close(self, outcome: Outcome) -> None:
        """End the run with MLflow's status."""
        self._client.set_terminated(self.id, STATUS[outcome])

    @classmethod
    def default_uri(cls, runs: Path) -> str | None:
        """Return `MLFLOW_TRACKING_URI`, or a SQLite database in the directory of all runs."""
        return os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{runs / 'mlflow.db'}"


def metric_name(name: str) -> str:
    """Return a name as MLflow takes it, which refuses `@`: `nDCG@5` is `nDCG_at_5`."""
    return re.sub(r"[^\w.\- :/]", "_", name.replace("@", "_at_"))
