"""Number format and threads of PyTorch's computations. Weights, moments and losses are always float32."""

import os

import torch

from axml_ray.core.memory import keep_freed_memory
from axml_ray.network.backends.backend import backend_for
from axml_ray.settings import Precision

REDUCED: dict[Precision, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Reduced formats by the names that settings have for them."""
CACHED_KERNELS = "64"
"""Compiled kernels that oneDNN and PyTorch each keep, for each thread."""


def use_threads(threads: int) -> None:
    """Let PyTorch use `threads` threads in this process, keep freed memory for reuse, and bound that of kernels.

    oneDNN compiles kernels for every shape of a batch and PyTorch caches them a second time. At the default of 1,024
    kernels each, these caches grow to gigabytes.
    """
    torch.set_num_threads(threads)
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", CACHED_KERNELS)
    os.environ.setdefault("LRU_CACHE_CAPACITY", CACHED_KERNELS)
    keep_freed_memory()


def fast_formats(device: torch.device) -> tuple[torch.dtype, ...]:
    """Return the reduced formats in which the device multiplies matrices faster than in float32, the best first."""
    return backend_for(device).fast_formats()


def product_format(device: torch.device, precision: Precision) -> torch.dtype:
    """Return the number format of matrix products on a device: float32, bfloat16 or float16.

    A setting other than "auto" means the same on every GPU. On a CPU, float16 is computed in float32.
    """
    if precision == "auto":
        return next(iter(fast_formats(device)), torch.float32)
    data_type = REDUCED.get(precision, torch.float32)
    return data_type if data_type in backend_for(device).reduced_formats else torch.float32


def chosen_format(device: torch.device, precision: Precision) -> Precision:
    """Return a setting with "auto" replaced by the fastest format of a device, as measured in this process.

    Processes that share a result are given this name, as their own measurements may differ.
    """
    return format_name(product_format(device, precision)) if precision == "auto" else precision  # type: ignore[return-value]


def format_name(dtype: torch.dtype) -> str:
    """Return the name of a number format, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return a context in which the network computes in the number format that the setting asks for.

    For the whole process it also sets how a GPU rounds: float32 products, those of LSTMs included, to TF32 only if the
    setting says so, and products in reduced formats are summed in float32.
    """
    backend, dtype = backend_for(device), product_format(device, precision)
    # PyTorch's default allows TF32 in cuDNN and forbids it in cuBLAS.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    # Its default also lets cuBLAS add up the parts of a long sum in the operands' format, depending on the card. The
    # gradient of a query is a sum over all words of a batch, of which 8 bits would remain.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    is_reduced = dtype != torch.float32
    return torch.autocast(backend.device_type, dtype if is_reduced else torch.bfloat16, enabled=is_reduced)
