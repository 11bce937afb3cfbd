"""What an ensemble would train on: GPUs that are asked for, or this machine."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from axml_ray.network.precision import bfloat16_is_faster
from axml_ray.planning.memory import GIB
from axml_ray.settings import Experiment

ASSUMED_GPU_GIB = 80.0
GROUPS = Path("/sys/fs/cgroup")
"""Where Linux says what a container may use."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """What an ensemble would train on."""

    accelerator: bool
    """Whether each worker has a GPU."""
    units: float
    """GPUs, or CPU cores, in all."""
    unit_share: float
    """Of them, for one worker."""
    memory: float
    """GiB that a worker may hold; where `shared`, GiB of the machine."""
    memory_source: str
    """Where that is from, for people."""
    shared: bool
    """Whether the workers share that memory."""
    width: int
    """Bytes of a value in matrix products."""

    @property
    def unit(self) -> str:
        """What there are several of."""
        return "GPUs" if self.accelerator else "CPU cores"

    def side_by_side(self, workers: int, trees: int) -> int:
        """Trees that train at the same time; 0 where not even one would start."""
        return min(trees, math.floor(self.units / (workers * self.unit_share) + 1e-9))

    def memory_of_worker(self, workers: int, trees: int) -> float:
        """GiB."""
        return self.memory / (workers * max(1, self.side_by_side(workers, trees))) if self.shared else self.memory


def memory_here(groups: Path = GROUPS) -> float:
    """Bytes that this process may use: the machine's, or what a container is limited to."""
    limits = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limits += _limits(groups / name)
    return min(limits)


def cores_here(groups: Path = GROUPS) -> float:
    """Cores that this process may use, a fraction where a container is limited to one."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = _limits(groups / "cpu.max")  # microseconds of every so many
    return min(float(usable), share[0] / share[1]) if len(share) == 2 else float(usable)


def _limits(path: Path) -> list[float]:
    """The numbers of a control group's file; none where it isn't there or says "max"."""
    try:
        return [float(word) for word in path.read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return []


def machines_of(settings: Experiment, gpus: int | None, memory: float | None) -> Machines:
    """What is asked for: so many GPUs, one a worker, or the settings' resources on this machine.

    Args:
        settings: the experiment.
        gpus: in all; None takes those of one tree's workers, or this machine's cores where they have none.
        memory: GiB of a worker; None takes this machine's, or assumes a GPU's.
    """
    resources, precision = settings.resources, settings.training.precision
    here = torch.cuda.is_available()
    if gpus is None and not resources.gpus_per_worker:
        reduced = precision == "bfloat16" or (precision == "auto" and bfloat16_is_faster(torch.device("cpu")))
        whole = memory_here() / GIB
        return Machines(
            accelerator=False,
            units=cores_here(),
            unit_share=resources.cpus_per_worker,
            memory=whole if memory is None else memory,
            memory_source=f"of this machine's {whole:.1f} GiB" if memory is None else "as --memory says",
            shared=memory is None,
            width=2 if reduced else 4,
        )
    source = "as --memory says"
    if memory is None:
        memory = torch.cuda.get_device_properties(0).total_memory / GIB if here else ASSUMED_GPU_GIB
        source = "of this machine's GPU" if here else "assumed; --memory GIB says otherwise"
    share = 1.0 if gpus is not None else resources.gpus_per_worker
    return Machines(
        accelerator=True,
        units=float(gpus) if gpus is not None else resources.workers * share,
        unit_share=share,
        memory=memory * min(1.0, share),
        memory_source=source,
        shared=False,
        width=4 if precision == "float32" else 2,
    )
