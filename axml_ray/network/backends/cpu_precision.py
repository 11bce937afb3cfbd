"""Measures, once for each process, whether this processor multiplies bfloat16 matrices faster than float32 ones."""

import time
from functools import cache

import torch
from torch import Tensor

TIMED_FORMATS = (torch.float32, torch.bfloat16)
TIMED_SIZE = 256
"""Rows and columns of the matrix products that are timed: a fraction of a millisecond each, so that on a busy machine
the fastest of several had the core to itself."""
TIMED_ROUNDS = 16


def measured_bfloat16_is_faster() -> bool:
    """Return whether the processor has instructions for bfloat16 and is faster with them than in float32."""
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
