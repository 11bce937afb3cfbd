"""The choice of a backend: `CpuBackend` for tensors on a CPU, `CudaBackend` for those on a GPU.

A backend can be replaced (`replaced_backend`), so that tests run the GPU's code with real numbers on a CPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from axml_ray.network.backends.base import Backend
from axml_ray.network.backends.cpu_backend import CpuBackend
from axml_ray.network.backends.cuda_backend import CudaBackend

_backends: dict[str, Backend] = {}
"""The backends in use, by the type of their device."""


def backend_for(device: torch.device) -> Backend:
    """Return the backend of a device. A GPU's sets what libraries read from the environment before their first use."""
    if device.type not in _backends:
        _backends[device.type] = CpuBackend() if device.type == "cpu" else CudaBackend(device.type)
    return _backends[device.type]


@contextmanager
def replaced_backend(device: torch.device, backend: Backend) -> Iterator[Backend]:
    """Use another backend for all devices of this type until the block ends, in all threads of this process."""
    before = dict(_backends)
    _backends[device.type] = backend
    try:
        yield backend
    finally:
        del _backends[device.type]
        _backends.update(before)
