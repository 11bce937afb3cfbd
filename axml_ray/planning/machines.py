"""The hardware that a plan is made for: a given number of GPUs, or this machine."""

import math
from dataclasses import dataclass

import torch

from axml_ray.core.limits import available_cpus, available_memory
from axml_ray.network.backends.precision import product_format
from axml_ray.planning.memory import GIB
from axml_ray.settings import Experiment

ASSUMED_GPU_GIB = 80.0
"""Memory of a GPU where none is installed to ask."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The hardware that an ensemble would train on."""

    accelerator: bool
    """Whether each worker has a GPU."""
    units: float
    """Total number of GPUs, or of CPU cores."""
    unit_share: float
    """Number of GPUs or cores of one worker; may be a fraction."""
    memory: float
    """Memory of a worker in GiB; if `shared`, memory of the machine, which the workers share."""
    memory_source: str
    """Where that number comes from, for the report."""
    shared: bool
    width: int
    """Bytes of a value in matrix products: 2 for bfloat16 and float16, 4 for float32."""

    @property
    def unit(self) -> str:
        """The name of the units, for the report."""
        return "GPUs" if self.accelerator else "CPU cores"

    def side_by_side(self, workers: int, trees: int) -> int:
        """Return how many trees of `workers` workers train at the same time; 0 if not even one can start."""
        # The tolerance makes up for rounding of fractional shares, such as 3 workers of 1/3 GPU each.
        return min(trees, math.floor(self.units / (workers * self.unit_share) + 1e-9))

    def memory_of_worker(self, workers: int, trees: int) -> float:
        """Return the memory of one worker, in GiB."""
        return self.memory / (workers * max(1, self.side_by_side(workers, trees))) if self.shared else self.memory


def choose_machines(settings: Experiment, gpus: int | None, memory: float | None) -> Machines:
    """Return the hardware to plan for: a given number of GPUs, or the settings' resources.

    Args:
        settings: the experiment.
        gpus: total number of GPUs; None takes those of one tree's workers, or this machine's cores if they have none.
        memory: memory of a worker in GiB; None takes this machine's, or `ASSUMED_GPU_GIB`.
    """
    resources, precision = settings.resources, settings.training.precision
    source, shared = "as --memory says", False
    if gpus is None and not resources.gpus_per_worker:
        if memory is None:
            memory, shared = available_memory() / GIB, True
            source = f"of this machine's {memory:.1f} GiB"
        units, share, device = float(available_cpus()), resources.cpus_per_worker, "cpu"
    else:
        share = resources.gpus_per_worker or 1.0
        units, device = float(gpus) if gpus is not None else resources.min_workers * share, "cuda"
        has_gpu = torch.cuda.is_available()
        if memory is None:
            memory = torch.cuda.get_device_properties(0).total_memory / GIB if has_gpu else ASSUMED_GPU_GIB
            memory *= min(1.0, share)
            source = "of this machine's GPU" if has_gpu else "assumed; give another value by --memory GIB"
    # A GPU that is not here has a 16-bit format.
    is_known = device == "cpu" or precision != "auto" or torch.cuda.is_available()
    return Machines(
        accelerator=device == "cuda",
        units=units,
        unit_share=share,
        memory=memory,
        memory_source=source,
        shared=shared,
        width=product_format(torch.device(device), precision).itemsize if is_known else 2,
    )
