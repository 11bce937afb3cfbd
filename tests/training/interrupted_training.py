"""A small level's training that stops right after one of its checkpoints, as if its worker were killed."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_corpus import FLAT, WIDE, curve_of, small_network, small_training

from axml_ray.network.tree_level import Level
from axml_ray.training.checkpoints import Checkpoints
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level import LevelTraining

LEVELS = {"all nodes": FLAT, "candidates": WIDE}
BOTH = pytest.mark.parametrize("name", LEVELS)
MARK = "0123456789ab"
# averaging begins with the second of three epochs of five steps
STEPS, SETTINGS = 15, {"epochs": (3,), "average_after": (1,), "eval_every_steps": 4}


class Interruption(BaseException):
    """As if the worker were killed."""


class Stopping(Checkpoints):
    """Stops training right after the checkpoint of scoring `last` (from 1); never if there is none."""

    def __init__(self, directory: Path, last: int | None = None, seconds: float = 0):
        super().__init__(directory, MARK, seconds)
        self.left = last

    def save(self, training: LevelTraining) -> None:
        super().save(training)
        self.wait()
        if self.left is not None:
            self.left -= 1
            if not self.left:
                raise Interruption


def training_of(
    level: Level,
    checkpoints: Checkpoints | None = None,
    *,
    seed: int = 4,
    network: dict[str, Any] | None = None,
    workers: DistributedContext | None = None,
    **changes: Any,
) -> LevelTraining:
    workers = workers or DistributedContext()
    made = small_network(level, 0.3, workers.shard, seed=seed, **(network or {}))
    return small_training(made, 100, workers=workers, checkpoints=checkpoints, **{**SETTINGS, **changes})


def finish(training: LevelTraining) -> dict[str, Any]:
    """Trains to the end; everything that a level's training leaves behind."""
    losses = curve_of(training)
    training.run()
    at = asdict(training.state) | {"snapshots": training.average.snapshots}
    at.pop("seconds")
    state = training.optimizer.state
    return {
        "losses": losses,
        "at": at,
        "weights": {name: parameter.detach() for name, parameter in training.network.named_parameters()},
        "best": training.best,
        "mean": training.average.mean,
        "moments": {f"{name}.{key}": state[p][key] for name, p in training.parameters.items() for key in state[p]},
        "norms": {"norms": training.clip.norms},
    }


TENSORS = "weights", "best", "mean", "moments", "norms"


def assert_same_end(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """To the last bit; of the losses, those that were left."""
    assert found["at"] == expected["at"]
    assert found["losses"] == expected["losses"][len(expected["losses"]) - len(found["losses"]) :]
    for kind in TENSORS:
        assert found[kind].keys() == expected[kind].keys()
        for name, value in expected[kind].items():
            assert torch.equal(found[kind][name], value), (kind, name)
