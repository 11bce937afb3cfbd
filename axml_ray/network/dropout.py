"""Dropout with a mask that depends on nothing but the document's seed."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def dropout(values: Tensor, rate: float, training: bool, seeds: np.ndarray | None = None, layer: int = 0) -> Tensor:
    """Set values to zero at random and scale up the others.

    On a CPU the masks are random bytes, since PyTorch draws its masks there one by one, which took a sixth of a step.
    The rate is then rounded to a multiple of 1/256, and the scale is that of the rounded rate.

    Args:
        values: [B, ...].
        rate: share of the values that become zero.
        training: if False, `values` are returned as they are.
        seeds: int64 [B], one for each document, whose mask is then the same in any batch, on any worker. If None, they
            are drawn from PyTorch's generator. An accelerator ignores them and always uses PyTorch's generator.
        layer: number of the layer, so that layers with the same seed have different masks.
    """
    if not training or not rate:
        return values
    if values.device.type != "cpu":
        return functional.dropout(values, rate)
    if seeds is None:
        seeds = torch.randint(2**62, (len(values),)).numpy()
    dropped = min(255, round(256 * rate))
    words = -(-values[0].numel() // 8)  # 64-bit words that hold one byte for each value
    random = np.stack([np.random.SFC64((int(seed), layer)).random_raw(words) for seed in seeds]).view(np.uint8)
    kept = torch.from_numpy(random)[:, : values[0].numel()].view_as(values) >= dropped
    return values * kept.to(values.dtype).mul_(256 / (256 - dropped))
