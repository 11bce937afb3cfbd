"""Checkpoints of a level that is being trained, so that a killed worker or a restarted job loses minutes.

A checkpoint holds weights, Adam moments, running average, best weights and the counters of `TrainState`. Random draws
derive from seed, step and document alone, so the step number is all of the random state.
"""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from torch import Tensor

from axml_ray.core.errors import JobError
from axml_ray.core.files import remove_directory, save_tensors
from axml_ray.network.level_network import TABLE
from axml_ray.network.optimization.weight_average import store_like
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level_files import MODEL, check_rows, load_rows, read_manifest, save_rows, write_together

if TYPE_CHECKING:
    from axml_ray.training.level import LevelTraining

FORMAT, MANIFEST = "axml-ray checkpoint", "checkpoint.json"


@dataclass
class TrainState:
    """The counters of a level's training; they also determine the random state, which derives from seed and step."""

    epoch: int = 0
    """Epochs that are complete."""
    batch: int = 0
    """Batches of the current epoch that are complete."""
    step: int = 0
    """Optimizer steps so far."""
    documents: int = 0
    """Training documents seen so far, each counted as often as it was seen."""
    best_score: float = -1.0
    """Best nDCG@5 on validation in percent; negative before the first evaluation."""
    best_step: int = 0
    """Step of the best evaluation."""
    first_loss: float = 0.0
    """Mean loss of the first ten steps."""
    seconds: float = 0.0
    """Training time so far, over all starts."""
    recent: list[float] = field(default_factory=list)
    """Losses of the last steps."""


class Checkpoints:
    """Saves and restores the training state of one level; only the newest checkpoint is kept.

    Args:
        directory: directory of the newest checkpoint; it need not exist.
        key: cache key of the level; a checkpoint with another key is ignored.
        seconds: least time between two checkpoints, in seconds.
    """

    def __init__(self, directory: Path, key: str, seconds: float):
        self.directory, self.key, self.seconds = directory, key, seconds
        self._last = time.monotonic()

    def save(self, training: "LevelTraining") -> None:
        """Write a checkpoint if the last one is old enough; all workers call this after the same step."""
        context = training.context
        # Clocks differ between workers, and either all or none must write, so rank 0 decides.
        if not context.agree(time.monotonic() - self._last >= self.seconds):
            return
        manifest = {
            "format": FORMAT,
            "fingerprint": self.key,
            "position": asdict(training.state),
            "snapshots": training.average.snapshots,
            "norms": [str(norm) for norm in training.clip.norms.tolist()],  # JSON has no infinity
            "loss_scale": None if training.loss_scale is None else training.loss_scale.state(),
            "optimizer_steps": {name: int(state["step"]) for name, state in _optimizer_states(training).items()},
        }
        with write_together(self.directory, context, MANIFEST, manifest) as work:
            tensors = {name: _tensors(training, name) for name in training.parameters}
            save_rows(work, tensors.pop(TABLE), context.shard)
            check_rows(work, context)
            if context.is_first:
                flat = {f"{name}|{state}": value for name, states in tensors.items() for state, value in states.items()}
                save_tensors({name: value.detach().contiguous() for name, value in flat.items()}, work / MODEL)
        self._last = time.monotonic()

    @torch.no_grad()
    def resume(self, training: "LevelTraining") -> bool:
        """Restore the training state from the checkpoint, if there is a complete one with the same key.

        Returns:
            Whether the state was restored.

        Raises:
            JobError: rank 0 sees a complete checkpoint and this worker does not.
        """
        manifest = read_manifest(self.directory, MANIFEST, FORMAT, self.key)
        # On a network file system, files may reach other workers later, and all must do the same: rank 0 decides.
        if not training.context.agree(manifest is not None):
            return False
        if manifest is None:
            raise JobError(
                f"{self.directory}: rank 0 sees a complete checkpoint, this worker does not; check that all workers "
                "share the run's directory, and start the job again"
            )
        training.state = TrainState(**manifest["position"])
        training.clip.norms = torch.tensor([float(norm) for norm in manifest["norms"]])
        if training.loss_scale is not None and manifest.get("loss_scale"):
            training.loss_scale.restore(manifest["loss_scale"])
        training.average.snapshots = manifest["snapshots"]
        shard, written_by = training.context.shard, manifest["workers"]
        with safe_open(self.directory / MODEL, "pt") as file:
            names = set(file.keys())
            for name in training.parameters:
                self._allocate(training, name, manifest["optimizer_steps"].get(name))
                for state, value in _tensors(training, name).items():
                    if name == TABLE:
                        load_rows(self.directory, state, value, written_by, shard)
                    elif f"{name}|{state}" in names:
                        value.copy_(file.get_tensor(f"{name}|{state}"))
        return True

    @staticmethod
    def _allocate(training: "LevelTraining", name: str, optimizer_step: int | None) -> None:
        """Allocate the tensors of a parameter that the checkpoint will fill; no moments without an optimizer step."""
        parameter = training.parameters[name]
        if optimizer_step is not None:
            state = training.optimizer.state[parameter]
            state["step"] = torch.tensor(float(optimizer_step), device=parameter.device)
            state["first"], state["second"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        if training.average.snapshots:
            training.average.mean[name] = store_like(parameter)
        if training.state.best_score >= 0:
            training.best[name] = store_like(parameter)

    def drop(self, context: DistributedContext) -> None:
        """Remove the checkpoint of a level whose training is complete."""
        if context.is_first:
            remove_directory(self.directory)


def _optimizer_states(training: "LevelTraining") -> dict[str, dict[str, Tensor]]:
    """Return the optimizer's state of each parameter that has been updated, by name."""
    states = {name: training.optimizer.state[parameter] for name, parameter in training.parameters.items()}
    return {name: state for name, state in states.items() if state}


def _tensors(training: "LevelTraining", name: str) -> dict[str, Tensor]:
    """Return a parameter and all tensors of its shape: moments, running mean and best weights, where they exist."""
    parameter = training.parameters[name]
    state = training.optimizer.state[parameter]
    tensors = {"weight": parameter, **{key: state[key] for key in ("first", "second") if key in state}}
    if name in training.average.mean:
        tensors["mean"] = training.average.mean[name]
    if name in training.best:
        tensors["best"] = training.best[name]
    return tensors
