"""Speed and memory of a level's training on this machine's CPU, compared with `literal_training`.

    python benchmarks/training.py [--quick] [--only NAME] [--threads N] [--json PATH]

Both train the same corpus with the same settings: hidden 256, fully connected 256, 40 documents a step, dropouts on.
They alternate: ours trains some steps of its shuffled epoch, then the literal implementation the same documents, in
random batches. A speedup is the median over these rounds of the ratio of documents per second, which is also that of
real tokens per second, since the documents are the same. Warm-up steps aren't counted.

The literal implementation has its own process, in which freed memory is kept (`keep_freed_memory`), as it is in ours.
Otherwise glibc would return each large block to the kernel at once, and PyTorch's packed LSTM makes one of its whole
input's size for each time step of its backward pass: the kernel would then spend two thirds of a step of eurlex57k on
clearing pages.

- `docstrings_level1`, `eurlex57k_level1`: a first level of 2,048 nodes, all scored. The node of a label is its place
  among 2,048 groups of neighbouring label ids (`label * 2048 // labels`): a step costs the same whichever labels
  share a node. If `corpora/docstrings` isn't prepared, `corpora/quickstart` is used, and the rows say so.
- `deep_level`: 1,280 candidates (80 parents of 16 children) out of 670,000 nodes. Parents and true nodes are drawn at
  random; the texts are those of docstrings.
- `deep_growth`: our deep step, hidden 128, at 100,000 and at 2,800,000 nodes, each in a process of its own: the
  median ratio of the seconds of a step on the same documents.
- `two_workers`: peak memory of a worker at a million nodes, alone and as one of two.
- `matrix_rate`: the useful operations per second in `docstrings_level1`, relative to the machine's best rate of matrix
  products. Useful are the operations on real tokens of LSTM, folded layer, attention and head; a step counts as three
  forward passes.
- `precisions`: the rate of `docstrings_level1` with precision "auto", over those with float32 and with bfloat16.

All pages of a table are written before a step is timed or a peak is read, since unwritten pages take no memory.
"""

import argparse
import itertools
import multiprocessing
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import literal_training
import numpy as np
import results_file
import torch
import torch.distributed as dist
from rich import box
from rich.table import Table

from axml_ray.corpus.store import Corpus
from axml_ray.memory import keep_freed_memory
from axml_ray.network.attention_xml import AttentionXML
from axml_ray.network.precision import format_name, product_format, use_threads
from axml_ray.network.tree_level import Level
from axml_ray.planning.work import TRAINING, forward_operations
from axml_ray.ragged import Ragged
from axml_ray.settings import NetworkSettings, Precision, TrainingSettings, absolute
from axml_ray.training.batches import LevelData
from axml_ray.training.distributed import CPU, DistributedContext
from axml_ray.training.level import LevelTraining, Validation
from axml_ray.training.progress import memory_gib

NODES = 2_048
DEEP_NODES, GROWTH_NODES, SHARED_NODES = 670_000, (100_000, 2_800_000), 1_000_000
PARENTS, CHILDREN = 80, 16
BATCH = 40
DEEP_DOCUMENTS = 8_000  # documents that get candidates
WARM_STEPS = 16  # in our steps, oneDNN compiles a kernel at the first batch of each length
SEED = 7
OURS, LITERAL = "ours", "literal"


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


Result = results_file.Result


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts, print their rows, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: under 10 minutes on 2 cores")
    parser.add_argument("--only", choices=PARTS, help="run this part alone")
    parser.add_argument("--threads", type=int, default=results_file.cores(), help="default: all usable cores")
    parser.add_argument("--rounds", type=int, help="turns of each side; default: 4 if quick, else 12")
    parser.add_argument(
        "--json", type=Path, help="default: benchmarks/results/training.json, with --only NAME training-NAME.json"
    )
    given = parser.parse_args(arguments)
    rounds = given.rounds or (4 if given.quick else 12)
    if given.threads < 1 or rounds < 1:
        parser.error("--threads and --rounds: at least 1")
    use_threads(given.threads)

    def measure(name: str) -> results_file.Result:
        part, quick_steps, steps = PARTS[name]
        return part(Effort(rounds=rounds, steps=quick_steps if given.quick else steps, threads=given.threads))

    names = [given.only] if given.only else list(PARTS)
    part = f"-{given.only}" if given.only else ""
    path = given.json or results_file.RESULTS / f"training{part}.json"
    results_file.measure_parts(names, measure, table, path, threads=given.threads)


# Ours


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
    network = AttentionXML(level, task.vectors, NetworkSettings(hidden=hidden), workers.shard)
    network.head.initialise_output_bias(len(data.positives.values) / (len(data.positives) * task.nodes))
    validation = Validation(data.tokens, data.positives)  # never scored here
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


# Data


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


# Ours and the literal implementation, in turns


def docstrings_level1(effort: Effort) -> Result:
    """Measure a first level on docstrings."""
    return against_literal("docstrings_level1", partial(first_level, "docstrings"), effort)


def eurlex57k_level1(effort: Effort) -> Result:
    """Measure a first level on eurlex57k."""
    return against_literal("eurlex57k_level1", partial(first_level, "eurlex57k"), effort)


def deep(effort: Effort) -> Result:
    """Measure a deep level of 670,000 nodes."""
    return against_literal("deep_level", partial(deep_level, DEEP_NODES), effort)


def against_literal(name: str, build: Callable[[], Task], effort: Effort) -> Result:
    """Train both sides in alternating turns on the same documents."""
    task = build()
    training = our_training(task, 256)
    ours = our_steps(training)
    random = np.random.default_rng(SEED)
    turns = {OURS: Turns([], [], []), LITERAL: Turns([], [], [])}
    with processes([(serve_literal, (build, training.settings.learning_rate, effort.threads))]) as [pipe]:
        for _ in range(WARM_STEPS):
            warm = next(ours)
        touch([training.optimizer])
        ask([pipe], [warm])
        ask([pipe], [warm, warm])
        for _ in range(effort.rounds):
            documents = np.concatenate(take_turn(turns[OURS], ours, effort.steps, task.data.tokens.lengths))
            [turn] = ask([pipe], literal_training.random_batches(documents, BATCH, random))
            turns[LITERAL].add(turn)
    ratios = [
        literal_seconds / our_seconds
        for our_seconds, literal_seconds in zip(turns[OURS].seconds, turns[LITERAL].seconds, strict=True)
    ]
    about = {"corpus": task.corpus, "nodes": task.nodes, "longest": int(task.data.tokens.lengths.max())}
    rows: list[dict[str, Any]] = [turn.row(system=system, **about) for system, turn in turns.items()]
    whole = rows[0]["documents_per_second"] / rows[1]["documents_per_second"]
    speedup = statistics.median(ratios)
    rows.append({"speedup": speedup, "speedup_of_totals": whole, "speedups_of_rounds": ratios})
    return {f"{name}_speedup": speedup}, rows


def serve_literal(pipe: Connection, build: Callable[[], Task], learning_rate: float, threads: int) -> None:
    """Train the literal implementation on the batches that arrive through `pipe`, until it is closed."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    torch.manual_seed(SEED)
    task, sizes = build(), NetworkSettings()
    dropouts = sizes.embedding_dropout, sizes.encoder_dropout
    network = literal_training.LiteralLevel(
        task.nodes, task.data.parents is not None, task.vectors, sizes.hidden, sizes.fully_connected, dropouts
    )
    optimizers = literal_training.optimizers(network, learning_rate)
    waiting: deque[np.ndarray] = deque()
    steps = literal_training.train_steps(
        network,
        task.data.tokens,
        task.data.positives,
        (waiting.popleft() for _ in iter(int, 1)),  # endless: one batch per requested step
        candidates=task.candidates,
        optimizers=optimizers,
    )
    for served, batches in enumerate(asked(pipe)):
        waiting.extend(batches)
        turn = Turns([], [], [])
        began = time.perf_counter()
        done = [next(steps) for _ in batches]
        account(turn, began, [step.documents for step in done], [step.tokens for step in done])
        if served == 0:
            touch(optimizers)
        pipe.send(turn)


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


# Levels in processes of their own


@dataclass(frozen=True, kw_only=True)
class Place:
    """The level that a process trains, and its workers."""

    nodes: int
    hidden: int
    threads: int
    rank: int = 0
    workers: int = 1
    store: str = ""
    """Rendezvous file of the workers."""


@contextmanager
def processes(tasks: Sequence[tuple[Callable[..., None], tuple[Any, ...]]]) -> Iterator[list[Connection]]:
    """Start a process for each function and its arguments, and yield the pipes to them, their first argument."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in tasks]
    started = [
        context.Process(target=function, args=(theirs, *given), daemon=True)
        for (_, theirs), (function, given) in zip(pipes, tasks, strict=True)
    ]
    for process, (_, theirs) in zip(started, pipes, strict=True):
        process.start()
        theirs.close()  # so that a process that dies causes an EOFError here, not an endless wait
    try:
        yield [mine for mine, _ in pipes]
    finally:
        for mine, _ in pipes:
            mine.close()
        for process in started:
            process.join(timeout=30)
            if process.is_alive():
                process.terminate()


def asked(pipe: Connection) -> Iterator[Any]:
    """Yield what is received through a pipe, until it is closed."""
    while True:
        try:
            yield pipe.recv()
        except EOFError:
            return


def serve_level(pipe: Connection, place: Place) -> None:
    """Train a deep level by the number of steps that arrive through `pipe`, until it is closed."""
    use_threads(place.threads)
    if place.workers > 1:
        dist.init_process_group("gloo", init_method=f"file://{place.store}", rank=place.rank, world_size=place.workers)
    task = deep_level(place.nodes)
    before = memory_gib(CPU)
    training = our_training(task, place.hidden, DistributedContext.current(CPU))
    ours = our_steps(training)
    next(ours)
    touch([training.optimizer])
    for steps in asked(pipe):
        turns = Turns([], [], [])
        take_turn(turns, ours, steps, task.data.tokens.lengths)
        pipe.send((turns, {"peak_gib": memory_gib(CPU), "before_level_gib": before}))
    if place.workers > 1:
        dist.destroy_process_group()


def ask(pipes: Sequence[Connection], what: Any) -> list[Any]:
    """Send a request to all processes at once; return their answers."""
    for pipe in pipes:
        pipe.send(what)
    return [pipe.recv() for pipe in pipes]


def deep_growth(effort: Effort) -> Result:
    """Measure our deep step with few and with many nodes, in two processes that take turns."""
    places = [Place(nodes=nodes, hidden=128, threads=effort.threads) for nodes in GROWTH_NODES]
    totals = [Turns([], [], []) for _ in places]
    memory: list[dict[str, float]] = [{} for _ in places]
    with processes([(serve_level, (place,)) for place in places]) as pipes:
        for pipe in pipes:
            ask([pipe], WARM_STEPS)
        for _ in range(effort.rounds * effort.steps):  # one step each, since disturbances of the machine last longer
            for i, pipe in enumerate(pipes):
                [(turns, memory[i])] = ask([pipe], 1)
                totals[i].add(turns)
    # The seed is the same, so that step by step both trained the same documents.
    growths = [many / few for few, many in zip(totals[0].seconds, totals[1].seconds, strict=True)]
    rows: list[dict[str, Any]] = [
        total.row(system=OURS, nodes=place.nodes, hidden=place.hidden, **held)
        for place, total, held in zip(places, totals, memory, strict=True)
    ]
    growth = statistics.median(growths)
    rows.append({"growth": growth, "quartiles": statistics.quantiles(growths, n=4)})
    return {"deep_step_growth_100k_to_2800k": growth}, rows


def two_workers(effort: Effort) -> Result:
    """Measure the peak memory of a worker, alone and as one of two."""
    peaks, rows = [], []
    for workers in (1, 2):
        with tempfile.TemporaryDirectory(prefix="axml-ray-workers-") as directory:
            places = [
                Place(
                    nodes=SHARED_NODES,
                    hidden=256,
                    threads=max(1, effort.threads // workers),
                    rank=rank,
                    workers=workers,
                    store=str(Path(directory) / "meet"),
                )
                for rank in range(workers)
            ]
            with processes([(serve_level, (place,)) for place in places]) as pipes:
                answers = ask(pipes, effort.steps)
        for place, (turns, memory) in zip(places, answers, strict=True):
            about = {
                key: value for key, value in asdict(place).items() if key in ("nodes", "hidden", "rank", "workers")
            }
            rows.append(turns.row(system=OURS, **about, **memory))
        peaks.append(max(memory["peak_gib"] for _, memory in answers))
    rows.append({"memory_share": peaks[1] / peaks[0]})
    return {"memory_share_two_workers": peaks[1] / peaks[0]}, rows


# The machine's matrix rate


def matrix_rate(effort: Effort) -> Result:
    """Measure our useful operations per second relative to the machine's best rate."""
    task = first_level("docstrings")
    training = our_training(task, 256)
    ours = our_steps(training)
    for _ in range(WARM_STEPS):
        next(ours)
    rates = {"bfloat16": 0.0, "float32": 0.0}
    turns = Turns([], [], [])
    for _ in range(effort.rounds):  # in turns, so that a slow minute slows both
        for name in rates:
            rates[name] = max(rates[name], gflops(getattr(torch, name)))
        take_turn(turns, ours, effort.steps, task.data.tokens.lengths)
    tokens, documents = sum(turns.tokens), sum(turns.documents)
    forward = forward_operations(NetworkSettings(), task.vectors.shape[1], tokens / documents, task.nodes)
    useful = TRAINING * documents * forward / 1e9 / sum(turns.seconds)
    computed = format_name(product_format(CPU, "auto"))
    row = turns.row(system=OURS, corpus=task.corpus, nodes=task.nodes)
    row |= {f"{name}_gflop_per_second": rate for name, rate in rates.items()}
    row |= {"useful_gflop_per_second": useful, "computed_in": computed}
    row |= {f"share_of_{name}_rate": useful / rate for name, rate in rates.items()}
    return {"matrix_rate_share": useful / rates[computed]}, [row]


def precisions(effort: Effort) -> Result:
    """Compare the speed of precision "auto" with float32 and bfloat16."""
    task = first_level("docstrings")
    asked: tuple[Precision, ...] = ("auto", "float32", "bfloat16")
    steps = {name: our_steps(our_training(task, 256, precision=name)) for name in asked}
    turns = {name: Turns([], [], []) for name in asked}
    for ours in steps.values():
        for _ in range(WARM_STEPS):
            next(ours)
    for _ in range(effort.rounds):
        for name, ours in steps.items():
            take_turn(turns[name], ours, effort.steps, task.data.tokens.lengths)
    rows = [turn.row(system=f"{OURS}, {name}", corpus=task.corpus, nodes=task.nodes) for name, turn in turns.items()]
    figures = {
        f"auto_over_{name}": statistics.median(
            other / auto for auto, other in zip(turns["auto"].seconds, turns[name].seconds, strict=True)
        )
        for name in asked[1:]
    }
    return figures, rows


def gflops(number: torch.dtype) -> float:
    """Return the best rate of some large matrix products, in 10⁹ operations per second."""
    best = 0.0
    for rows, inner, columns in ((2_048, 2_048, 2_048), (4_096, 2_048, 4_096), (4_096, 512, 2_048)):
        left, right = torch.randn(rows, inner).to(number), torch.randn(inner, columns).to(number)
        for _ in range(4):
            began = time.perf_counter()
            torch.matmul(left, right)
            best = max(best, 2e-9 * rows * inner * columns / (time.perf_counter() - began))
    return best


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the timed rows as a table for a rich console."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, collapse_padding=True)
    for name in ("part", "system", "nodes", "workers"):
        shown.add_column(name)
    for name in ("documents/s", "tokens/s", "ms a step", "peak GiB", "speedup"):
        shown.add_column(name, justify="right")
    for row in rows:
        ratio = next((row[key] for key in ("speedup", "growth", "memory_share") if key in row), None)
        shown.add_row(
            row["part"],
            "skipped" if "skipped" in row else row.get("system", "ratio"),
            f"{row['nodes']:,}" if "nodes" in row else "",
            str(row.get("workers", "")),
            *(f"{row[key]:,.1f}" if key in row else "" for key in ("documents_per_second", "tokens_per_second")),
            *(f"{row[key]:,.2f}" if key in row else "" for key in ("ms_per_step", "peak_gib")),
            f"{ratio:.3f}" if ratio is not None else "",
        )
    return shown


# What to run, and the steps of a turn if quick and if not
PARTS: dict[str, tuple[Callable[[Effort], Result], int, int]] = {
    "docstrings_level1": (docstrings_level1, 10, 16),
    "eurlex57k_level1": (eurlex57k_level1, 4, 6),
    "deep_level": (deep, 8, 12),
    "deep_growth": (deep_growth, 10, 16),
    "two_workers": (two_workers, 8, 16),
    "matrix_rate": (matrix_rate, 10, 16),
    "precisions": (precisions, 10, 16),
}


if __name__ == "__main__":
    results_file.run(main)
