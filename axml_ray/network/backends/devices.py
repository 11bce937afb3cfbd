"""The device that a setting names, its memory and its clock."""

import torch

from axml_ray.core.errors import SettingsError
from axml_ray.core.memory import peak_gib
from axml_ray.network.backends.backend import backend_for


def device_named(name: str) -> torch.device:
    """Return the device of a name such as "cpu", "cuda" or "cuda:1".

    Raises:
        SettingsError: there is no such device, or PyTorch cannot use it.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(f"device: there is no {name!r}; choose cpu or cuda") from None
    kind, number = name.partition(":")[0], device.index or 0
    if kind not in ("cpu", "cuda"):
        raise SettingsError(f"device: {name!r} is not supported; choose cpu or cuda")
    if kind == "cuda" and number >= torch.cuda.device_count():
        raise SettingsError(
            f"device: {name!r} is required, but PyTorch {torch.__version__} sees {torch.cuda.device_count()} GPUs "
            "here; install PyTorch with CUDA and check nvidia-smi, or choose cpu"
        )
    backend_for(device)  # a GPU's backend sets what the libraries read before their first use
    try:
        torch.zeros(1, device=device).add_(1)  # GPUs are counted by NVML, also those that cannot be used
    except (RuntimeError, AssertionError) as error:  # the latter of a build without CUDA
        reason = str(error).splitlines()[0]
        raise SettingsError(f"device: PyTorch {torch.__version__} cannot compute on {name!r}: {reason}") from None
    return device


def reserved_device(gpus: float, name: str = "cuda") -> torch.device:
    """Return the device of a process for which Ray reserves a number of GPUs.

    Args:
        gpus: the number; 0 is the CPU. With a share of a GPU, the process can take no more than that share of its
            memory, so that one that needs more fails instead of the others.
        name: of the GPU, among those that the process sees.

    Raises:
        SettingsError: a GPU is reserved, but PyTorch sees none.
    """
    device = device_named(name if gpus else "cpu")
    if 0 < gpus < 1:
        # The limit of PyTorch's allocator; what CUDA itself takes for each process is not part of the share.
        torch.cuda.set_per_process_memory_fraction(gpus, device.index or 0)  # Ray shows the process its GPU alone
    return device


def synchronize(device: torch.device) -> None:
    """Wait until the device has completed its work; that of a CPU is complete when a call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_gib(device: torch.device) -> float:
    """Return the peak in GiB of a GPU's memory that PyTorch took for this process, or of the process's main memory."""
    # What CUDA graphs keep for their next replay is reserved, but not allocated.
    return torch.cuda.max_memory_reserved(device) / 2**30 if device.type == "cuda" else peak_gib()


def reset_peak_memory(device: torch.device) -> None:
    """Begin a new measurement of a GPU's peak memory, and release what is cached; a CPU's peak is the process's."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
