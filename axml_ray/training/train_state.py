"""The state of a level's training: what a checkpoint saves and a resumed training starts from."""

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from axml_ray.network.optimization.loss_scale import LossScale
from axml_ray.network.optimization.optimizer import GradientClipper, LazyAdam
from axml_ray.network.optimization.weight_average import WeightAverage
from axml_ray.training.distributed import DistributedContext


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
    evaluations_without_gain: int = 0
    """Evaluations since the best one, which early-stopping patience limits."""
    first_loss: float = 0.0
    """Mean loss of the first ten steps."""
    seconds: float = 0.0
    """Training time so far, over all starts."""
    recent: list[float] = field(default_factory=list)
    """Losses of the last steps."""


class TrainableLevel(Protocol):
    """The training of a level, as far as `Checkpoints` saves and restores it; `LevelTraining` implements it."""

    context: DistributedContext
    state: TrainState
    parameters: dict[str, nn.Parameter]
    """Trained parameters by name."""
    optimizer: LazyAdam
    clip: GradientClipper
    loss_scale: LossScale | None
    """The loss scale of a training in float16; else None."""
    average: WeightAverage
    best: dict[str, Tensor]
    """Parameters of the best evaluation, by name."""
