"""Adam with lazy rows, gradients clipped by the history of their norms, and stochastic weight averaging.

- A parameter whose gradient is sparse (word table, attention of a deep level) has only the touched rows of its
  weight and moments updated: a step costs what its batch needs, whatever the size of the table.
- Clipping is the authors' program's: at `clip` times the largest of the last five norms, each counted at most 1 and
  at most twice that largest; so the first five steps aren't clipped, and one wild batch can't undo a calm run.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

# Values of each table that are updated at a time: a few such pieces lie in a processor's cache together.
CACHED_VALUES = 1 << 18


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
            dense = []
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                    state["first"] = torch.zeros_like(parameter)
                    state["second"] = torch.zeros_like(parameter)
                if parameter.grad.is_sparse:
                    self._update_rows(parameter, state, group)
                else:
                    dense.append((parameter, parameter.grad, state["first"], state["second"], state["step"]))
            if dense:
                _adam(group, dense)

    @staticmethod
    def _update_rows(parameter: Tensor, state: dict, group: dict) -> None:
        gradient = parameter.grad
        assert gradient is not None
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        tables = parameter, state["first"], state["second"]
        size = rows_at_once(len(rows), parameter.shape[1:].numel(), parameter.device.type)
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            weight, first, second = copies = [table.index_select(0, some) for table in tables]
            _adam(group, [(weight, values[start : start + size], first, second, state["step"].clone())])
            for table, copy in zip(tables, copies, strict=True):
                table.index_copy_(0, some, copy)
        state["step"] += 1  # also without a row, as on the workers whose shard had some


def rows_at_once(rows: int, width: int, device: str) -> int:
    """Of so many rows, how many are updated at a time, at least 1: a shard may hold none of a step's."""
    return max(1, CACHED_VALUES // max(1, width) if device == "cpu" else rows)


def _adam(group: dict, pieces: Sequence[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]) -> None:
    """One step of Adam on (weight, gradient, first, second, step), all of a value's arithmetic in one reading of it."""
    weights, gradients, first, second, steps = (list(column) for column in zip(*pieces, strict=True))
    adam(
        weights, gradients, first, second, [], steps,
        fused=True, amsgrad=False, beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"],
        weight_decay=0.0, eps=group["eps"], maximize=False,
    )  # fmt: skip


class NormHistory:
    """Clipping by the largest of the last five gradient norms. Works where the gradients are, without waiting for them.

    Args:
        clip: times that norm, a gradient is cut.
    """

    def __init__(self, clip: float = 5.0):
        self.clip = clip
        self.norms = torch.full((5,), torch.inf)

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor], norm: Tensor) -> None:
        """Scale gradients in place.

        Args:
            gradients: of one step; of sparse ones the values.
            norm: of all of them, a scalar.
        """
        self.norms = self.norms.to(norm)
        largest = self.norms.max()
        scale = (self.clip * largest / norm).clamp(max=1)
        if scale.device.type != "cpu" or scale < 1:
            torch._foreach_mul_(list(gradients), scale)
        # Norms of zero would clip all that come after them to zero.
        counted = torch.where(norm > 0, torch.minimum(norm, 2 * largest).clamp(max=1), largest)
        self.norms = torch.cat([self.norms[1:], counted[None]])


def gradients_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The gradients of some parameters, in which they may be changed; of sparse ones the values."""
    found = []
    for parameter in parameters:
        if parameter.grad is not None:
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
            found.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
    return found


class WeightAverage:
    """The running mean of a network's trained parameters (stochastic weight averaging, paper's experiments).

    Before the first snapshot it stands for the network as it is.

    Attributes:
        snapshots: taken so far.
        mean: of each trained parameter, by name.
    """

    def __init__(self) -> None:
        self.snapshots = 0
        self.mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, network: nn.Module) -> None:
        """Take a snapshot of the network's parameters into the mean."""
        self.snapshots += 1
        for name, parameter in _trained(network):
            if name in self.mean:
                self.mean[name].lerp_(parameter, 1 / self.snapshots)
            else:
                self.mean[name] = parameter.detach().clone()

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
            parameter.data, self.mean[name] = self.mean[name], parameter.data
        for module in network.modules():
            if isinstance(module, nn.LSTM):
                module.flatten_parameters()  # an accelerator's library wants them in one piece


def _trained(network: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad)
