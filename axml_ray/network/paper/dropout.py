"""Dropout with a mask that depends on nothing but the document's seed, where it has one."""

from torch import Tensor

from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.base import Seeds


def dropout(values: Tensor, rate: float, training: bool, seeds: Seeds | None = None, layer: int = 0) -> Tensor:
    """Set values to zero at random and scale up the others.

    Args:
        values: [B, ...].
        rate: share of the values that become zero.
        training: if False, `values` are returned as they are.
        seeds: one for each document (`Backend.dropout_seeds`), whose mask is then the same in any batch, on any worker.
            If None, the masks are drawn from PyTorch's generator.
        layer: number of the layer, so that layers with the same seed have different masks.
    """
    if not training or not rate:
        return values
    return backend_for(values.device).dropout(values, rate, seeds, layer)
