"""Number format and threads of PyTorch's computations. Weights, moments and losses are always float32."""

import os

import torch

from axml_ray.memory import keep_freed_memory
from axml_ray.network.backend import backend_for
from axml_ray.settings import Precision

CACHED_KERNELS = "64"
"""Compiled kernels that oneDNN and PyTorch each keep, for each thread."""


def use_threads(threads: int) -> None:
    """Let PyTorch use `threads` threads in this process, and call `keep_memory`."""
    torch.set_num_threads(threads)
    keep_memory()


def keep_memory() -> None:
    """Keep freed memory in this process for reuse, and bound the memory of compiled kernels.

    oneDNN compiles kernels for every shape of a batch and PyTorch caches them a second time. At the default of 1,024
    kernels each, these caches grow to gigabytes.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", CACHED_KERNELS)
    os.environ.setdefault("LRU_CACHE_CAPACITY", CACHED_KERNELS)
    keep_freed_memory()


def bfloat16_is_faster(device: torch.device) -> bool:
    """Return whether the device multiplies bfloat16 matrices in hardware and faster than float32 ones."""
    return backend_for(device).bfloat16_is_faster()


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return a context in which the network computes in the number format that the setting asks for."""
    backend = backend_for(device)
    backend.set_rounding(tf32=precision == "tf32")
    return torch.autocast(backend.device_type, torch.bfloat16, enabled=uses_bfloat16(device, precision))


def uses_bfloat16(device: torch.device, precision: Precision) -> bool:
    """Return whether matrix products are computed in bfloat16: by the setting, or where "auto" finds it faster."""
    return precision == "bfloat16" or (precision == "auto" and bfloat16_is_faster(device))
