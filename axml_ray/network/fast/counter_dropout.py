"""Dropout on a GPU whose masks depend on the document's seed and on nothing else.

PyTorch's generator gives another mask in another batch, or with another number of workers. Here a value's mask is a
hash of the document's seed, the layer and the value's place in the document: four bytes of one 32-bit hash serve four
values. Shapes: B documents, V values of a document, W = ⌈V / 4⌉ hashes.
"""

from typing import Any

import torch
from torch import Tensor

from axml_ray.network.fast.torch_internals import masked_scale

GOLDEN_64, GOLDEN_32 = 0x9E3779B97F4A7C15 - (1 << 64), 0x9E3779B9 - (1 << 32)
"""2^64 / φ and 2^32 / φ as signed numbers: multipliers that spread successive numbers over all numbers."""


def seeds_of_documents(step_seed: int, documents: Tensor) -> Tensor:
    """Return the dropout seed of each document (int64 [B]) in a step, int64 [B]; products wrap around."""
    return documents * GOLDEN_64 + (step_seed >> 1)


def counter_dropout(values: Tensor, rate: float, seeds_B: Tensor, layer: int) -> Tensor:
    """Set values to zero at random and scale up the others; the rate is rounded to a multiple of 1/256.

    The arguments are those of `paper.dropout`, with seeds int64 [B].
    """
    dropped = min(255, round(256 * rate))
    mask = kept_values(seeds_B, layer, values[0].numel(), dropped).view(values.shape)
    result: Tensor = _MaskedScale.apply(values, mask, 256 / (256 - dropped))
    return result


def kept_values(seeds_B: Tensor, layer: int, values: int, dropped: int) -> Tensor:
    """Return which values are kept, each with a probability of 1 - dropped / 256: bool [B, V]."""
    places_W = torch.arange(-(-values // 4), dtype=torch.int32, device=seeds_B.device)
    key_B = _mix_((seeds_B ^ (seeds_B >> 32)).to(torch.int32).add_(_signed(layer * 0x85EBCA6B)))
    # Hashed twice: documents whose sums of key and place coincide would otherwise share a run of their masks.
    hashes_BW = _mix_(_mix_(places_W.mul_(GOLDEN_32)) ^ key_B[:, None])
    return hashes_BW.view(torch.uint8)[:, :values] >= dropped


def _mix_(numbers: Tensor) -> Tensor:
    """Hash 32-bit numbers in place (Wellons, "lowbias32"): each bit of a number changes half of the result's bits."""
    for shift, multiplier in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None)):
        # The mask removes the sign bits that an arithmetic shift brings in.
        numbers.bitwise_xor_((numbers >> shift).bitwise_and_((1 << (32 - shift)) - 1))
        if multiplier is not None:
            numbers.mul_(_signed(multiplier))
    return numbers


def _signed(number: int) -> int:
    """Return the 32-bit number with the same bits as a signed one."""
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number


class _MaskedScale(torch.autograd.Function):
    """values · mask · scale in one pass, forward and backward."""

    @staticmethod
    def forward(context: Any, values: Tensor, mask: Tensor, scale: float) -> Tensor:
        context.save_for_backward(mask)
        context.scale = scale
        return masked_scale(values, mask, scale)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return masked_scale(gradient, context.saved_tensors[0], context.scale), None, None
