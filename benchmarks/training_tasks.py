"""The levels that `training.py` trains: their data, our training of them step by step, and what a turn took."""

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from axml_ray.core.paths import absolute
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.store import Corpus
from axml_ray.network.fast.attention_xml import FusedAttentionXML
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings, Precision, TrainingSettings
from axml_ray.training.batches import LevelData
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level import LevelTraining

NODES = 2_048
PARENTS, CHILDREN = 80, 16
BATCH = 40
DEEP_DOCUMENTS = 8_000  # documents that get candidates
SEED = 7


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The number of rounds and steps to measure."""

    rounds: int
    """Turns of each side."""
    steps: int
    """Steps of a turn."""
    threads: int
    """Torch threads, over all workers."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The level and training data of both sides. D documents, C parents, K children."""

    corpus: str
    """Name of the corpus, and of the one that it replaces, if any."""
    vectors: torch.Tensor
    """Initial word vectors."""
    nodes: int
    """Number of nodes of the level."""
    data: LevelData
    """Texts, true nodes, and parents int64 [D, C] where the level is deep."""

    @property
    def candidates(self) -> np.ndarray | None:
        """Return the children of the parents, int64 [D, C·K]; None at a first level."""
        if self.data.parents is None:
            return None
        return (self.data.parents[:, :, None] * CHILDREN + np.arange(CHILDREN)).reshape(len(self.data.parents), -1)


@dataclass
class Turns:
    """The seconds, documents and tokens of one side in each of its turns, and its steps in all."""

    seconds: list[float]
    documents: list[int]
    tokens: list[int]
    steps: int = 0

    def add(self, other: "Turns") -> None:
        """Append later turns."""
        self.seconds += other.seconds
        self.documents += other.documents
        self.tokens += other.tokens
        self.steps += other.steps

    def row(self, **about: Any) -> dict[str, Any]:
        """Return a row of the results."""
        seconds = sum(self.seconds)
        return {
            **about,
            "documents_per_second": sum(self.documents) / seconds,
            "tokens_per_second": sum(self.tokens) / seconds,
            "ms_per_step": 1_000 * seconds / self.steps,
            "steps": self.steps,
            "documents": sum(self.documents),
            "tokens_per_document": sum(self.tokens) / sum(self.documents),
        }


def open_corpus(name: str) -> tuple[str, Corpus]:
    """Return the name of a corpus for the rows, and the prepared corpus; quickstart replaces a missing docstrings.

    Raises:
        SettingsError: the corpus isn't prepared.
    """
    directory = absolute("corpora")
    if name == "docstrings" and not (directory / name).is_dir():
        return "quickstart, as docstrings isn't prepared", Corpus.open(directory / "quickstart")
    return name, Corpus.open(directory / name)


def first_level(name: str) -> Task:
    """Return a first level of 2,048 nodes over all training documents of a corpus."""
    shown, corpus = open_corpus(name)
    return first_level_of(corpus, shown)


def first_level_of(corpus: Corpus, shown: str) -> Task:
    """Return the task of `first_level` for an open corpus."""
    train = corpus.split("train")
    owner = np.repeat(np.arange(len(train)), train.labels.lengths)
    known = train.labels.values < corpus.trained
    nodes = train.labels.values[known].astype(np.int64) * NODES // corpus.trained
    vectors = torch.from_numpy(corpus.word_vectors())
    positives = ragged(owner[known], nodes, len(train), NODES)
    return Task(corpus=shown, vectors=vectors, nodes=NODES, data=LevelData(train.tokens, positives))


def deep_level(nodes: int) -> Task:
    """Return a level whose parents and true nodes are drawn at random, over the texts of docstrings."""
    shown, corpus = open_corpus("docstrings")
    random = np.random.default_rng(SEED)
    train = corpus.split("train")
    documents = min(len(train), DEEP_DOCUMENTS)
    train = train.take(np.sort(random.permutation(len(train))[:documents]))
    # One parent of each of 80 equal ranges: distinct without a loop. Then in any order, as a beam has them.
    ranges = np.linspace(0, nodes // CHILDREN, PARENTS + 1).astype(np.int64)
    parents = random.permuted(random.integers(ranges[:-1], ranges[1:], (documents, PARENTS)), axis=1)
    owner = np.repeat(np.arange(documents), train.labels.lengths)
    true = parents[owner, random.integers(0, PARENTS, len(owner))] * CHILDREN
    true += random.integers(0, CHILDREN, len(owner))
    positives = ragged(owner, true, documents, nodes)
    vectors = torch.from_numpy(corpus.word_vectors())
    return Task(corpus=shown, vectors=vectors, nodes=nodes, data=LevelData(train.tokens, positives, parents))


def ragged(owner: np.ndarray, nodes: np.ndarray, documents: int, size: int) -> Ragged:
    """Return the nodes (below `size`) of each document, ascending, without repeats."""
    owner, nodes = np.divmod(np.unique(owner * size + nodes), size)
    ends = np.cumsum(np.bincount(owner, minlength=documents), dtype=np.int64)
    return Ragged(nodes.astype(np.int32), np.concatenate([np.zeros(1, np.int64), ends]))


def our_training(
    task: Task, hidden: int, workers: DistributedContext | None = None, precision: Precision = "auto"
) -> LevelTraining:
    """Build the training of a level, as `training.tree` does."""
    torch.manual_seed(SEED)
    data = task.data
    deep = data.parents is not None
    first_child = np.arange(0, task.nodes + 1, CHILDREN, dtype=np.int64) if deep else None
    level = Level(2 if deep else 1, task.nodes, first_child)
    workers = workers or DistributedContext()
    network = FusedAttentionXML(level, task.vectors, NetworkSettings(hidden=hidden), workers.shard)
    network.initialise_output_bias(len(data.positives.values) / (len(data.positives) * task.nodes))
    validation = LevelData(data.tokens, data.positives)  # never scored here
    settings = TrainingSettings(batch_size=BATCH, precision=precision)
    return LevelTraining(network, data, validation, settings, SEED, workers)


def our_steps(training: LevelTraining) -> Iterator[np.ndarray]:
    """Train step by step, as `LevelTraining.run` does; yield this worker's documents of each step."""
    for epoch in itertools.count():
        training.state.epoch, training.state.batch = epoch, 0
        for batch in training.batches():
            training.step(batch)
            yield batch.rows


def touch(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Write to every page of the optimizers' state."""
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    value.add_(0)


def take_turn(turns: Turns, ours: Iterator[np.ndarray], steps: int, lengths: np.ndarray) -> list[np.ndarray]:
    """Do some of our steps, record them, and return their documents."""
    began = time.perf_counter()
    done = [next(ours) for _ in range(steps)]
    account(turns, began, [len(rows) for rows in done], [int(lengths[rows].sum()) for rows in done])
    return done


def account(turns: Turns, began: float, documents: Sequence[int], tokens: Sequence[int]) -> None:
    """Record a turn that ends now."""
    turns.seconds.append(time.perf_counter() - began)
    turns.documents.append(sum(documents))
    turns.tokens.append(sum(tokens))
    turns.steps += len(documents)
