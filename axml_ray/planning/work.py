"""Floating-point operations of a level, and the rate at which this machine computes them, which is measured.

Only matrix products on real tokens are counted, with each multiplication and each addition as one operation. Padding,
softmax, dropout and the optimizer lower the rate, which is measured over whole training steps.
"""

import math
import time
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.counts import Counts
from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.devices import synchronize
from axml_ray.network.backends.precision import use_threads
from axml_ray.network.kinds import build_network
from axml_ray.planning.machines import Machines
from axml_ray.planning.memory import FLOAT
from axml_ray.planning.shapes import LevelShape, network_shapes
from axml_ray.settings import Experiment, NetworkSettings, at_level
from axml_ray.training.batches import LevelData, make_batch
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level import EVALUATED, LevelTraining

TRAINING = 3
"""Operations of a training step relative to its forward pass: forward, and backward for weights and for inputs."""
MEASURED_NODES, MEASURED_WORDS = 8_192, 20_000
"""Most nodes of a first level, and most words, in a measurement."""
MEASURED_BYTES = 1 << 32
"""Most memory of a label table, its moments, and their copies in a step, in a measurement."""
TABLES = 8
"""Tables that a step may hold of the rows that it touches: weights, moments, gradients, and copies of all."""
BATCHES = 4
"""Number of batches that a measurement cycles through."""
SECONDS = 10.0
"""Time for the measurements of all levels together, in seconds; longer if single steps take longer."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Upper bound of the operations of one level of one tree; early stopping may save some."""

    document: float
    """Forward pass of one document."""
    training: float
    validation: float
    """Evaluations during training."""
    scoring: float
    """Beams of the training and validation documents for the next level; 0 at the leaf level."""

    @property
    def total(self) -> float:
        """The sum of training, validation and scoring."""
        return self.training + self.validation + self.scoring


def forward_operations(network: NetworkSettings, word_dimension: int, tokens: float, candidates: int) -> float:
    """Return the operations of the forward pass of one document (paper, section 2.6).

    They are the LSTMs and the first fully connected layer, (αH)W₁ = α(HW₁), for each token; attention scores and
    contexts (equation 2) for each token and candidate; and the further layers for each candidate.
    """
    hidden, units = network.hidden, network.fully_connected
    # 2 operations per multiply-add, 2 directions, 4 gates; the first layer reads the 2N states of both directions.
    token = 2 * 2 * 4 * hidden * (word_dimension + hidden) + 2 * 2 * hidden * units[0]
    pair = 2 * 2 * hidden + 2 * units[0]
    candidate = 2 * sum(a * b for a, b in pairwise((*units, 1)))
    return tokens * token + candidates * (tokens * pair + candidate)


def count_steps(settings: Experiment, counts: Counts, level: int) -> int:
    """Return the number of optimizer steps of a level (from 1) if all epochs run."""
    return at_level(settings.training.epochs, level) * -(-counts.documents // settings.training.batch_size)


def level_work(settings: Experiment, counts: Counts, shape: LevelShape, last: bool) -> Work:
    """Return the operations of one level of one tree, of all workers together; `last` says whether it has labels."""
    document = forward_operations(settings.network, counts.word_dimension, counts.network_tokens, shape.candidates)
    scorings = -(-count_steps(settings, counts, shape.number) // settings.training.eval_every_steps)
    evaluated = min(counts.valid_documents, EVALUATED)
    return Work(
        document=document,
        training=TRAINING * document * at_level(settings.training.epochs, shape.number) * counts.documents,
        validation=scorings * evaluated * document,
        scoring=0.0 if last else (counts.documents + evaluated) * document,
    )


def training_rates(
    settings: Experiment, counts: Counts, machines: Machines, tflops: float | None
) -> tuple[tuple[float, ...] | None, str]:
    """Return the operations per second of one worker for each level, and where the numbers come from, for the report.

    `tflops` is a known rate in 10¹² operations per second; without it the rates are measured, or None if this machine
    lacks the hardware.

    Raises:
        SettingsError: the network is not the paper's.
    """
    shapes = network_shapes(counts.labels, settings)
    if not shapes:
        return (), ""
    if settings.network.kind != "attention":
        raise SettingsError(
            f"network.kind: {settings.network.kind} cannot be planned; only the kind attention has estimates"
        )
    if tflops is not None:
        return (tflops * 1e12,) * len(shapes), "as --rate says"
    if machines.accelerator and not torch.cuda.is_available():
        return None, ""
    device = torch.device("cuda" if machines.accelerator else "cpu")
    workers, resources = settings.resources.min_workers, settings.resources
    memory = int(machines.memory_of_worker(workers, settings.ensemble.trees) * 2**30 / 2)
    memory = memory if machines.accelerator else min(MEASURED_BYTES, memory)
    rates = [measured_rate(settings, counts, shape, device, SECONDS / len(shapes), memory) for shape in shapes]
    if machines.accelerator:
        return tuple(rates), "measured on this machine's GPU with some steps of each level on generated texts"
    threads = workers * machines.side_by_side(workers, settings.ensemble.trees) * resources.threads_of_worker
    share = min(1.0, machines.units / max(1, threads))
    return tuple(rate * share for rate in rates), (
        "measured on this machine with some steps of each level on generated texts, tables and batches shrunk alike"
    )


def measured_rate(
    settings: Experiment,
    counts: Counts,
    shape: LevelShape,
    device: torch.device,
    seconds: float,
    memory: int = MEASURED_BYTES,
) -> float:
    """Measure the operations per second of training steps on generated documents: some `seconds`, at least one step.

    On a CPU a step is reduced to `Backend.step_operations`, and the table with it (`measured_shape`), which takes at
    most `memory` bytes with what training holds of it.
    """
    backend = backend_for(device)
    if backend.step_operations < math.inf:
        use_threads(settings.resources.threads_of_worker)
    tokens = max(1, round(counts.network_tokens))
    counts = replace(counts, words=min(counts.words, MEASURED_WORDS), tokens=tokens, network_share=1.0)
    if shape.parents is None:
        nodes = min(shape.nodes, MEASURED_NODES)
        shape = replace(shape, rows=nodes, nodes=nodes)
    operations = TRAINING * forward_operations(settings.network, counts.word_dimension, tokens, shape.candidates)
    documents = int(max(1, min(settings.training.batch_size, backend.step_operations / operations)))
    shape = measured_shape(settings, shape, documents, memory)
    data, level = generated(counts, shape, BATCHES * documents), shape.level()
    vectors = torch.empty(counts.words, counts.word_dimension).uniform_(-1, 1)
    network = build_network(level, vectors, settings.network).to(device)
    # On random texts the loss might diverge at a high learning rate, and a step's time does not depend on it.
    slow = settings.training.model_copy(update={"learning_rate": 1e-6})
    training = LevelTraining(
        network, data, LevelData(data.tokens, data.positives), slow, 0, DistributedContext(device=device)
    )
    batches = [
        make_batch(data, level, start + np.arange(documents)) for start in range(0, BATCHES * documents, documents)
    ]
    for batch in batches:  # warm-up: kernels are compiled, and rows and moments are touched for the first time
        training.step(batch)
    synchronize(device)
    began, spent, steps = time.perf_counter(), 0.0, 0
    while not steps or spent < seconds:
        training.step(batches[steps % BATCHES])
        synchronize(device)  # so that the device has completed the step
        spent, steps = time.perf_counter() - began, steps + 1
    return steps * documents * operations / spent


def measured_shape(settings: Experiment, shape: LevelShape, documents: int, memory: int) -> LevelShape:
    """Return the shape of a level in a measurement with fewer documents of a step.

    Below the first level, the table is reduced as the documents are. B documents that draw C of R rows touch
    R (1 - exp(-B C / R)) different ones, so each document then adds as many rows as in a whole step.
    """
    if shape.parents is None:
        return shape
    row = TABLES * FLOAT * shape.block * 2 * settings.network.hidden
    rows = min(-(-shape.rows * documents // settings.training.batch_size), memory // row)
    rows = min(shape.rows, max(rows, shape.parents))
    return replace(shape, rows=rows, nodes=rows * shape.block)


def generated(counts: Counts, shape: LevelShape, documents: int) -> LevelData:
    """Return random documents of the mean length with three true nodes each, and their parents if the level is deep.

    Parents are drawn from all rows of the table, so a step touches as many distinct rows as any corpus could.
    """
    random = np.random.default_rng(0)
    tokens = max(1, round(counts.network_tokens))
    token_ids = random.integers(1, counts.words, documents * tokens, dtype=np.int32)
    parents, first = None, random.integers(0, shape.nodes, documents)
    if shape.parents is not None:
        draws = [random.choice(shape.rows, shape.parents, replace=False, shuffle=False) for _ in range(documents)]
        parents = np.stack(draws).astype(np.int32)
        first = parents[:, 0].astype(np.int64) * shape.block
    nodes = np.sort((first[:, None] + np.arange(3)) % shape.nodes, axis=1).astype(np.int32)
    offsets = np.arange(documents + 1, dtype=np.int64)
    return LevelData(Ragged(token_ids, offsets * tokens), Ragged(nodes.ravel(), offsets * 3), parents)
