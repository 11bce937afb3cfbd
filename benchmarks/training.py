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
import multiprocessing
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
from training_tasks import (
    BATCH,
    SEED,
    Effort,
    Task,
    Turns,
    account,
    deep_level,
    first_level,
    our_steps,
    our_training,
    take_turn,
    touch,
)

from axml_ray.core.limits import available_cpus
from axml_ray.core.memory import keep_freed_memory
from axml_ray.network.backends.devices import peak_memory_gib
from axml_ray.network.backends.precision import format_name, product_format, use_threads
from axml_ray.planning.work import TRAINING, forward_operations
from axml_ray.settings import NetworkSettings, Precision
from axml_ray.training.distributed import CPU, DistributedContext

DEEP_NODES, GROWTH_NODES, SHARED_NODES = 670_000, (100_000, 2_800_000), 1_000_000
WARM_STEPS = 16  # in our steps, oneDNN compiles a kernel at the first batch of each length
OURS, LITERAL = "ours", "literal"


Result = results_file.Result


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts, print their rows, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: under 10 minutes on 2 cores")
    parser.add_argument("--only", choices=PARTS, help="run this part alone")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="default: all usable cores")
    parser.add_argument("--rounds", type=int, help="turns of each side; default: 4 if quick, else 12")
    parser.add_argument(
        "--json", type=Path, help="default: benchmarks/results/training.json, with --only NAME training-NAME.json"
    )
    options = parser.parse_args(arguments)
    rounds = options.rounds or (4 if options.quick else 12)
    if options.threads < 1 or rounds < 1:
        parser.error("--threads and --rounds: at least 1")
    use_threads(options.threads)

    def measure(name: str) -> results_file.Result:
        part, quick_steps, steps = PARTS[name]
        return part(Effort(rounds=rounds, steps=quick_steps if options.quick else steps, threads=options.threads))

    names = [options.only] if options.only else list(PARTS)
    part = f"-{options.only}" if options.only else ""
    path = options.json or results_file.RESULTS / f"training{part}.json"
    results_file.measure_parts(names, measure, table, path, threads=options.threads)


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
        request([pipe], [warm])
        request([pipe], [warm, warm])
        for _ in range(effort.rounds):
            documents = np.concatenate(take_turn(turns[OURS], ours, effort.steps, task.data.tokens.lengths))
            [turn] = request([pipe], literal_training.random_batches(documents, BATCH, random))
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
    for served, batches in enumerate(requests(pipe)):
        waiting.extend(batches)
        turn = Turns([], [], [])
        began = time.perf_counter()
        done = [next(steps) for _ in batches]
        account(turn, began, [step.documents for step in done], [step.tokens for step in done])
        if served == 0:
            touch(optimizers)
        pipe.send(turn)


# Levels in processes of their own


@dataclass(frozen=True, kw_only=True)
class LevelProcess:
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
        context.Process(target=function, args=(theirs, *arguments), daemon=True)
        for (_, theirs), (function, arguments) in zip(pipes, tasks, strict=True)
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


def requests(pipe: Connection) -> Iterator[Any]:
    """Yield what is received through a pipe, until it is closed."""
    while True:
        try:
            yield pipe.recv()
        except EOFError:
            return


def serve_level(pipe: Connection, place: LevelProcess) -> None:
    """Train a deep level by the number of steps that arrive through `pipe`, until it is closed."""
    use_threads(place.threads)
    if place.workers > 1:
        dist.init_process_group("gloo", init_method=f"file://{place.store}", rank=place.rank, world_size=place.workers)
    task = deep_level(place.nodes)
    before = peak_memory_gib(CPU)
    training = our_training(task, place.hidden, DistributedContext.current(CPU))
    ours = our_steps(training)
    next(ours)
    touch([training.optimizer])
    for steps in requests(pipe):
        turns = Turns([], [], [])
        take_turn(turns, ours, steps, task.data.tokens.lengths)
        pipe.send((turns, {"peak_gib": peak_memory_gib(CPU), "before_level_gib": before}))
    if place.workers > 1:
        dist.destroy_process_group()


def request(pipes: Sequence[Connection], message: Any) -> list[Any]:
    """Send a request to all processes at once; return their answers."""
    for pipe in pipes:
        pipe.send(message)
    return [pipe.recv() for pipe in pipes]


def deep_growth(effort: Effort) -> Result:
    """Measure our deep step with few and with many nodes, in two processes that take turns."""
    places = [LevelProcess(nodes=nodes, hidden=128, threads=effort.threads) for nodes in GROWTH_NODES]
    totals = [Turns([], [], []) for _ in places]
    memory: list[dict[str, float]] = [{} for _ in places]
    with processes([(serve_level, (place,)) for place in places]) as pipes:
        for pipe in pipes:
            request([pipe], WARM_STEPS)
        for _ in range(effort.rounds * effort.steps):  # one step each, since disturbances of the machine last longer
            for i, pipe in enumerate(pipes):
                [(turns, memory[i])] = request([pipe], 1)
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
                LevelProcess(
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
                answers = request(pipes, effort.steps)
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
    choices: tuple[Precision, ...] = ("auto", "float32", "bfloat16")
    steps = {name: our_steps(our_training(task, 256, precision=name)) for name in choices}
    turns = {name: Turns([], [], []) for name in choices}
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
        for name in choices[1:]
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
