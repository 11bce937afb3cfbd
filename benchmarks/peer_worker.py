"""Trains and applies one other system, in the environment of its own that `peers.py` makes for it.

    .peers/omikuji/bin/python benchmarks/peer_worker.py SYSTEM DIRECTORY

SYSTEM is `omikuji`, `napkinxc`, `libpecos` or `extremetext`; each needs itself and what it asks for, nothing of this
repository. DIRECTORY holds, and gets:

- `task.json`: `{"hyperparameters": {name: value}, "threads", "beam", "top"}`.
- For omikuji `train.txt`, `test.txt`: documents in the Extreme Classification Repository's format, which it reads
  itself. For the others `train.npz`, `labels.npz`, `test.npz`: float32 CSR of documents by words or labels.
- `model/` (out): the trained model as the system saves it.
- `predicted.int32` (out): label ids, best first, `top` a document, -1 where fewer were found; native bytes.
- `done.json` (out, last): `{"seconds": {"fit", "predict"}, "hyperparameters": all that are known, "version",
  "peak_gib": of the whole process, "model_bytes": of what was saved}`.

Reading and saving aren't timed, except that the `fit` of omikuji and ExtremeText reads their text files, and napkinXC
saves while it fits.
"""

import json
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # no package is installed in a peer's environment
from axml_ray.core.memory import peak_gib

Task = dict[str, Any]
Features = list[tuple[int, float]]
BATCH = 1000
PREFIX = "__label__"


class Clock:
    """Seconds of the two phases, added up."""

    def __init__(self) -> None:
        self.seconds = {"fit": 0.0, "predict": 0.0}

    def time(self, phase: str, work: Callable[[], Any]) -> Any:
        """Do some work of a phase; returns what it returns."""
        start = time.perf_counter()
        result = work()
        self.seconds[phase] += time.perf_counter() - start
        return result


def main(system: str, directory: Path) -> None:
    """Do the task that `directory` describes."""
    task = json.loads((directory / "task.json").read_text())
    clock = Clock()
    rows, hyperparameters, version = SYSTEMS[system](directory, task, clock)
    predicted = array("i")
    for row in rows:
        best = list(row)[: task["top"]]
        predicted.extend(best + [-1] * (task["top"] - len(best)))
    with (directory / "predicted.int32").open("wb") as file:
        predicted.tofile(file)
    saved = (path for path in (directory / "model").rglob("*") if path.is_file())
    done = {
        "seconds": clock.seconds,
        "hyperparameters": hyperparameters,
        "version": version,
        "peak_gib": peak_gib(),
        "model_bytes": sum(path.stat().st_size for path in saved),
    }
    (directory / "done.json").write_text(json.dumps(done))


def omikuji(directory: Path, task: Task, clock: Clock) -> tuple[Iterable[list[int]], dict[str, Any], str]:
    """A forest of Parabel's or Bonsai's kind."""
    import omikuji  # type: ignore[import-not-found]

    chosen = omikuji.Model.default_hyper_param()
    for name, value in task["hyperparameters"].items():
        setattr(chosen, name, value)
    path = str(directory / "train.txt")
    model = clock.time("fit", lambda: omikuji.Model.train_on_data(path, chosen, task["threads"]))
    model.save(str(directory / "model"))
    clock.time("predict", lambda: model.densify_weights(0.1))  # as omikuji's own command line does before predicting
    model.init_prediction_thread_pool(task["threads"])

    def best(features: Features) -> list[int]:
        return [label for label, _ in model.predict(features, task["beam"], task["top"])]

    rows: list[list[int]] = []
    with ThreadPoolExecutor(task["threads"]) as threads, (directory / "test.txt").open() as lines:
        next(lines)  # the header
        documents = map(parse, lines)
        while batch := list(islice(documents, BATCH)):
            rows += clock.time("predict", partial(ranked, threads, best, batch))
    return rows, {name: getattr(chosen, name) for name in dir(chosen)}, omikuji.__version__


def ranked(
    threads: ThreadPoolExecutor, best: Callable[[Features], list[int]], batch: list[Features]
) -> list[list[int]]:
    """The best labels of each document of a batch."""
    return list(threads.map(best, batch))


def parse(line: str) -> Features:
    """The features of a line `label,label feature:value feature:value`."""

    def pairs() -> Iterator[tuple[int, float]]:
        for word in line.rstrip("\n").split(" ")[1:]:
            feature, value = word.split(":")
            yield int(feature), float(value)

    return list(pairs())


def napkinxc(directory: Path, task: Task, clock: Clock) -> tuple[Iterable[list[int]], dict[str, Any], str]:
    """A probabilistic label tree, an ensemble of them or, by the hyperparameter `model`, another of its models."""
    from importlib.metadata import version

    from napkinxc import models  # type: ignore[import-not-found]

    train, labels, test = matrices(directory)
    kind = getattr(models, task["hyperparameters"].pop("model", "PLT"))
    model = kind(str(directory / "model"), threads=task["threads"], **task["hyperparameters"])
    known = [row.indices.tolist() for row in labels]
    clock.time("fit", lambda: model.fit(train, known))
    rows = clock.time("predict", lambda: model.predict(test, top_k=task["top"]))
    settings = {name: value for name, value in model.get_params().items() if name != "output"}
    return rows, settings, version("napkinxc")


def libpecos(directory: Path, task: Task, clock: Clock) -> tuple[Iterable[list[int]], dict[str, Any], str]:
    """XR-Linear: a tree over PIFA label embeddings, with linear rankers."""
    from importlib.metadata import version

    from pecos.xmc import Indexer, LabelEmbeddingFactory  # type: ignore[import-not-found]
    from pecos.xmc.xlinear.model import XLinearModel  # type: ignore[import-not-found]

    train, labels, test = matrices(directory)
    threads, options = task["threads"], task["hyperparameters"]

    def fit() -> Any:
        features = LabelEmbeddingFactory.create(labels, train, method="pifa")
        chain = Indexer.gen(features, threads=threads, **options["indexer"])
        return XLinearModel.train(train, labels.tocsc(), C=chain, threads=threads, **options["train"])

    model = clock.time("fit", fit)
    model.save(str(directory / "model"))
    scores = clock.time(
        "predict", lambda: model.predict(test, only_topk=task["top"], beam_size=task["beam"], threads=threads)
    )
    rows = []
    for row in scores.tocsr():
        order = sorted(zip(row.data.tolist(), row.indices.tolist(), strict=True), reverse=True)
        rows.append([label for _, label in order])
    return rows, {**options, "label_embedding": "pifa", "beam": task["beam"]}, version("libpecos")


def extremetext(directory: Path, task: Task, clock: Clock) -> tuple[Iterable[list[int]], dict[str, Any], str]:
    """A probabilistic label tree over a mean of word vectors, which are weighted by TF-IDF and learned with it."""
    from importlib.metadata import version

    import extremeText  # type: ignore[import-not-found]

    train, labels, test = matrices(directory)
    path = directory / "words.txt"
    with path.open("w") as file:
        for known, words in zip(labels, weighted_words(train), strict=True):
            if known.nnz and words:  # a mean of no words is not a number
                file.write(" ".join([*(f"{PREFIX}{label}" for label in known.indices), words]) + "\n")
    chosen = {"loss": "plt", "wordsWeights": True, "label": PREFIX, **task["hyperparameters"]}
    model = clock.time(
        "fit", lambda: extremeText.train_supervised(str(path), thread=task["threads"], verbose=0, **chosen)
    )
    (directory / "model").mkdir()
    model.save_model(str(directory / "model" / "model.bin"))
    texts = list(weighted_words(test))
    predictions = clock.time("predict", lambda: [model.predict(text, k=task["top"])[0] for text in texts])
    rows = [[int(label.removeprefix(PREFIX)) for label in row] for row in predictions]
    return rows, chosen, version("extremetext")


def weighted_words(features: Any) -> Iterator[str]:
    """The words of each document as `w3:0.25 w7:0.5`."""
    for row in features:
        yield " ".join(f"w{word}:{weight:.6f}" for word, weight in zip(row.indices, row.data, strict=True))


def matrices(directory: Path) -> tuple[Any, Any, Any]:
    """Features and labels of the training documents, and features of the test documents."""
    from scipy import sparse

    train, labels, test = (sparse.load_npz(directory / f"{name}.npz") for name in ("train", "labels", "test"))
    return sparse.csr_matrix(train), sparse.csr_matrix(labels), sparse.csr_matrix(test)


SYSTEMS: dict[str, Callable[[Path, Task, Clock], tuple[Iterable[list[int]], dict[str, Any], str]]] = {
    "omikuji": omikuji,
    "napkinxc": napkinxc,
    "libpecos": libpecos,
    "extremetext": extremetext,
}

if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
