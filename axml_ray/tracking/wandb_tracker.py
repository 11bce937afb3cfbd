"""Weights & Biases; the trials of a sweep are one group. `WANDB_MODE=offline` keeps files for `wandb sync`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from axml_ray.settings import TrackingSettings
from axml_ray.tracking.tracker import Artifact, LevelMetrics, Outcome, RunIdentity, Tracker

LOGIN_SECONDS = 20.0
"""How long wandb waits for an answer, if it asks for one."""
FINISH_SECONDS = 600.0
"""Longest wait for uploads at the end of a run; without a limit, a server that is gone would keep the job waiting."""


class WandbTracker(Tracker):
    """A run in Weights & Biases."""

    def __init__(self, identity: RunIdentity, settings: TrackingSettings):
        import wandb

        # In a terminal, wandb asks someone without an account what to do, and without an answer tracks nothing.
        is_online = wandb.setup(wandb.Settings(login_timeout=LOGIN_SECONDS)).settings.mode == "online"
        entity, _, project = settings.project.rpartition("/")
        address = {} if settings.uri is None else {"base_url": str(settings.uri)}
        self._run = wandb.init(
            entity=entity or None,
            project=project,
            name=identity.name,
            group=identity.sweep,
            job_type=identity.job,
            id=identity.known_id,
            resume="allow",
            dir=identity.directory,
            reinit="create_new",  # a notebook may have a run of its own
            settings=wandb.Settings(console="off", silent=True, finish_timeout=FINISH_SECONDS, **address),
        )
        if self._run.disabled:
            raise RuntimeError("not logged in; run: wandb login, or set WANDB_API_KEY, or WANDB_MODE=offline")
        self.id, self.address = self._run.id, str(self._run.url if is_online else self._run.dir)
        self._name = identity.name
        self._groups: set[str] = set()

    def log_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Log parameters as the run's config."""
        self._run.config.update(dict(parameters), allow_val_change=True)

    def log_level(self, metrics: LevelMetrics) -> None:
        """Log the metrics of a level, drawn over the level's own steps."""
        group = metrics.group
        if group not in self._groups:
            self._run.define_metric(f"{group}/*", step_metric=f"{group}/step")
            self._groups.add(group)
        self._run.log({f"{group}/{name}": value for name, value in {**metrics.values, "step": metrics.step}.items()})

    def log_scores(self, scores: Mapping[str, float]) -> None:
        """Log the final metrics as the run's summary."""
        self._run.summary.update(dict(scores))

    def log_artifact(self, kind: Artifact, path: Path) -> None:
        """Upload a file as an artifact of its kind."""
        import wandb

        artifact = wandb.Artifact(f"{self._name}-{kind}", kind)
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def close(self, outcome: Outcome) -> None:
        """Wait for uploads, and end the run."""
        self._run.summary["outcome"] = outcome
        self._run.finish(exit_code=int(outcome == "failed"))
