"""The state of a level that is being trained, so that a killed worker or a restarted job costs minutes.

Weights, moments, running average, best weights, and where in which epoch training is. Random draws follow from seed,
step and document alone, so the step's number is all of the random state.
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from torch import Tensor

from axml_ray.files import save_tensors
from axml_ray.network.level_network import TABLE
from axml_ray.training.level_files import MODEL, load_rows, manifest_of, put_back, remove, save_rows, written_together
from axml_ray.training.workers import Workers

if TYPE_CHECKING:
    from axml_ray.training.level import LevelTraining

FORMAT, MANIFEST = "axml-ray checkpoint", "checkpoint.json"


class Checkpoints:
    """Where one level's state is kept.

    Args:
        directory: of the newest checkpoint; it need not exist.
        mark: fingerprint of the settings; a checkpoint of others is passed over.
        seconds: at least so many between two checkpoints.
    """

    def __init__(self, directory: Path, mark: str, seconds: float):
        self.directory, self.mark, self.seconds = directory, mark, seconds
        self._last = time.monotonic()

    def keep(self, training: "LevelTraining") -> None:
        """Write a checkpoint, if it is time; all workers call this after the same step."""
        workers = training.workers
        due = torch.tensor([float(time.monotonic() - self._last >= self.seconds)])
        if not workers.from_first(due).item():
            return
        about = {
            "format": FORMAT,
            "fingerprint": self.mark,
            "position": asdict(training.at),
            "snapshots": training.average.snapshots,
            "norms": [str(norm) for norm in training.clip.norms.tolist()],  # JSON has no infinity
            "optimizer_steps": {name: int(state["step"]) for name, state in _states(training).items()},
        }
        with written_together(self.directory, workers, MANIFEST, about) as work:
            parts = {name: _parts(training, name) for name in training.parameters}
            save_rows(work, parts.pop(TABLE), workers.shard)
            if workers.first:
                flat = {f"{name}|{part}": value for name, each in parts.items() for part, value in each.items()}
                save_tensors({name: value.detach().contiguous() for name, value in flat.items()}, work / MODEL)
        self._last = time.monotonic()

    @torch.no_grad()
    def resume(self, training: "LevelTraining") -> bool:
        """Go on from the checkpoint, if there is a whole one of the same settings; says whether there was."""
        put_back(self.directory, training.workers)
        found = manifest_of(self.directory, MANIFEST, FORMAT, self.mark)
        # The first worker's eyes decide: files may reach the others later.
        if not training.workers.from_first(torch.tensor([float(found is not None)])).item():
            return False
        if found is None:
            raise RuntimeError(f"{self.directory}: seen whole by the first worker, not by this one")
        training.at = type(training.at)(**found["position"])
        training.clip.norms = torch.tensor([float(norm) for norm in found["norms"]])
        training.average.snapshots = found["snapshots"]
        shard, written_by = training.workers.shard, found["workers"]
        with safe_open(self.directory / MODEL, "pt") as file:
            names = set(file.keys())
            for name, parameter in training.parameters.items():
                state = training.optimizer.state[parameter]
                if name in found["optimizer_steps"]:
                    state["step"] = torch.tensor(float(found["optimizer_steps"][name]), device=parameter.device)
                    state["first"], state["second"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                if training.average.snapshots:
                    training.average.mean[name] = torch.empty_like(parameter)
                if training.at.best_score >= 0:
                    training.best[name] = torch.empty_like(parameter)
                for part, value in _parts(training, name).items():
                    if name == TABLE:
                        load_rows(self.directory, part, value, written_by, shard)
                    elif f"{name}|{part}" in names:
                        value.copy_(file.get_tensor(f"{name}|{part}"))
        return True

    def drop(self, workers: Workers) -> None:
        """Remove the checkpoint of a level that is finished."""
        remove(self.directory, workers)


def _states(training: "LevelTraining") -> dict[str, dict[str, Tensor]]:
    return {name: training.optimizer.state[p] for name, p in training.parameters.items() if training.optimizer.state[p]}


def _parts(training: "LevelTraining", name: str) -> dict[str, Tensor]:
    """A parameter and all that belongs to it."""
    parameter = training.parameters[name]
    state = training.optimizer.state[parameter]
    parts = {"weight": parameter, **{key: state[key] for key in ("first", "second") if key in state}}
    if name in training.average.mean:
        parts["mean"] = training.average.mean[name]
    if name in training.best:
        parts["best"] = training.best[name]
    return parts
