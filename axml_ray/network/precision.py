"""How PyTorch computes: number format, threads, kept kernels. Weights, moments and losses stay float32."""

import os
import time
from functools import cache

import torch
from torch import Tensor

from axml_ray.memory import keep_freed_memory
from axml_ray.settings import Precision

KERNELS = "64"
"""Kernels that are kept, of each thread."""

KINDS = (torch.float32, torch.bfloat16)
PRODUCT = 256
"""Rows and columns of the products that are timed: a fraction of a millisecond each, so that the best of some has had
the core to itself also on a busy machine."""
ROUNDS = 16


def use_threads(threads: int) -> None:
    """Let PyTorch use so many threads in this process, and keep memory as `keep_memory` does."""
    torch.set_num_threads(threads)
    keep_memory()


def keep_memory() -> None:
    """Keep the memory that PyTorch works in, and not all of its kernels.

    - oneDNN has kernels of its own for each shape of a batch, and PyTorch keeps them a second time; all of them (the
      default of both is 1,024) grow to gigabytes.
    - Freed memory is kept.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS)
    os.environ.setdefault("LRU_CACHE_CAPACITY", KERNELS)
    keep_freed_memory()


def computes_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 matrices in hardware, and faster than float32 ones."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    able = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("bf16")
    return bool(able) and _gains_by_bfloat16()


@cache
def _gains_by_bfloat16() -> bool:
    """Measured, in some 10 ms: a processor may have the instruction and take twice as long by it, as an Intel Xeon did
    whose AMX wasn't passed on to the virtual machine."""
    with torch.inference_mode(), torch.autocast("cpu", enabled=False):
        products = {kind: torch.ones(PRODUCT, PRODUCT, dtype=kind, device="cpu") for kind in KINDS}
        rounds = [[_seconds(product) for product in products.values()] for _ in range(ROUNDS)]
    wide, narrow = (min(seconds) for seconds in zip(*rounds, strict=True))
    return narrow < wide


def _seconds(matrix: Tensor) -> float:
    began = time.perf_counter()
    torch.mm(matrix, matrix)
    return time.perf_counter() - began


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """A context in which the network computes in the precision asked for."""
    return torch.autocast(device.type, torch.bfloat16, enabled=reduces(device, precision))


def reduces(device: torch.device, precision: Precision) -> bool:
    """Whether products are computed in bfloat16."""
    return precision == "bfloat16" or (precision == "auto" and computes_bfloat16(device))
