"""How much a level computes, and how fast this machine does: floating-point operations, and a measured rate.

Only matrix products on real tokens are counted, each multiplication and addition as one operation; padding, softmax,
dropout and the optimizer are in the rate, which is measured over whole steps.
"""

import time
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from axml_ray.network.kinds import build_network
from axml_ray.network.precision import use_threads
from axml_ray.planning.machines import Machines
from axml_ray.planning.shapes import Counts, LevelShape, level_shapes
from axml_ray.ragged import Ragged
from axml_ray.settings import Experiment, NetworkSettings, at_level
from axml_ray.training.batches import LevelData, make_batch
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level import LevelTraining, Validation

TRAINING = 3
"""Forward, and backward for weights and for inputs."""
MEASURED_ROWS, MEASURED_NODES, MEASURED_WORDS = 2_048, 8_192, 20_000
"""Most rows of tables in a measurement: a step costs the same whatever lies in rows that it doesn't touch."""
STEP_OPERATIONS = {"cpu": 1e11}
"""Most operations of a measured step, so that several fit in the time; elsewhere the batch is whole."""
BATCHES = 4
"""That are measured, again and again."""
SECONDS = 10.0
"""That a measurement takes, over all levels; more where a step takes long."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Operations of one level of one tree, at most: patience may end it sooner."""

    document: float
    """Forward, for one document."""
    training: float
    """All epochs."""
    validation: float
    """Scoring the validation documents while it trains."""
    scoring: float
    """Scoring the training and validation documents for the level below; 0 at the last."""

    @property
    def total(self) -> float:
        """All of it."""
        return self.training + self.validation + self.scoring


def forward_operations(network: NetworkSettings, word_dimension: int, tokens: float, candidates: int) -> float:
    """Of one document: LSTMs and the folded first layer for each token, scores and contexts for each token and
    candidate, the further layers for each candidate."""
    hidden, first = network.hidden, network.fully_connected[0]
    token = 2 * 2 * 4 * hidden * (word_dimension + hidden) + 2 * 2 * hidden * first
    pair = 2 * 2 * hidden + 2 * first
    candidate = 2 * sum(a * b for a, b in pairwise((*network.fully_connected, 1)))
    return float(tokens * (token + candidates * pair) + candidates * candidate)


def steps_of(settings: Experiment, counts: Counts, level: int) -> int:
    """Steps of a level whose epochs all run."""
    return at_level(settings.training.epochs, level) * -(-counts.documents // settings.training.batch_size)


def level_work(settings: Experiment, counts: Counts, shape: LevelShape, last: bool) -> Work:
    """Of all workers together."""
    document = forward_operations(settings.network, counts.word_dimension, counts.tokens, shape.candidates)
    scorings = -(-steps_of(settings, counts, shape.number) // settings.training.score_every)
    return Work(
        document=document,
        training=TRAINING * document * at_level(settings.training.epochs, shape.number) * counts.documents,
        validation=scorings * counts.valid_documents * document,
        scoring=0.0 if last else (counts.documents + counts.valid_documents) * document,
    )


def known_rates(
    settings: Experiment, counts: Counts, machines: Machines, tflops: float | None
) -> tuple[tuple[float, ...] | None, str]:
    """Operations a second of one worker for each level, and where they are from.

    Args:
        settings: the experiment.
        counts: of its corpus.
        machines: what it would train on.
        tflops: 10¹² operations a second that are known; None measures, where this machine has what is asked for.
    """
    shapes = level_shapes(counts.labels, settings.tree)
    if tflops is not None:
        return (tflops * 1e12,) * len(shapes), "as --rate says"
    if machines.accelerator and not torch.cuda.is_available():
        return None, ""
    device = torch.device("cuda" if machines.accelerator else "cpu")
    rates = [measured_rate(settings, counts, shape, device, SECONDS / len(shapes)) for shape in shapes]
    if machines.accelerator:
        return tuple(rates), "measured on this machine's GPU with some steps of each level on generated texts"
    workers, resources = settings.resources.workers, settings.resources
    threads = workers * machines.side_by_side(workers, settings.ensemble.trees) * resources.threads_of_worker
    share = min(1.0, machines.units / max(1, threads))
    return tuple(rate * share for rate in rates), (
        "measured on this machine with some steps of each level on generated texts, tables and batches shrunk"
    )


def measured_rate(
    settings: Experiment, counts: Counts, shape: LevelShape, device: torch.device, seconds: float
) -> float:
    """Operations a second of real training steps on generated documents of the level's shape, on this machine.

    The tables have fewer rows, and on a CPU a step has fewer documents, where it would take long.

    Args:
        settings: the experiment.
        counts: of its corpus.
        shape: of the level.
        device: to measure.
        seconds: how long, after some first steps; at least one step is measured.
    """
    if device.type == "cpu":
        use_threads(settings.resources.threads_of_worker)
    rows = min(shape.rows, MEASURED_ROWS if shape.parents else MEASURED_NODES)
    parents = None if shape.parents is None else min(shape.parents, rows)
    shape = replace(shape, rows=rows, nodes=rows * shape.block, parents=parents)
    counts = replace(counts, words=min(counts.words, MEASURED_WORDS), tokens=max(1, round(counts.tokens)))
    operations = TRAINING * forward_operations(settings.network, counts.word_dimension, counts.tokens, shape.candidates)
    documents = int(max(1, min(settings.training.batch_size, STEP_OPERATIONS.get(device.type, np.inf) / operations)))
    data, level = _generated(counts, shape, documents), shape.level()
    vectors = torch.empty(counts.words, counts.word_dimension).uniform_(-1, 1)
    network = build_network(level, vectors, settings.network).to(device)
    # Random texts teach nothing, and a step takes as long at any rate; at a high one the loss might diverge.
    slow = settings.training.model_copy(update={"learning_rate": 1e-6})
    training = LevelTraining(
        network, data, Validation(data.tokens, data.positives), slow, 0, DistributedContext(device=device)
    )
    batches = [
        make_batch(data, level, start + np.arange(documents)) for start in range(0, BATCHES * documents, documents)
    ]
    for batch in batches:  # makes kernels, and touches rows and moments for the first time
        training.step(batch)
    began, steps = _now(device), 0
    while not steps or _now(device) - began < seconds:
        training.step(batches[steps % BATCHES])
        steps += 1
    return steps * documents * operations / (_now(device) - began)


def _generated(counts: Counts, shape: LevelShape, documents: int) -> LevelData:
    """Some batches of documents of the mean length, each with three true nodes."""
    random = np.random.default_rng(0)
    several, tokens = BATCHES * documents, int(counts.tokens)
    words = random.integers(1, counts.words, several * tokens, dtype=np.int32)
    parents = None
    first = random.integers(0, shape.nodes, several)
    if shape.parents is not None:
        parents = np.stack([random.permutation(shape.rows)[: shape.parents] for _ in range(several)])
        first = parents[:, 0] * shape.block
    nodes = np.sort((first[:, None] + np.arange(3)) % shape.nodes, axis=1).astype(np.int32)
    return LevelData(
        Ragged(words, np.arange(several + 1, dtype=np.int64) * tokens),
        Ragged(nodes.ravel(), np.arange(several + 1, dtype=np.int64) * 3),
        parents,
    )


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
