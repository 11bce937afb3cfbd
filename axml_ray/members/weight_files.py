"""Weight files in float32, or in a narrower number format, which makes a bundle smaller and slightly less accurate.

- bfloat16: all matrices; half the size. Most machines compute products in it anyway.
- int8: all matrices, in groups of about 64 neighbouring values with one float32 scale each; about a quarter of the
  size, but no faster: rows of tables are converted as they are read, and the matrices of layers when they are opened.
- Vectors and single values, such as biases, stay float32 in every format.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from axml_ray.core.files import save_tensors
from axml_ray.network.fast.int8_table import Int8Table
from axml_ray.settings import Weights

SCALES = ".scales"
GROUP, LEAST_GROUP = 64, 16


def save_weights(state: Mapping[str, Tensor], path: Path, weights: Weights) -> None:
    """Write tensors to a safetensors file."""
    packed: dict[str, Tensor] = {}
    for name, value in state.items():
        value = value.detach().float()
        if value.ndim < 2 or weights == "float32":
            packed[name] = value.contiguous()
        elif weights == "bfloat16":
            packed[name] = value.to(torch.bfloat16).contiguous()
        else:
            packed[name], packed[name + SCALES] = quantized(value)
    save_tensors(packed, path)


def load_weights(path: Path) -> dict[str, Tensor]:
    """Load the tensors of a file that `save_weights` wrote, memory-mapped; a matrix of int8 is an `Int8Table`.

    Raises:
        OSError, SafetensorError: the file cannot be read.
        ValueError: an int8 matrix has no matching scales, or a tensor has another dtype.
    """
    packed = load_file(path)
    state = {}
    for name, value in packed.items():
        if name.endswith(SCALES) and name.removesuffix(SCALES) in packed:
            continue
        if value.dtype == torch.int8:
            scales = packed.get(name + SCALES)
            size = group_size(value.flatten(1).shape[1]) if value.ndim > 1 else 1
            if scales is None or scales.dtype != torch.float32 or scales.shape != (value.numel() // size,):
                raise ValueError(f"{name} has no scales that fit it")
            value = Int8Table(value, scales)
        elif value.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"{name} is {value.dtype}")
        state[name] = value
    return state


def group_size(width: int) -> int:
    """Return the number of values per scale: the largest divisor of the width up to 64; the width if that is small."""
    largest = next(size for size in range(min(GROUP, width), 0, -1) if width % size == 0)
    return largest if largest >= LEAST_GROUP else width


def quantized(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize a matrix, float32 [rows, ...], to int8 of the same shape and float32 scales [groups]."""
    groups = matrix.reshape(-1, group_size(matrix.flatten(1).shape[1]))
    scales = groups.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
    return (groups / scales[:, None]).round().to(torch.int8).view(matrix.shape), scales
