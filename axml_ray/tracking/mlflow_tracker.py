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
        if identity.known_id and self._is_active(identity.known_id):
            self.id = identity.known_id
            self._client.update_run(self.id, status="RUNNING")
        else:
            tags = {"mlflow.source.name": "axml-ray", "directory": str(identity.directory)}
            optional = {"sweep": identity.sweep, "mlflow.parentRunId": identity.sweep_id}
            tags |= {name: value for name, value in optional.items() if value}
            experiment = self._experiment(settings, uri)
            self.id = str(self._client.create_run(experiment, tags=tags, run_name=identity.name).info.run_id)
        shown = re.sub(r"//[^/]*@", "//…@", str(uri))
        self.address = f"{shown} · experiment {settings.project} · run {self.id}"

    def _is_active(self, known_id: str) -> bool:
        """Return whether a tracked run is in this store and was not deleted."""
        from mlflow.exceptions import MlflowException

        try:
            return bool(self._client.get_run(known_id).info.lifecycle_stage == "active")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False

    def _experiment(self, settings: TrackingSettings, uri: str | None) -> str:
        """Return the id of the experiment, which is created if it is new."""
        from mlflow.exceptions import MlflowException

        place = None
        if uri and uri.startswith(SQLITE):  # MLflow would put artifacts into the current directory
            database = Path(uri.removeprefix(SQLITE)).absolute()
            place = database.with_name(f"{database.stem}-artifacts").as_uri()
        experiment = self._client.get_experiment_by_name(settings.project)
        if experiment is None:
            try:
                return str(self._client.create_experiment(settings.project, place))
            except MlflowException:
                experiment = self._client.get_experiment_by_name(settings.project)
                if experiment is None:  # otherwise another process has just created it
                    raise
        return str(experiment.experiment_id)

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
        """Upload a file to the artifact directory of its kind."""
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
