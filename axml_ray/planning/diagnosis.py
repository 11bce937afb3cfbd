"""Diagnosis of what this machine offers a training, and the settings that follow: findings of `axml-ray doctor`."""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import axml_ray
from axml_ray.cluster.authentication import MODE, token_file
from axml_ray.core.errors import SettingsError
from axml_ray.core.extras import EXTRAS, missing_module
from axml_ray.core.limits import available_cpus, available_memory, temporary_directory
from axml_ray.core.paths import HOME_VARIABLE, absolute
from axml_ray.network.backends.precision import fast_formats
from axml_ray.planning.memory import GIB
from axml_ray.settings import NetworkSettings
from axml_ray.settings.configuration import SHIPPED
from axml_ray.settings.presets import tree_share

TREES = 3
"""Label trees of the paper's ensemble, which should train side by side."""
LEAST_MEMORY_GIB, LEAST_DISK_GIB = 4.0, 5.0
"""Memory and disk space below which even the demo may fail."""
SHARED_MEMORY = Path("/dev/shm")
"""Linux's shared memory, in which Ray keeps its objects."""
OBJECT_STORE_GIB = 1.0
"""Size of the object store that a job on this machine starts."""


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis: what was looked at, what is here, and what follows or how to fix it."""

    subject: str
    value: str
    meaning: str
    is_problem: bool = False
    """Whether a training may fail because of it."""


def diagnose() -> list[Finding]:
    """Look at this machine. Ray is not started."""
    return [*_software(), *_cores(), *_memory(), *_gpus(), *_ray(), *_disk()]


def _software() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.machine()}"
    python = f"Python {platform.python_version()}, PyTorch {torch.__version__}, {system}"
    yield Finding("axml-ray", f"{axml_ray.__version__}, {python}", f"configs for --config are in {SHIPPED}")
    installed = [extra for extra, modules in EXTRAS.items() if not missing_module(modules)]
    missing = [extra for extra in EXTRAS if extra not in installed]
    install = f'pip install "axml-ray[{",".join(missing)}]" adds {", ".join(missing)}'
    yield Finding("extras", ", ".join(installed) or "none", install if missing else "all are installed")


def _cores() -> Iterator[Finding]:
    cores = available_cpus()
    yield Finding(
        "cores",
        f"{cores}",
        f"{TREES} trees train side by side with --resources.cpus_per_worker {tree_share(cores, TREES):g}",
    )
    speed, fastest = ("faster", "bfloat16") if fast_formats(torch.device("cpu")) else ("not faster", "float32")
    yield Finding("bfloat16", f"{speed} than float32", f"--training.precision auto computes in {fastest} on this CPU")


def _memory() -> Iterator[Finding]:
    memory = available_memory() / GIB
    small = memory < LEAST_MEMORY_GIB
    fix = f"less than {LEAST_MEMORY_GIB:g} GiB: set --corpus.max_train_documents and --network.hidden lower"
    room = f"room to train about {trainable_labels(memory):,} labels of --network.hidden {NetworkSettings().hidden}"
    meaning = fix if small else f"{room}; axml-ray plan computes it for a config"
    yield Finding("memory", f"{memory:.1f} GiB", meaning, small)
    if SHARED_MEMORY.is_dir():
        shared = shutil.disk_usage(SHARED_MEMORY).free / GIB
        small = shared < OBJECT_STORE_GIB
        fix = "in a container, start it with --shm-size 2g; Ray uses files instead, which are slow"
        meaning = fix if small else f"enough for Ray's object store of {OBJECT_STORE_GIB:g} GiB"
        yield Finding("shared memory", f"{shared:.1f} GiB free", meaning, small)


def trainable_labels(memory_gib: float) -> int:
    """Return about how many labels a worker can train with half of its memory, to two digits.

    A label has an attention vector of 2 · hidden floats (one for each direction of the LSTM), and four copies of it:
    two moments of Adam, the best and the average.
    """
    labels = int(memory_gib * GIB / 2 / (2 * NetworkSettings().hidden * 4 * 5))
    return round(labels, 2 - len(str(labels)))


def _gpus() -> Iterator[Finding]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count:
        workers = max(1, count // TREES)
        names = sorted({torch.cuda.get_device_properties(number).name for number in range(count)})
        memory = min(torch.cuda.get_device_properties(number).total_memory for number in range(count)) / GIB
        meaning = f"train on them with --resources.gpus_per_worker 1 --resources.workers {workers}"
        yield Finding("GPUs", f"{count} × {', '.join(names)}, {memory:.0f} GiB", meaning)
    elif shutil.which("nvidia-smi"):
        fix = "install a PyTorch with CUDA for this driver (pytorch.org); nvidia-smi is here, but PyTorch sees no GPU"
        yield Finding("GPUs", "none that PyTorch can use", fix, True)
    else:
        meaning = "training runs on the CPU; leave --resources.gpus_per_worker at 0"
        yield Finding("GPUs", "none", meaning)


def _ray() -> Iterator[Finding]:
    try:
        release = version("ray")
    except PackageNotFoundError:
        yield Finding("Ray", "not installed", "run: pip install axml-ray; only Tagger works without Ray", True)
        return
    address = os.environ.get("RAY_ADDRESS")
    where = f"jobs run on the cluster at RAY_ADDRESS={address}" if address else "a job starts Ray on this machine"
    if os.environ.get(MODE, "token").lower() == "disabled":
        fix = f"unset {MODE}: anyone who can reach this machine can run commands as you"
        yield Finding("Ray", f"{release}, without a token", fix, True)
    else:
        yield Finding("Ray", release, f"{where}; others need the token in {token_file()}")
    if not address:
        try:
            temporary_directory()
        except SettingsError as error:
            yield Finding("temporary files", os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), str(error), True)


def _disk() -> Iterator[Finding]:
    home = absolute("")
    base = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(base).free / GIB
    meaning, is_problem = f"corpora, runs and bundles are written below {home}; {HOME_VARIABLE} changes it", False
    if not os.access(base, os.W_OK):
        meaning, is_problem = f"{home} cannot be written; set {HOME_VARIABLE} to a directory of yours", True
    elif free < LEAST_DISK_GIB:
        meaning = f"less than {LEAST_DISK_GIB:g} GiB are left at {home}; set {HOME_VARIABLE} to a larger disk"
        is_problem = True
    yield Finding("disk", f"{free:,.0f} GiB free", meaning, is_problem)
