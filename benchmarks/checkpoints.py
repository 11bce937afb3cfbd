"""Measure how long training pauses for a checkpoint whose copy to the run's directory is slow.

    python benchmarks/checkpoints.py [--gib 1.5] [--rate 50] [--checkpoints 3] [--quick] [--json PATH]

A level of generated documents is trained in this process. Its state, `--gib` GiB of weights, moments, average and best
weights, is saved again and again: each time to the local disk, while training waits, and then by a thread to the run's
directory at `--rate` MB/s, while it goes on. `--quick` saves a tenth of the state.

Figures: `pause_s`, the longest time that training waited for a checkpoint; `stored_s`, the longest time until one was
stored; `steps_share`, the steps per second during copies relative to those without one.
"""

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import results_file
from gpu_steps import CPU, counts_of, on_device, shape_of, training_of
from rich.console import Console

from axml_ray.core.files import whole_file
from axml_ray.settings.configuration import load
from axml_ray.training import checkpoints as module
from axml_ray.training.batches import make_batch
from axml_ray.training.checkpoints import Checkpoints

HIDDEN, BLOCK, PARENTS, BATCH = 256, 8, 20, 8
KEPT = 5
"""Tensors of a parameter's shape: the weights, two moments, the average and the best weights."""
CHUNK = 4 << 20


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.5, help="size of the state")
    parser.add_argument("--rate", type=float, default=50, help="MB per second of the copies")
    parser.add_argument("--checkpoints", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, default=results_file.RESULTS / "checkpoints.json")
    options = parser.parse_args()
    gib = options.gib / 10 if options.quick else options.gib

    def slow_copy(source: Path, to: Path) -> None:
        for file in sorted(source.iterdir()):
            with whole_file(to / file.name) as temporary, file.open("rb") as read, temporary.open("wb") as write:
                began, done = time.monotonic(), 0
                while chunk := read.read(CHUNK):
                    write.write(chunk)
                    done += len(chunk)
                    time.sleep(max(0.0, done / (options.rate * 1e6) - (time.monotonic() - began)))

    settings = on_device(load(None, corpus={"name": "none", "source": "installed_packages"}), CPU)
    network = settings.network.model_copy(update={"hidden": HIDDEN, "train_embeddings": False})
    training_settings = settings.training.model_copy(update={"batch_size": BATCH, "precision": "float32"})
    settings = settings.model_copy(update={"network": network, "training": training_settings})
    rows = int(gib * 2**30 / KEPT / (2 * HIDDEN * 4) / BLOCK)
    training = training_of(settings, counts_of(64), shape_of(2, rows, BLOCK, PARENTS), CPU)
    training._began = time.monotonic()
    next_batch = partial(make_batch, training.data, training.network.level, np.arange(BATCH))
    training.step(next_batch())
    training.average.add(training.network)
    training._keep_best()

    def steps_per_second(seconds: float) -> float:
        began, steps = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            training.step(next_batch())
            steps += 1
        return steps / (time.monotonic() - began)

    measured = []
    with (
        tempfile.TemporaryDirectory(prefix="axml-ray-checkpoints-") as directory,
        patch.object(module, "copy_files", slow_copy),
    ):
        checkpoints = Checkpoints(Path(directory) / "level-2.checkpoint", "key", 0)
        for number in range(options.checkpoints):
            without_saving = steps_per_second(5)
            began = time.monotonic()
            checkpoints.save(training)
            pause = time.monotonic() - began
            during = steps_per_second(5)
            checkpoints.wait()
            stored = time.monotonic() - began
            files = sum(file.stat().st_size for file in checkpoints.directory.iterdir())
            measured.append({"number": number, "gib": files / 2**30, "pause_s": pause, "stored_s": stored,
                             "steps_per_second": without_saving, "steps_per_second_during": during})  # fmt: skip
            Console().print(measured[-1])
    figures = {
        "pause_s": max(row["pause_s"] for row in measured),
        "stored_s": max(row["stored_s"] for row in measured),
        "steps_share": statistics.median(row["steps_per_second_during"] / row["steps_per_second"] for row in measured),
    }
    Console().print(figures)
    results_file.write(options.json, figures, measured)


if __name__ == "__main__":
    results_file.run(main)
