"""The hardware that a plan is made for: a given number of GPUs, or this machine."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from axml_ray.network.precision import product_format
from axml_ray.planning.memory import GIB
from axml_ray.settings import Experiment

ASSUMED_GPU_GIB = 80.0
"""Memory of a GPU where none is installed to ask."""
GROUPS = Path("/sys/fs/cgroup")
"""Linux's control groups, which limit a container's memory and CPU time."""


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
    """Memory of a worker in GiB; if `shared`, memory of the machine."""
    memory_source: str
    """Where that number comes from, for the report."""
    shared: bool
    """Whether the workers share that memory."""
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


def memory_here(groups: Path = GROUPS) -> float:
    """Return the memory that this process may use, in bytes: the machine's, or the limit of its container."""
    limits = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limits += _limits(groups / name)
    return min(limits)


def cores_here(groups: Path = GROUPS) -> float:
    """Return the number of cores that this process may use; a container's limit may be a fraction."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = _limits(groups / "cpu.max")  # microseconds of CPU time in each period, and the period in microseconds
    return min(float(usable), share[0] / share[1]) if len(share) == 2 else float(usable)


def _limits(path: Path) -> list[float]:
    """Return the numbers in a control group's file; none if it does not exist or sets no limit ("max")."""
    try:
        return [float(word) for word in path.read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return []


def choose_machines(settings: Experiment, gpus: int | None, memory: float | None) -> Machines:
    """Return the hardware to plan for: a given number of GPUs, one per worker, or the settings' resources.

    Args:
        settings: the experiment.
        gpus: total number of GPUs; None takes those of one tree's workers, or this machine's cores if they have none.
        memory: memory of a worker in GiB; None takes this machine's, or `ASSUMED_GPU_GIB`.
    """
    resources, precision = settings.resources, settings.training.precision
    here = torch.cuda.is_available()
    if gpus is None and not resources.gpus_per_worker:
        whole = memory_here() / GIB
        return Machines(
            accelerator=False,
            units=cores_here(),
            unit_share=resources.cpus_per_worker,
            memory=whole if memory is None else memory,
            memory_source=f"of this machine's {whole:.1f} GiB" if memory is None else "as --memory says",
            shared=memory is None,
            width=product_format(torch.device("cpu"), precision).itemsize,
        )
    source = "as --memory says"
    if memory is None:
        memory = torch.cuda.get_device_properties(0).total_memory / GIB if here else ASSUMED_GPU_GIB
        source = "of this machine's GPU" if here else "assumed; give another value by --memory GIB"
    share = 1.0 if gpus is not None else resources.gpus_per_worker
    return Machines(
        accelerator=True,
        units=float(gpus) if gpus is not None else resources.workers * share,
        unit_share=share,
        memory=memory * min(1.0, share),
        memory_source=source,
        shared=False,
        width=product_format(torch.device("cuda"), precision).itemsize if here or precision != "auto" else 2,
    )
