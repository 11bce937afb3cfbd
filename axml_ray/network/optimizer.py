"""Adam with lazy rows, gradients clipped by the history of their norms, and stochastic weight averaging.

- A parameter whose gradient is sparse (word table, attention of a deep level) has only the touched rows of its
  weight and moments updated: a step costs what its batch needs, whatever the size of the table.
- Clipping is the authors' program's: at `clip` times the largest of the last five norms, each counted at most 1 and
  at most twice that largest; so the first five steps aren't clipped, and one wild batch can't undo a calm run.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class LazyAdam(torch.optim.Optimizer):
    """Adam (Kingma & Ba, algorithm 1); for sparse gradients, of the touched rows only.

    Args:
        params: parameters, float32.
        lr: learning rate.
        betas: decay of the moments.
        eps: added to the root of the second moment.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["first"] = torch.zeros_like(parameter)
                    state["second"] = torch.zeros_like(parameter)
                state["step"] += 1
                self._update(parameter, state, group["lr"], group["betas"], group["eps"])

    @staticmethod
    def _update(parameter: Tensor, state: dict, rate: float, betas: tuple[float, float], eps: float) -> None:
        gradient, rows = parameter.grad, None
        assert gradient is not None
        first, second = state["first"], state["second"]
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            rows, gradient = gradient.indices()[0], gradient.values()
            first, second = first[rows], second[rows]
        first.lerp_(gradient, 1 - betas[0])
        second.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
        size = rate / (1 - betas[0] ** state["step"])
        scale = (1 - betas[1] ** state["step"]) ** 0.5
        change = first / (second.sqrt() / scale).add_(eps)
        if rows is None:
            parameter.add_(change, alpha=-size)
        else:
            state["first"][rows], state["second"][rows] = first, second
            parameter.index_add_(0, rows, change, alpha=-size)


class NormHistory:
    """Clipping by the largest of the last five gradient norms.

    Args:
        clip: times that norm, a gradient is cut.
    """

    def __init__(self, clip: float = 5.0):
        self.clip = clip
        self.norms: deque[float] = deque([float("inf")], maxlen=5)

    @torch.no_grad()
    def apply(self, parameters: Iterable[nn.Parameter]) -> float:
        """Scale the gradients in place; returns their norm as it was."""
        parts = []
        for parameter in parameters:
            if parameter.grad is not None:
                if parameter.grad.is_sparse:
                    parameter.grad = parameter.grad.coalesce()
                parts.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
        norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts])))
        largest = max(self.norms)
        if norm > self.clip * largest:
            for part in parts:
                part.mul_(self.clip * largest / norm)
        self.norms.append(min(norm, 2 * largest, 1.0))
        return norm


class WeightAverage:
    """The running mean of a network's trained parameters (stochastic weight averaging, paper's experiments).

    Before the first snapshot it stands for the network as it is.
    """

    def __init__(self) -> None:
        self.snapshots = 0
        self._mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, network: nn.Module) -> None:
        """Take a snapshot of the network's parameters into the mean."""
        self.snapshots += 1
        for name, parameter in _trained(network):
            if name in self._mean:
                self._mean[name].lerp_(parameter, 1 / self.snapshots)
            else:
                self._mean[name] = parameter.detach().clone()

    @contextmanager
    def inside(self, network: nn.Module) -> Iterator[None]:
        """The network with the mean as its parameters, until the block ends."""
        if not self.snapshots:
            yield
            return
        self._swap(network)
        try:
            yield
        finally:
            self._swap(network)

    def _swap(self, network: nn.Module) -> None:
        for name, parameter in _trained(network):
            parameter.data, self._mean[name] = self._mean[name], parameter.data


def _trained(network: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad)
