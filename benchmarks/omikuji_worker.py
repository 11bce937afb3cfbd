"""Trains and applies one omikuji forest, in the environment that `peers.py` makes for it.

    .peers/omikuji/bin/python benchmarks/omikuji_worker.py DIRECTORY

Needs omikuji and the standard library only. DIRECTORY holds, and gets:

- `task.json`: `{"hyperparameters": {field of omikuji's struct: value}, "threads", "beam", "top"}`.
- `train.txt`, `test.txt`: documents in the Extreme Classification Repository's format, which omikuji reads.
- `predicted.int32` (out): label ids, best first, `top` a document, -1 where fewer were found; native bytes.
- `done.json` (out, last): `{"seconds": {"fit", "predict"}, "hyperparameters": all of them, "version"}`.

Reading `test.txt` is this script's doing, so it isn't timed; omikuji reads `train.txt` itself, which is.
"""

import json
import sys
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import omikuji  # type: ignore[import-not-found]

Features = list[tuple[int, float]]
BATCH = 1000


def main(directory: Path) -> None:
    """Do the task that `directory` describes."""
    task = json.loads((directory / "task.json").read_text())
    chosen = omikuji.Model.default_hyper_param()
    for name, value in task["hyperparameters"].items():
        setattr(chosen, name, value)

    start = time.perf_counter()
    model = omikuji.Model.train_on_data(str(directory / "train.txt"), chosen, task["threads"])
    fit = time.perf_counter() - start

    start = time.perf_counter()
    model.densify_weights(0.1)  # as omikuji's own command line does before predicting
    predict = time.perf_counter() - start
    top = task["top"]

    def best(features: Features) -> list[int]:
        found = [label for label, _ in model.predict(features, task["beam"], top)]
        return found + [-1] * (top - len(found))

    model.init_prediction_thread_pool(task["threads"])
    predicted = array("i")
    with ThreadPoolExecutor(task["threads"]) as threads, (directory / "test.txt").open() as lines:
        next(lines)  # the header
        documents = map(parse, lines)
        while batch := list(islice(documents, BATCH)):
            start = time.perf_counter()
            for row in threads.map(best, batch):
                predicted.extend(row)
            predict += time.perf_counter() - start

    with (directory / "predicted.int32").open("wb") as file:
        predicted.tofile(file)
    done = {
        "seconds": {"fit": fit, "predict": predict},
        "hyperparameters": {name: getattr(chosen, name) for name in dir(chosen)},
        "version": omikuji.__version__,
    }
    (directory / "done.json").write_text(json.dumps(done))


def parse(line: str) -> Features:
    """The features of a line `label,label feature:value feature:value`."""

    def pairs() -> Iterator[tuple[int, float]]:
        for word in line.rstrip("\n").split(" ")[1:]:
            feature, value = word.split(":")
            yield int(feature), float(value)

    return list(pairs())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
