"""Training speed of a level under Ray, compared with a plain process.

    python benchmarks/ray_share.py --config configs/eurlex57k.yaml [--rounds 3] [--seconds 25] [--concurrent 1]
                                   [--json PATH]

The level is a first level of 2,048 groups of neighbouring label ids, all scored, with the config's corpus (which must
be prepared), network, batches and threads. The sides run one after the other; each reports the documents per second
after some warm-up steps, the page faults per step, the kernel's share of its processor time, and the number, memory
(MiB) and wake-ups per second of all processes that it started, Ray's included.

- `plain`: training in a process's main thread.
- `task`: training in one Ray task, as a job trains a tree that has one worker.
- `group`: training in a Ray Train group of one worker; jobs use groups for trees with several workers.

With `--concurrent 3`, each side runs three trainings at the same time, as a job trains its trees. Their documents are
added up; the other numbers are means.

Figures: `one_tree_share`, or `three_trees_share` with three concurrent trainings: the documents per second of `task`
relative to the plain process; `group_share`, the same of `group`; medians over the rounds.
"""

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import results_file
import torch
import training_tasks
from process_costs import costs_of_descendants
from rich.console import Console

from axml_ray.cli.parser import with_flags
from axml_ray.cluster.connection import connect
from axml_ray.core.limits import available_cpus
from axml_ray.corpus.store import Corpus
from axml_ray.network.backends.precision import use_threads
from axml_ray.network.kinds import build_network
from axml_ray.network.tree_level import Level
from axml_ray.settings import Experiment
from axml_ray.training.batches import LevelData
from axml_ray.training.level import LevelTraining

SIDES = ("plain", "task", "group")
TREES = {1: "one_tree_share", 3: "three_trees_share"}
"""Names of the figure by the number of concurrent trainings."""
WARM_STEPS = 10
START_SECONDS = 25
"""Seconds for a training to start and do its first steps, for each training that starts at the same time."""


def main() -> None:
    """Measure all sides in turn, or the one given by `--side`."""
    settings, options = with_flags("What Ray costs a level's training.", _flags)
    if options.side:
        print(json.dumps(side(settings, options.side, options.seconds, options.concurrent)))
        return
    console, rows = Console(), []
    for number in range(options.rounds):
        for name in SIDES:
            command = [sys.executable, __file__, "--side", name, *sys.argv[1:]]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            rows.append({"round": number, "side": name, **json.loads(done.stdout.splitlines()[-1])})
            console.print_json(json.dumps(rows[-1]), indent=None)
    rate = {name: [row["documents_per_second"] for row in rows if row["side"] == name] for name in SIDES}
    figures = {
        figure: statistics.median(ours / plain for ours, plain in zip(rate[name], rate["plain"], strict=True))
        for figure, name in ((TREES.get(options.concurrent, "task_share"), "task"), ("group_share", "group"))
    }
    console.print(figures)
    part = f"-{options.concurrent}" if options.concurrent > 1 else ""
    results_file.write(options.json or results_file.RESULTS / f"ray-share{part}.json", figures, rows)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=25, help="of each side and round, after its first steps")
    parser.add_argument("--concurrent", type=int, default=1, help="number of concurrent trainings of each side")
    parser.add_argument(
        "--json", type=Path, help="default: benchmarks/results/ray-share.json, with --concurrent 3 -3.json"
    )
    parser.add_argument("--side", choices=SIDES, help="measure and print only this side")


def side(settings: Experiment, name: str, seconds: float, concurrent: int) -> dict[str, float]:
    """Measure one side: the sum of the documents of concurrent trainings, and the means of the other numbers."""
    start = time.time() + START_SECONDS * (1 + concurrent)
    each = [(settings.model_dump_json(), seconds, start)] * concurrent
    with ThreadPoolExecutor(1) as watcher:
        costs = watcher.submit(_costs, start, seconds)
        trainings = _run_side(name, each)
    total = {key: sum(training[key] for training in trainings) for key in trainings[0]}
    means = {key: value / concurrent for key, value in total.items() if key != "documents_per_second"}
    return {"documents_per_second": total["documents_per_second"], **means, **costs.result()}


def _costs(start: float, seconds: float) -> dict[str, float]:
    """Measure the processes of this side while it trains."""
    time.sleep(max(0.0, start - time.time()))
    return costs_of_descendants(os.getpid(), seconds)


def _run_side(name: str, each: list[tuple[str, float, float]]) -> list[dict[str, float]]:
    """Run the trainings of one side at the same time and return what each reports."""
    concurrent = len(each)
    if name == "plain":
        with ProcessPoolExecutor(concurrent, multiprocessing.get_context("spawn")) as pool:
            return list(pool.map(trained, *zip(*each, strict=True)))
    import ray

    connect()
    cpus = min(1, available_cpus() / concurrent)
    with tempfile.TemporaryDirectory(prefix="axml-ray-share-") as directory:
        if name == "task":
            tasks = [ray.remote(num_cpus=cpus)(trained).remote(*arguments) for arguments in each]
        else:
            tasks = [ray.remote(num_cpus=0)(_group).remote(arguments, cpus, directory) for arguments in each]
        reports: list[dict[str, float]] = ray.get(tasks)
        return reports


def _group(what: tuple[str, float, float], cpus: float, directory: str) -> dict[str, float]:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = TorchTrainer(
        _work,
        train_loop_config={"what": what},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": cpus}),
        run_config=RunConfig(name=uuid.uuid4().hex, storage_path=directory),
    )
    report: dict[str, float] = trainer.fit().return_value
    return report


def _work(config: dict[str, Any]) -> dict[str, float]:
    return trained(*config["what"])


def trained(settings_json: str, seconds: float, start: float) -> dict[str, float]:
    """Train for some seconds from time `start` on; return documents per second, page faults per step, kernel share.

    Args:
        settings_json: the settings as JSON, since classes of settings that are made at run time cannot be pickled.
        seconds: length of the measurement.
        start: its beginning, in seconds since the epoch.

    Raises:
        RuntimeError: the warm-up steps took longer than until `start`.
    """
    settings = Experiment.model_validate_json(settings_json)
    use_threads(settings.resources.threads_of_worker)
    torch.manual_seed(0)
    corpus = Corpus.open(settings.corpus_directory)
    task = training_tasks.first_level_of(corpus, settings.name)
    tokens = task.data.tokens.cut(settings.network.max_tokens) if settings.network.max_tokens else task.data.tokens
    data = LevelData(tokens, task.data.positives)
    network = build_network(Level(1, task.nodes, None), task.vectors, settings.network)
    network.initialise_output_bias(len(data.positives.values) / (len(data.positives) * task.nodes))
    level = LevelTraining(network, data, LevelData(tokens, data.positives), settings.training, 0)
    steps = training_tasks.our_steps(level)
    for _ in range(WARM_STEPS):
        next(steps)
    if time.time() > start:
        raise RuntimeError(f"the warm-up ended {time.time() - start:.0f} s too late: raise START_SECONDS")
    while time.time() < start:  # keep the cores as busy as during the measurement
        next(steps)
    began, before, first = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF), level.state.documents
    count = 0
    while time.perf_counter() - began < seconds:
        next(steps)
        count += 1
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    kernel, user = after.ru_stime - before.ru_stime, after.ru_utime - before.ru_utime
    return {
        "documents_per_second": (level.state.documents - first) / took,
        "page_faults_per_step": (after.ru_minflt - before.ru_minflt) / count,
        "kernel_share": kernel / (kernel + user),
    }


if __name__ == "__main__":
    results_file.run(main)
