"""Model of the time of a level by its number of workers: what each of them computes, and what they exchange.

A worker of W encodes its part of a step's documents and scores all of them against its shard of the label table
(`training.distributed`). Three things keep W workers from being W times as fast:

- Each multiplies the hidden states of all documents by the first fully connected layer.
- A document's candidates are spread unevenly over shards, and a shard's pass is as wide as its fullest document.
- In each step, hidden states are gathered, their gradients summed and scattered, and the gradients of word vectors,
  encoder and head summed. Nothing is computed meanwhile.

Assumed, and not measured: ring algorithms, which send (W - 1) / W of the data once for a gather and twice for a sum; a
bandwidth and a latency for each collective; and that a worker's rate of operations does not depend on W.

Legend: B documents of a step, T tokens, D hidden dimension, W workers.
"""

from dataclasses import dataclass

from axml_ray.planning.memory import FLOAT, network_values, padded, parents_here
from axml_ray.planning.shapes import Counts, LevelShape
from axml_ray.planning.work import Work, count_steps, encoder_operations, forward_operations
from axml_ray.settings import Experiment

GPU_BANDWIDTH, CPU_BANDWIDTH = 20e9, 1e9
"""Bytes per second that are assumed between GPUs of a machine without NVLink, and between processes on CPUs."""
LATENCY = 50e-6
"""Seconds that are assumed for a collective operation besides its traffic."""
COLLECTIVES = 3
"""Collective operations of a training step: a gather, a reduce-scatter and a sum."""
EFFICIENT = 0.7
"""Share of linear speed-up down to which more workers are recommended."""


@dataclass(frozen=True, kw_only=True)
class Interconnect:
    """The connection between the workers of a tree."""

    bandwidth: float
    """Bytes per second that a worker sends and receives in collective operations."""
    source: str
    """Where that number comes from, for the report."""

    @classmethod
    def of(cls, accelerator: bool, gigabytes: float | None = None) -> "Interconnect":
        """Return a connection of a given bandwidth in 10⁹ bytes per second, or of the assumed one."""
        if gigabytes is not None:
            return cls(bandwidth=gigabytes * 1e9, source="as --bandwidth says")
        assumed = GPU_BANDWIDTH if accelerator else CPU_BANDWIDTH
        return cls(bandwidth=assumed, source="assumed; give another value by --bandwidth GB/S")


def worker_operations(settings: Experiment, counts: Counts, shape: LevelShape, workers: int) -> float:
    """Return the operations of the forward pass of a step on the worker of W that has the most."""
    network, documents = settings.network, settings.training.batch_size
    encoded, projected = encoder_operations(network, counts.word_dimension, counts.tokens)
    all_candidates = forward_operations(network, counts.word_dimension, counts.tokens, shape.candidates)
    of_candidate = (all_candidates - encoded - projected) / shape.candidates
    here = -(-shape.rows // workers) if shape.parents is None else parents_here(shape, workers) * shape.block
    return -(-documents // workers) * encoded + documents * (projected + here * of_candidate)


def step_traffic(settings: Experiment, counts: Counts, workers: int, width: int) -> float:
    """Return the bytes that a worker sends in a training step, which equal those that it receives.

    Args:
        settings: the experiment.
        counts: sizes of its corpus.
        workers: number of workers, W.
        width: bytes of a value in matrix products.
    """
    documents, tokens = settings.training.batch_size, padded(round(counts.tokens))
    states = width * documents * tokens * 2 * settings.network.hidden
    words = min(counts.words, round(documents * counts.tokens)) * counts.word_dimension
    replicated = network_values(settings.network, counts.word_dimension)
    gradients = FLOAT * (replicated + words * settings.network.train_embeddings)
    # The states are gathered and their gradients scattered once; a sum is a scatter and a gather.
    return (workers - 1) / workers * (2 * states + 2 * gradients)


@dataclass(frozen=True, kw_only=True)
class LevelTime:
    """The time of a level with a number of workers, in seconds."""

    computing: float
    """Time of the worker that computes the most."""
    exchanging: float
    """Time of the collective operations."""

    @property
    def seconds(self) -> float:
        """The sum, as nothing is computed while workers exchange."""
        return self.computing + self.exchanging


def level_time(
    settings: Experiment,
    counts: Counts,
    shape: LevelShape,
    work: Work,
    *,
    workers: int,
    width: int,
    rate: float,
    interconnect: Interconnect,
) -> LevelTime:
    """Return the time of all epochs of a level, its evaluations and its scoring.

    Args:
        settings: the experiment; its `resources` are not read.
        counts: sizes of its corpus.
        shape: sizes of the level.
        work: operations of the level.
        workers: number of workers, W.
        width: bytes of a value in matrix products.
        rate: operations per second of one worker.
        interconnect: the connection between the workers.
    """
    share = worker_operations(settings, counts, shape, workers) / worker_operations(settings, counts, shape, 1)
    exchanging = 0.0
    if workers > 1:
        # Documents that are only scored: their states are gathered, in batches as large as those of training.
        scored = (work.validation + work.scoring) / work.document
        steps = count_steps(settings, counts, shape.number)
        states = width * padded(round(counts.tokens)) * 2 * settings.network.hidden * (workers - 1) / workers
        traffic = steps * step_traffic(settings, counts, workers, width) + scored * states
        collectives = steps * COLLECTIVES + COLLECTIVES * scored / settings.training.batch_size
        exchanging = traffic / interconnect.bandwidth + collectives * LATENCY
    return LevelTime(computing=share * work.total / rate, exchanging=exchanging)


def efficiency(one: LevelTime, several: LevelTime, workers: int) -> float:
    """Return the share of linear speed-up that several workers reach, given the times of one and of all."""
    return one.seconds / (workers * several.seconds)
