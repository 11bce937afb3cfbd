"""Stochastic weight averaging with a constant learning rate (paper, section 3.3)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from axml_ray.network.backends.backend import backend_for

PIECE_VALUES = 1 << 24
"""Values that are copied to another device at a time."""


class WeightAverage:
    """The running mean of a network's trained parameters over snapshots.

    Attributes:
        snapshots: number of snapshots taken.
        mean: the mean of each trained parameter, by name; empty before the first snapshot.
    """

    def __init__(self) -> None:
        self.snapshots = 0
        self.mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, network: nn.Module) -> None:
        """Take a snapshot of the network's trained parameters into the mean."""
        self.snapshots += 1
        for name, parameter in _trained_parameters(network):
            if name not in self.mean:
                self.mean[name] = store_like(parameter.detach()).copy_(parameter)
                continue
            for mean, value in _pieces(self.mean[name], parameter):
                mean.lerp_(value.to(mean.device), 1 / self.snapshots)

    @contextmanager
    def applied_to(self, network: nn.Module) -> Iterator[None]:
        """Give the network the mean as its parameters until the block ends; before any snapshot, change nothing."""
        if not self.snapshots:
            yield
            return
        self._swap(network)
        try:
            yield
        finally:
            self._swap(network)

    def _swap(self, network: nn.Module) -> None:
        # Swapping the storages instead of copying values: the label table is the largest thing in memory.
        for name, parameter in _trained_parameters(network):
            if self.mean[name].device == parameter.device:
                parameter.data, self.mean[name] = self.mean[name], parameter.data
                continue
            for mean, value in _pieces(self.mean[name], parameter.data):
                moved = mean.to(value.device)
                mean.copy_(value)
                value.copy_(moved)
        for module in network.modules():
            if isinstance(module, nn.LSTM):
                module.flatten_parameters()  # cuDNN needs an LSTM's weights in one piece of memory


def store_like(parameter: Tensor) -> Tensor:
    """Return an uninitialised tensor for a copy of a parameter that is seldom read, such as the best weights.

    That of a large parameter of a GPU is in page-locked main memory.
    """
    if parameter.numel() * parameter.element_size() <= backend_for(parameter.device).limits.stored_bytes:
        return torch.empty_like(parameter)
    return torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu", pin_memory=torch.cuda.is_available())


def _pieces(stored: Tensor, parameter: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield equal parts of a parameter and its stored copy, small ones if they are on different devices."""
    if stored.device == parameter.device:
        yield stored, parameter
        return
    rows = max(1, PIECE_VALUES // max(1, parameter[:1].numel()))
    yield from zip(stored.split(rows), parameter.split(rows), strict=True)


def _trained_parameters(network: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad)
