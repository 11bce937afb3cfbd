"""How fast a level trains in a worker of Ray Train, beside the same in a plain process.

    python benchmarks/ray_share.py --config configs/eurlex57k.yaml [--rounds 3] [--seconds 25] [--json PATH]

The config's corpus, which must be prepared, words, network, batches and threads of a worker; a first level of 2,048
groups of neighbouring label ids, all scored. Each side is a process of its own, one after the other, and says how many
documents it trained in so many seconds after some steps that aren't counted, the page faults of a step, and the share
of its processor time that the kernel had.

- `plain`: the training in a process's main thread.
- `worker`: in Ray Train, one worker, as a job starts it.
- `own_arenas`: the same where glibc gives the worker's threads arenas of their own, as it does if nobody asks it not to
  (`axml_ray.memory.ONE_ARENA`).

Figures: `worker_share` and `own_arenas_share`, of the plain process's documents a second; medians over the rounds.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import results_file
import torch
import training
from rich.console import Console

from axml_ray import configuration
from axml_ray.cluster import connect
from axml_ray.corpus.store import Corpus
from axml_ray.memory import ONE_ARENA
from axml_ray.network.candidates import Level
from axml_ray.network.networks import network_of
from axml_ray.network.precision import use_threads
from axml_ray.settings import Experiment
from axml_ray.training.batches import LevelData
from axml_ray.training.level import LevelTraining, Validation

SIDES = ("plain", "worker", "own_arenas")
WARM_STEPS = 10


def main() -> None:
    """Measure all sides in turns, or the one that was asked for."""
    settings, given = configuration.with_flags("What Ray costs a level's training.", _flags)
    if given.side:
        print(json.dumps(side(settings, given.side, given.seconds)))
        return
    console, rows = Console(), []
    for number in range(given.rounds):
        for name in SIDES:
            command = [sys.executable, __file__, "--side", name, *sys.argv[1:]]
            environment = os.environ | (dict.fromkeys(ONE_ARENA, "0") if name == "own_arenas" else {})
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            rows.append({"round": number, "side": name, **json.loads(done.stdout.splitlines()[-1])})
            console.print_json(json.dumps(rows[-1]), indent=None)
    rate = {name: [row["documents_per_second"] for row in rows if row["side"] == name] for name in SIDES}
    figures = {
        f"{name}_share": statistics.median(ours / plain for ours, plain in zip(rate[name], rate["plain"], strict=True))
        for name in SIDES[1:]
    }
    console.print(figures)
    results_file.write(given.json or results_file.RESULTS / "ray-share.json", figures, rows)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=25, help="of each side and round, after its first steps")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/ray-share.json")
    parser.add_argument("--side", choices=SIDES, help="measure this one, and print it")


def side(settings: Experiment, name: str, seconds: float) -> dict[str, float]:
    """What one side says."""
    if name == "plain":
        return trained(settings, seconds)
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    connect()
    with tempfile.TemporaryDirectory(prefix="axml-ray-share-") as directory:
        trainer = TorchTrainer(
            _work,
            train_loop_config={"settings": settings, "seconds": seconds},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(storage_path=directory),
        )
        found: dict[str, float] = trainer.fit().return_value
    return found


def _work(config: dict[str, Any]) -> dict[str, float]:
    return trained(config["settings"], config["seconds"])


def trained(settings: Experiment, seconds: float) -> dict[str, float]:
    """Train for so many seconds: `documents_per_second`, `page_faults_per_step`, `kernel_share`."""
    use_threads(settings.resources.threads_of_worker)
    torch.manual_seed(0)
    corpus = Corpus.open(settings.corpus_directory)
    task = training.first_level_of(corpus, settings.name)
    tokens = task.data.tokens.cut(settings.network.max_tokens) if settings.network.max_tokens else task.data.tokens
    data = LevelData(tokens, task.data.positives)
    network = network_of(Level(1, task.nodes, None), task.vectors, settings.network)
    network.expect(len(data.positives.values) / (len(data.positives) * task.nodes))
    level = LevelTraining(network, data, Validation(tokens, data.positives), settings.training, 0)
    steps = training.our_steps(level)
    for _ in range(WARM_STEPS):
        next(steps)
    began, before, first = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF), level.at.documents
    count = 0
    while time.perf_counter() - began < seconds:
        next(steps)
        count += 1
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    kernel, user = after.ru_stime - before.ru_stime, after.ru_utime - before.ru_utime
    return {
        "documents_per_second": (level.at.documents - first) / took,
        "page_faults_per_step": (after.ru_minflt - before.ru_minflt) / count,
        "kernel_share": kernel / (kernel + user),
    }


if __name__ == "__main__":
    results_file.run(main)
