"""Loss scaling for training in float16, whose smallest numbers are larger than many gradients.

The gradients of a step are computed multiplied by a factor, and divided by it again before they are clipped and
applied. If they overflow, the step is skipped and the factor halved; after `INTERVAL` steps without that it is doubled
(Micikevicius et al., "Mixed Precision Training", ICLR 2018). Everything is computed on the device of the gradients, so
the CPU need not wait for them.

With several workers, the norm of all gradients of all of them tells whether a step is skipped. It is the same number on
each worker, so all skip the same steps, although each has other rows of the label table.
"""

import math

import torch
from torch import Tensor

INTERVAL = 500
"""Steps without an overflow after which the factor is doubled."""
LARGEST = 2.0**40
"""Limit of the factor: with it, even gradients of 1e-16 are normal numbers of float16."""
SMALLEST = 2.0**-10
"""Factor below which the network, and not the factor, is the reason of the overflows."""


class LossScale:
    """The factor by which the gradients of a step are multiplied.

    Args:
        denominator: number of terms of which the loss of a step is the mean, about. At the start, the factor is the
            power of two next to it, so that the gradient of a logit is about one.

    Attributes:
        factor: float32 scalar, a power of two.
        steps: float32 scalar, steps since the factor changed.
        skipped: float32 scalar, steps that were skipped.
    """

    def __init__(self, denominator: float):
        start = 2.0 ** round(math.log2(max(1.0, denominator)))
        self.factor = torch.tensor(min(LARGEST, start))
        self.steps, self.skipped = torch.zeros(()), torch.zeros(())

    def to(self, device: torch.device) -> None:
        """Move the factor and the counters to a device."""
        self.factor, self.steps, self.skipped = (value.to(device) for value in (self.factor, self.steps, self.skipped))

    def overflows(self, norm: Tensor) -> Tensor:
        """Return whether a step must be skipped, given the norm of its gradients: 1 or 0, float32 scalar."""
        return (~norm.isfinite()).float()

    def update(self, overflow: Tensor) -> None:
        """Adjust the factor after a step.

        Args:
            overflow: as `overflows` returned it.
        """
        steps = (self.steps + 1) * (1 - overflow)
        grows = (steps >= INTERVAL).float()
        self.factor = (self.factor * (1 + grows - overflow / 2)).clamp(max=LARGEST)
        self.steps = steps * (1 - grows)
        self.skipped = self.skipped + overflow

    def state(self) -> dict[str, float]:
        """Return the factor and the counters for a checkpoint."""
        return {"factor": self.factor.item(), "steps": self.steps.item(), "skipped": self.skipped.item()}

    def restore(self, state: dict[str, float]) -> None:
        """Take the factor and the counters of a checkpoint."""
        device = self.factor.device
        self.factor, self.steps, self.skipped = (
            torch.tensor(state[name], device=device) for name in ("factor", "steps", "skipped")
        )
