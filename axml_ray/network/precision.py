"""Number format and threads of PyTorch's computations. Weights, moments and losses are always float32."""

import os
import time
from functools import cache

import torch
from torch import Tensor

from axml_ray.memory import keep_freed_memory
from axml_ray.settings import Precision

CACHED_KERNELS = "64"
"""Compiled kernels that oneDNN and PyTorch each keep, for each thread."""

TIMED_FORMATS = (torch.float32, torch.bfloat16)
TIMED_SIZE = 256
"""Rows and columns of the matrix products that are timed: a fraction of a millisecond each, so that on a busy machine
the fastest of several had the core to itself."""
TIMED_ROUNDS = 16


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
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    able = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("bf16")
    return bool(able) and _measured_bfloat16_is_faster()


@cache
def _measured_bfloat16_is_faster() -> bool:
    """Compare products of both formats, in about 10 ms.

    Having the instruction is not enough: on an Intel Xeon whose virtual machine hides AMX, bfloat16 took twice as long.
    """
    with torch.inference_mode(), torch.autocast("cpu", enabled=False):
        matrices = {dtype: torch.ones(TIMED_SIZE, TIMED_SIZE, dtype=dtype, device="cpu") for dtype in TIMED_FORMATS}
        # In turns, so that other work on the machine disturbs both alike; the fastest of each is compared.
        rounds = [[_seconds(matrix) for matrix in matrices.values()] for _ in range(TIMED_ROUNDS)]
    wide, narrow = (min(seconds) for seconds in zip(*rounds, strict=True))
    return narrow < wide


def _seconds(matrix: Tensor) -> float:
    began = time.perf_counter()
    torch.mm(matrix, matrix)
    return time.perf_counter() - began


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return a context in which the network computes in the number format that the setting asks for."""
    return torch.autocast(device.type, torch.bfloat16, enabled=uses_bfloat16(device, precision))


def uses_bfloat16(device: torch.device, precision: Precision) -> bool:
    """Return whether matrix products are computed in bfloat16: by the setting, or where "auto" finds it faster."""
    return precision == "bfloat16" or (precision == "auto" and bfloat16_is_faster(device))
