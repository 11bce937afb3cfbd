"""Checkpoints of a level that is being trained, so that a killed worker or a restarted job loses minutes.

A checkpoint holds weights, Adam moments, running average, best weights and the counters of `TrainState`. Random draws
derive from seed, step and document alone, so the step number is all of the random state.

Each worker writes its files to the local disk, which is all that training waits for. They are copied to the run's
directory in the background: by a thread, or by Ray Train if it runs the workers (`WorkerGroup`). A checkpoint counts
when the files of all workers are there, as its manifest lists them, and any number of workers can resume from it.
"""

import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from axml_ray.core import storage
from axml_ray.core.errors import JobError
from axml_ray.core.files import copy_files, remove_directory, save_tensors, scratch_directory
from axml_ray.network.level_network import TABLE
from axml_ray.network.optimization.weight_average import store_like
from axml_ray.settings import fingerprint
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level_files import (
    MODEL,
    ROWS,
    check_rows,
    load_rows,
    read_manifest,
    row_sizes,
    save_rows,
    write_manifest,
    write_together,
)

if TYPE_CHECKING:
    from axml_ray.training.level import LevelTraining

FORMAT, MANIFEST = "axml-ray checkpoint", "checkpoint.json"
OF_GROUPS = "checkpoint_"
"""How the names of the directories begin in which Ray Train stores checkpoints, below that of a member's group."""
NOTICE_STEPS = 10
"""Steps between two checks for a preemption notice, at which all workers wait for each other."""


class WorkerGroup(Protocol):
    """The group of Ray Train that runs the workers, stores their checkpoints, and announces preemptions."""

    @property
    def is_storing(self) -> bool:
        """Return whether the last checkpoint of this worker is still being copied."""

    def store(self, files: Path, metrics: dict[str, Any], done: Callable[[], None]) -> None:
        """Copy this worker's files of a checkpoint in the background, then call `done`; all workers call this."""

    def is_preempted(self) -> bool:
        """Return whether a node of the group is about to be taken away; all workers call this."""

    def wait_for_restart(self) -> None:
        """Wait until this process is ended with its group, which is started again on the nodes that are left."""


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
        group: the group of Ray Train that runs the workers, if one does.
    """

    def __init__(self, directory: Path, key: str, seconds: float, group: WorkerGroup | None = None):
        self.directory, self.key, self.seconds, self.group = directory, key, seconds, group
        self._last = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._copy: Future[None] | None = None

    @property
    def _is_storing(self) -> bool:
        """Return whether the last checkpoint is still being copied; raise the error of a copy that failed."""
        if self.group is not None:
            return self.group.is_storing
        if self._copy is None or not self._copy.done():
            return self._copy is not None
        self._copy.result()
        return False

    def save(self, training: "LevelTraining") -> None:
        """Write a checkpoint if the last one is old enough and stored; all workers call this after the same step."""
        context = training.context
        # Clocks differ between workers, and either all or none must write, so rank 0 decides whether it is time.
        is_due = context.is_first and time.monotonic() - self._last >= self.seconds
        due, storing = context.sum(torch.tensor([float(is_due), float(self._is_storing)])).tolist()
        if due and not storing:
            self.write(training)

    def save_before_preemption(self, training: "LevelTraining") -> None:
        """Write a checkpoint if a node is about to be taken away, and wait for that; all workers call this each step.

        What would be trained until then would have to be repeated.
        """
        if self.group is not None and training.state.step % NOTICE_STEPS == 0 and self.group.is_preempted():
            training.read_losses()
            self.write(training)
            self.group.wait_for_restart()

    def write(self, training: "LevelTraining") -> None:
        """Write a checkpoint to the local disk, from where it is stored in the background; all workers call this."""
        context = training.context
        manifest = {
            "format": FORMAT,
            "fingerprint": self.key,
            "id": int(context.from_first(torch.tensor([secrets.randbits(32)]))),
            "position": asdict(training.state),
            "snapshots": training.average.snapshots,
            "norms": [str(norm) for norm in training.clip.norms.tolist()],  # JSON has no infinity
            "loss_scale": None if training.loss_scale is None else training.loss_scale.state(),
            "optimizer_steps": {
                name: int(state["step"])
                for name, parameter in training.parameters.items()
                if (state := training.optimizer.state[parameter])  # empty before the first update
            },
        }
        with ExitStack() as local:
            place = f"axml-ray-{fingerprint(str(self.directory))}-{context.rank}"
            files = local.enter_context(scratch_directory(place))
            tensors = {name: _tensors(training, name) for name in training.parameters}
            save_rows(files, tensors.pop(TABLE), context.shard)
            if context.is_first:
                flat = {f"{name}|{state}": value for name, states in tensors.items() for state, value in states.items()}
                save_tensors({name: value.detach().contiguous() for name, value in flat.items()}, files / MODEL)
            if self.group is not None:
                sizes = {ROWS.format(rank): size for rank, size in enumerate(row_sizes(files, context))}
                if context.is_first:
                    sizes[MODEL] = (files / MODEL).stat().st_size
                    write_manifest(files / MANIFEST, context.world_size, sizes, manifest)
            done = local.pop_all().close

        def store() -> None:
            try:
                with write_together(self.directory, context, MANIFEST, manifest) as work:
                    copy_files(files, work)
                    check_rows(work, context)
            finally:
                done()

        if self.group is not None:
            state = training.state
            metrics = {"level": training.network.level.number, "step": state.step, "valid_nDCG@5": state.best_score}
            self.group.store(files, metrics, done)
        elif context.world_size == 1:
            self._copy = self._thread.submit(store)
        else:  # the collective operations of several workers without Ray Train must not be in a thread
            store()
        self._last = time.monotonic()

    def resume(self, training: "LevelTraining") -> bool:
        """Restore the training state from the newest complete checkpoint with the same key, if there is one.

        Returns:
            Whether the state was restored.

        Raises:
            JobError: rank 0 sees a complete checkpoint and this worker does not.
        """
        self.wait()
        # Those of a single worker, and those of groups of any size, whose workers may have been on other nodes.
        groups = storage.children(self.directory.parent)
        stored = {path for group in groups for path in storage.children(group) if path.name.startswith(OF_GROUPS)}
        manifests = {
            place: read_manifest(place, MANIFEST, FORMAT, self.key) for place in [self.directory, *sorted(stored)]
        }
        complete = {about["id"]: (place, about) for place, about in manifests.items() if about is not None}
        best = max(complete, key=lambda number: complete[number][1]["position"]["step"], default=-1)
        # On a network file system, files may reach other workers later, and all must do the same: rank 0 decides.
        best = int(training.context.from_first(torch.tensor([best])))
        if best < 0:
            return False
        if best not in complete:
            raise JobError(
                f"{self.directory}: rank 0 sees a complete checkpoint, this worker does not; check that all "
                "workers share the run's directory, and start the job again"
            )
        self._restore(training, *complete[best])
        return True

    @torch.no_grad()
    def _restore(self, training: "LevelTraining", directory: Path, manifest: dict[str, Any]) -> None:
        """Restore the training state from a complete checkpoint."""
        training.state = TrainState(**manifest["position"])
        training.clip.norms = torch.tensor([float(norm) for norm in manifest["norms"]])
        if training.loss_scale is not None and manifest.get("loss_scale"):
            training.loss_scale.restore(manifest["loss_scale"])
        training.average.snapshots = manifest["snapshots"]
        shard, written_by = training.context.shard, manifest["workers"]
        with safe_open(directory / MODEL, "pt") as file:
            names = set(file.keys())
            for name in training.parameters:
                self._allocate(training, name, manifest["optimizer_steps"].get(name))
                for state, value in _tensors(training, name).items():
                    if name == TABLE:
                        load_rows(directory, state, value, written_by, shard)
                    elif f"{name}|{state}" in names:
                        value.copy_(file.get_tensor(f"{name}|{state}"))

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

    def wait(self) -> None:
        """Wait until the last checkpoint is stored, or could not be."""
        if self._copy is not None:
            self._copy.exception()

    def drop(self, context: DistributedContext) -> None:
        """Remove the checkpoint of a level whose training is complete; Ray Train's stay until the member is fitted."""
        self.wait()
        if context.is_first:
            remove_directory(self.directory)


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
