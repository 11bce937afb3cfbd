"""Levels of generated documents for the parts of `gpu.py`, and their training steps timed on one device.

Legend: B documents of a step, T tokens, C parents of a document's candidates, K children of a parent.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from axml_ray.corpus.counts import Counts
from axml_ray.network.backends.backend import backend_for, replaced_backend
from axml_ray.network.backends.base import Backend
from axml_ray.network.backends.cuda_backend import CudaBackend
from axml_ray.network.backends.devices import peak_memory_gib, reset_peak_memory, synchronize
from axml_ray.network.kinds import build_network
from axml_ray.network.level_network import Beam
from axml_ray.planning.memory import level_memory
from axml_ray.planning.shapes import LevelShape
from axml_ray.planning.work import TRAINING, forward_operations, generated
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import load
from axml_ray.training.batches import LevelData, make_batch
from axml_ray.training.beam_search import expand_all
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level import LevelTraining

CPU = torch.device("cpu")
BATCHES, WARM_STEPS = 4, 6
GIB = 2**30


class BrokenBoundError(Exception):
    """A result is farther from the exact one than it may be."""


@contextmanager
def gpu_code(device: torch.device) -> Iterator[Backend]:
    """Run the GPU's code in the block, on a CPU too."""
    if device == CPU:
        with replaced_backend(device, CudaBackend("cpu")) as backend:
            yield backend
    else:
        torch.cuda.set_device(device.index or 0)  # synchronisation and peak memory are those of the current device
        yield backend_for(device)


def settings_of(device: torch.device, hidden: int, batch: int) -> Experiment:
    """Return the paper's settings with networks and batches of a size, in bfloat16 on a device."""
    settings = load(
        name="gpu",
        corpus={"source": "installed_packages"},
        network={"hidden": hidden, "fully_connected": (hidden, hidden // 2)},
        training={"batch_size": batch},
    )
    return on_device(settings, device)


def on_device(settings: Experiment, device: torch.device) -> Experiment:
    """Return the settings of one worker on a device, in bfloat16."""
    resources = settings.resources.model_copy(update={"gpus_per_worker": float(device != CPU), "workers": 1})
    training = settings.training.model_copy(update={"precision": "bfloat16"})
    return settings.model_copy(update={"resources": resources, "training": training})


def counts_of(tokens: int) -> Counts:
    """Return the counts of a generated corpus whose documents have a number of words."""
    sizes = {"documents": 10_000, "valid_documents": 100, "labels": 10_000, "words": 20_000, "word_dimension": 300}
    return Counts(**sizes, tokens=tokens, longest=tokens, source="generated")


def shape_of(number: int, rows: int, block: int = 1, parents: int | None = None) -> LevelShape:
    """Return the shape of a level whose rows are full."""
    return LevelShape(number=number, nodes=rows * block, rows=rows, block=block, parents=parents)


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Measured times and memory of a level."""

    step_ms: float
    """Milliseconds of a training step."""
    floor_ms: float
    """Milliseconds of the step's matrix products at the device's rate."""
    scoring_ms: float
    """Milliseconds of finding the beam of a document."""
    peak_gib: float
    """Peak memory of the training steps; 0 on a CPU, where it is not known for a part of a process."""
    planned_gib: float
    """What the plan says of it."""


def matrix_rate(device: torch.device, size: int) -> float:
    """Return the operations per second of bfloat16 products of size × size matrices (float32 on a CPU)."""
    backend = backend_for(device)
    dtype = next(iter(backend.fast_formats()), torch.float32)
    matrix = torch.randn(size, size, device=device).to(dtype)
    best = float("inf")
    for _ in range(5):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(4):
            matrix @ matrix
        synchronize(device)
        best = min(best, (time.perf_counter() - began) / 4)
    return 2 * size**3 / best


def training_of(
    settings: Experiment,
    counts: Counts,
    shape: LevelShape,
    device: torch.device,
    learning_rate: float = 1e-6,
    context: DistributedContext | None = None,
) -> LevelTraining:
    """Return the training of a level on generated documents, with its network on the device.

    On random texts the loss might diverge at a high learning rate, and a step's time does not depend on it.
    """
    context = context or DistributedContext(device=device)
    batch = settings.training.batch_size
    data = generated(counts, shape, BATCHES * batch)
    torch.manual_seed(0)
    vectors = torch.empty(counts.words, counts.word_dimension).uniform_(-1, 1)
    network = build_network(shape.level(), vectors, settings.network, context.shard).to(device)
    beam = None
    if data.parents is not None:
        nodes = torch.from_numpy(data.parents.astype(np.int64))
        beam = Beam(nodes, torch.zeros(nodes.shape))
    validation = LevelData(data.tokens, data.positives, beam=beam)
    slow = settings.training.model_copy(update={"learning_rate": learning_rate})
    return LevelTraining(network, data, validation, slow, 0, context)


def measure(
    settings: Experiment, counts: Counts, shape: LevelShape, device: torch.device, *, seconds: float, rate: float
) -> StepTimes:
    """Time the steps of a level for some seconds, and then the scoring of its documents."""
    backend = backend_for(device)
    reset_peak_memory(device)
    shape = replace(shape, nodes=shape.rows * shape.block)  # every row is full
    training = training_of(settings, counts, shape, device)
    batch = settings.training.batch_size
    level, rows = training.network.level, np.arange(batch)
    batches = [make_batch(training.data, level, rows + i * batch).stage(device) for i in range(BATCHES)]
    for step in range(WARM_STEPS if seconds else 1):
        training.step(batches[step % BATCHES])
    synchronize(device)
    began, steps = time.perf_counter(), 0
    while not steps or time.perf_counter() - began < seconds or (seconds and steps % backend.loss_interval):
        training.step(batches[steps % BATCHES])
        steps += 1
    synchronize(device)
    elapsed = time.perf_counter() - began
    peak = peak_memory_gib(device) if settings.resources.gpus_per_worker else 0.0
    operations = (
        TRAINING
        * batch
        * forward_operations(settings.network, counts.word_dimension, max(1, round(counts.tokens)), shape.candidates)
    )
    planned = level_memory(settings, counts, shape, workers=1, accelerator=peak > 0, width=2)
    scoring = _scoring_seconds(training, settings, device)
    return StepTimes(
        step_ms=1e3 * elapsed / steps,
        floor_ms=1e3 * operations / rate,
        scoring_ms=1e3 * scoring,
        peak_gib=peak,
        planned_gib=planned.total / GIB,
    )


def _scoring_seconds(training: LevelTraining, settings: Experiment, device: torch.device) -> float:
    """Return the seconds of finding the beam of a document, with the documents of training."""
    keep = min(settings.tree.beam, training.network.level.nodes)
    context = DistributedContext(device=device)
    documents = training.validation.tokens, training.validation.beam
    seconds = float("inf")
    for _ in range(2):  # the first compiles kernels
        began = time.perf_counter()
        for _ in expand_all(training.network, *documents, keep, precision=settings.training.precision, context=context):
            pass
        seconds = min(seconds, time.perf_counter() - began)
    return seconds / len(training.data.tokens)
