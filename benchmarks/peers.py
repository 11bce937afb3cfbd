"""Comparison of a finished run with other systems on the same documents: omikuji, napkinXC, libpecos, ExtremeText.

    python benchmarks/peers.py --run runs/quickstart [--systems parabel bonsai …] [--quick] [--with-valid]
        [--threads N] [--json PATH]

Peers are omikuji's Parabel and Bonsai, napkinXC's PLT (one tree, and three), libpecos's XR-Linear and, if `--systems`
names them, napkinXC's one-vs-all classifiers and ExtremeText. Each learns from the training split of the run's prepared
corpus, whichever that is, as word TF-IDF, ranks ten labels for each test document, and is judged by the same code and
propensities as the run. Figures: `ours_P@1`, `parabel_P@1` and so on for the table's measures, and
`ours_train_seconds`, `ours_predict_seconds`, `ours_peak_gib`, `ours_model_mib` and so on.

- Each program lives in `.peers`, in an environment of its own that the first call makes; this process never imports
  it. The two speak through files (`peer_worker.py` says which). One that can't be installed here gets a row that says
  why, and the others go on.
- The peers' settings are those that their documentation gives; `peer_systems.py` lists them with their sources. The
  rows note them, libpecos's where they aren't its defaults, and the versions.
- "ours" is the whole ensemble as the run was evaluated; `members` and `combiner` of its row say of what.
  `axml-ray evaluate` tells what each member reaches alone.
- `peak_gib` is of the whole process of a peer, which trains and predicts; of the run it is the largest of one worker's,
  as its networks' training noted, without the fitting of other members. `model_mib` is what lies on disk, without
  the words that features are made of.
- The peers see whole texts; the run's network sees at most `corpus.max_tokens` words of each.
- Validation documents, which choose the run's best weights and fit its combiner, are kept from the peers unless
  `--with-valid`.
- `--quick` gives the peers at most 50,000 training and 10,000 test documents, spread evenly; the rows say how
  many. It bounds documents, not labels: 33,000 of those are fine.
- omikuji draws its clusters without a seed, so its scores move by some tenths of a point from call to call.
"""

import argparse
import io
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from environments import PeerError, checked, environment
from peer_systems import BY_DEFAULT, PEERS, PROGRAMS, Peer
from peers_tables import costs_table, figures, table
from rich.console import Console
from rich.text import Text
from scipy import sparse
from sklearn.datasets import dump_svmlight_file
from sklearn.feature_extraction.text import TfidfVectorizer

from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json
from axml_ray.core.limits import available_cpus
from axml_ray.core.ragged import Ragged
from axml_ray.core.run_layout import RunLayout
from axml_ray.corpus.store import Corpus
from axml_ray.evaluation.metrics.metrics import DEEPEST, Scores, propensities
from axml_ray.settings import Experiment, configuration
from axml_ray.tracking.tensorboard_tracker import EVENTS

WORKER = Path(__file__).with_name("peer_worker.py")

BEAM = 10
FEATURES = {"lowercase": True, "token_pattern": r"\w+", "sublinear_tf": True, "min_df": 2, "norm": "l2"}
QUICK_DOCUMENTS, QUICK_TEST_DOCUMENTS = 50_000, 10_000
WRITE_ROWS = 4096


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run and the corpus that it was trained on."""

    directory: Path
    """Directory of the run."""
    name: str
    """Name of the directory."""
    metrics: Mapping[str, Any]
    """Content of `metrics.json`."""
    corpus: Corpus
    """Its prepared corpus."""
    propensity: Mapping[str, float]
    """Propensity constants A and B of the run's evaluation."""
    settings: Experiment
    """Settings of the run."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The data that every peer gets: N training documents, M test documents, F words, L labels."""

    train: sparse.csr_matrix
    """TF-IDF, float64 [N, F]."""
    train_labels: Ragged
    """Label ids of the training documents."""
    test: sparse.csr_matrix
    """TF-IDF, float64 [M, F]."""
    labels: int
    """L."""
    seconds: Mapping[str, float]
    """Spent on the features: `features` (of train), `transform` (of test)."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare a run with its peers, print the table, write the results; an error exits 2 with one message."""
    parser = argparse.ArgumentParser(description="Compare a finished run with linear systems.")
    parser.add_argument("--run", type=Path, required=True, help="directory of a run with metrics.json")
    parser.add_argument("--systems", nargs="+", choices=PEERS, default=BY_DEFAULT, help="default: all but the slow")
    quick = f"train on at most {QUICK_DOCUMENTS:,} and test on at most {QUICK_TEST_DOCUMENTS:,} documents"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--with-valid", action="store_true", help="train the peers on train and validation documents")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="default: all usable cores")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/peers-<run name>.json")
    options = parser.parse_args(arguments)
    if options.threads < 1:
        parser.error("--threads: at least 1")
    console = Console()
    try:
        rows = compare(
            options.run,
            systems=options.systems,
            quick=options.quick,
            with_valid=options.with_valid,
            threads=options.threads,
            console=console,
        )
    except (SettingsError, PeerError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    console.print(table(rows))
    console.print(costs_table(rows))
    path = options.json or results_file.RESULTS / f"peers-{options.run.resolve().name}.json"
    results_file.write(path, figures(rows), rows)
    console.print(Text(f"written to {path}"))


def compare(
    directory: Path,
    *,
    systems: Sequence[str] = BY_DEFAULT,
    quick: bool = False,
    with_valid: bool = False,
    threads: int = 1,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Train and judge the peers.

    Args:
        directory: a finished run.
        systems: of `PEERS`.
        quick: give the peers at most `QUICK_DOCUMENTS` and `QUICK_TEST_DOCUMENTS` documents.
        with_valid: add the validation documents to the peers' training documents.
        threads: of each peer.
        console: where to say what is going on.

    Returns:
        One row a system, ours first: `system`, `scores` (percent), `seconds` (by phase), `peak_gib`, `model_bytes`, and
        what it was given. The row of a system that can't be installed has `failed`, the reason, and no scores.

    Raises:
        SettingsError: the run is not finished, or its corpus is missing or another one.
        PeerError: a peer failed.
    """
    console = console or Console(quiet=True)
    run = open_run(directory)
    splits = ("train", "valid") if with_valid else ("train",)
    texts, labels = documents(run.corpus, splits, QUICK_DOCUMENTS if quick else None)
    test_texts, truth = documents(run.corpus, ("test",), QUICK_TEST_DOCUMENTS if quick else None)
    console.print(f"{run.name}: {len(texts):,} training documents of {' + '.join(splits)}", highlight=False)
    task = featurize(texts, labels, test_texts, len(run.corpus.labels))
    available = sum(run.corpus.documents(split) for split in splits)
    options = {
        "trained_on": " + ".join(splits),
        "training_documents": len(texts),
        "training_documents_left_out_by_quick": available - len(texts),
        "test_documents": len(truth),
        "features": {**FEATURES, "words": task.train.shape[1]},
        "beam": BEAM,
        "threads": threads,
    }
    return [ours(run), *(_row_of(name, run, task, truth, options, console) for name in systems)]


def _row_of(
    name: str, run: Run, task: Task, truth: Ragged, options: Mapping[str, Any], console: Console
) -> dict[str, Any]:
    """Return the row of one peer, after installing, training and judging it."""
    peer = PEERS[name]
    row = {"system": name, "scores": {}, "seconds": {}, "program": peer.program, "trees": peer.trees, **options}
    try:
        python = environment(console, peer.program, PROGRAMS[peer.program])
    except PeerError as error:
        console.print(Text(f"{name}: {error}"))
        return {**row, "failed": str(error)}
    with console.status(f"training {name} on {options['threads']} threads"):
        top, done = train_and_predict(python, task, peer, options["threads"])
    return row | {
        "scores": judge(run, top, truth),
        "seconds": {**task.seconds, **done["seconds"]},
        "program": f"{peer.program} {done['version']}",
        "hyperparameters": done["hyperparameters"],
        "peak_gib": done["peak_gib"],
        "model_bytes": done["model_bytes"],
    }


def open_run(directory: Path) -> Run:
    """Open the finished run in `directory`.

    Raises:
        SettingsError: it has no scores yet, or its corpus can't be opened or isn't what it was evaluated on.
    """
    path = directory / "metrics.json"
    if not path.is_file():
        raise SettingsError(f"{path}: missing; train the run first, with axml-ray train")
    try:
        metrics = read_json(path)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if metrics.get("split") != "test" or "ensemble" not in metrics:
        raise SettingsError(f"{path}: holds no scores of an ensemble on the test split; evaluate the run on it")
    if "filter_pairs" in metrics:
        raise SettingsError(
            f"{path}: was made with evaluation.filter_pairs, and peers are judged on all pairs; leave it out"
        )
    experiment = configuration.load(directory / "settings.yaml")
    corpus = Corpus.open(experiment.corpus_directory)
    judged = dict(zip("AB", experiment.evaluation.propensity, strict=True))
    propensity = {**judged, **metrics.get("propensity", {})}
    labelled = int(np.count_nonzero(Ragged.from_arrow(corpus.table("test", ["labels"])["labels"]).lengths))
    if metrics.get("documents") not in (labelled, corpus.documents("test")):
        raise SettingsError(
            f"{path}: of {metrics.get('documents')} documents, but the test split of {corpus.directory} has "
            f"{corpus.documents('test')}, {labelled} of them with labels; evaluate the run again"
        )
    return Run(
        directory=directory,
        name=directory.resolve().name,
        metrics=metrics,
        corpus=corpus,
        propensity=propensity,
        settings=experiment,
    )


def documents(corpus: Corpus, splits: Sequence[str], limit: int | None = None) -> tuple[list[str], Ragged]:
    """Return texts and label ids of `splits`, or of `limit` documents spread evenly over them."""
    tables = [corpus.table(split, ["text", "labels"]) for split in splits if corpus.files(split)]
    texts = [text for table in tables for text in table["text"].to_pylist()]
    labels = Ragged.concatenate(Ragged.from_arrow(table["labels"]) for table in tables)
    if limit is None or len(texts) <= limit:
        return texts, labels
    rows = np.arange(limit, dtype=np.int64) * len(texts) // limit
    return [texts[row] for row in rows], labels.take(rows)


def featurize(texts: list[str], train_labels: Ragged, test_texts: list[str], labels: int) -> Task:
    """Compute word TF-IDF; words and weights are fitted on the training texts only."""
    vectorizer = TfidfVectorizer(**FEATURES)
    start = time.perf_counter()
    try:
        train = vectorizer.fit_transform(texts)
    except ValueError as error:
        raise PeerError(f"no features can be made of the training texts: {error}") from None
    middle = time.perf_counter()
    test = vectorizer.transform(test_texts)
    seconds = {"features": middle - start, "transform": time.perf_counter() - middle}
    return Task(train=train, train_labels=train_labels, test=test, labels=labels, seconds=seconds)


def train_and_predict(python: Path, task: Task, peer: Peer, threads: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Train one peer and apply it, in the other environment.

    Returns:
        int32 [M, 10]: label ids, best first, -1 where fewer were found; and what `done.json` holds.

    Raises:
        PeerError: the worker failed.
    """
    with tempfile.TemporaryDirectory(prefix="axml-ray-peers-") as name:
        directory = Path(name)
        if peer.program == "omikuji":
            write_documents(directory / "train.txt", task.train, task.train_labels, task.labels)
            write_documents(directory / "test.txt", task.test, None, task.labels)
        else:
            known = task.train_labels
            ones = np.ones(len(known.values), np.float32)
            truth = sparse.csr_matrix((ones, known.values, known.offsets), (len(known), task.labels))
            matrices = {"train": task.train.astype(np.float32), "labels": truth, "test": task.test.astype(np.float32)}
            for kind, matrix in matrices.items():
                sparse.save_npz(directory / f"{kind}.npz", matrix, compressed=False)
        order = {"hyperparameters": peer.hyperparameters, "threads": threads, "beam": BEAM, "top": DEEPEST}
        (directory / "task.json").write_text(json.dumps(order))
        checked([python, "-I", WORKER, peer.program, directory], f"{peer.program} failed")
        top = np.fromfile(directory / "predicted.int32", dtype=np.int32).reshape(-1, DEEPEST)
        return top, read_json(directory / "done.json")


def write_documents(path: Path, features: sparse.csr_matrix, labels: Ragged | None, label_count: int) -> None:
    """Write documents in the Extreme Classification Repository's format.

    A header `documents features labels`, then a line a document: `3,7 0:0.5 12:0.25`, to six decimals.
    """
    rounded = sparse.csr_matrix((features.data.round(6), features.indices, features.indptr), features.shape)
    with path.open("wb") as file:
        file.write(f"{features.shape[0]} {features.shape[1]} {label_count}\n".encode())
        for start in range(0, features.shape[0], WRITE_ROWS):
            part = rounded[start : start + WRITE_ROWS]
            rows = np.arange(start, start + part.shape[0])
            known = labels.take(rows) if labels else Ragged.from_rows([[]] * len(rows))
            ones = np.ones(len(known.values), np.int8)
            truth = sparse.csr_matrix((ones, known.values, known.offsets), (len(rows), label_count))
            lines = io.BytesIO()
            dump_svmlight_file(part, truth, lines, multilabel=True)
            # The blank after the labels of a document without words would be a word to omikuji, and an error.
            file.write(lines.getvalue().replace(b" \n", b"\n"))


def judge(run: Run, top: np.ndarray, truth: Ragged) -> dict[str, float]:
    """Return all scores of a ranking of the test split, with the propensities of the run.

    Args:
        run: whose corpus the ranking is of.
        top: int32 [M, K], label ids, best first, -1 where nothing was predicted.
        truth: label ids of the test documents.
    """
    a, b = run.propensity["A"], run.propensity["B"]
    scores = Scores(1 / propensities(run.corpus.labels.counts, run.corpus.documents("train"), a=a, b=b))
    scores.add(top, truth.values, truth.offsets)
    return scores.result()


def ours(run: Run) -> dict[str, Any]:
    """Return the row of the run itself."""
    memory, ensemble = list(_memory_gib(run.directory)), run.settings.ensemble
    fitted = "" if ensemble.combiner == "mean" else ", its combiner fitted on valid"
    return {
        "system": "ours",
        "scores": dict(run.metrics["ensemble"]),
        "seconds": dict(run.metrics.get("seconds", {})),
        "program": "axml-ray",
        "run": run.name,
        "corpus": run.metrics.get("corpus", run.corpus.directory.name),
        "fingerprint": run.corpus.fingerprint,
        "trees": ensemble.trees,
        "members": list(run.settings.members.chosen),
        "combiner": ensemble.combiner,
        "trained_on": f"train, best weights chosen on valid{fitted}",
        "training_documents": run.corpus.documents("train"),
        "test_documents": run.corpus.documents("test"),
        "propensity": dict(run.propensity),
        "peak_gib": max(memory) if memory else None,
        "model_bytes": sum(path.stat().st_size for path in _model_files(run.directory)) or None,
    }


def _memory_gib(directory: Path) -> Iterator[float]:
    """Yield the memory in GiB that the workers of a run recorded."""
    for journal in directory.glob("tree-*/training.jsonl"):
        for line in journal.read_text(encoding="utf-8").splitlines():
            if "memory_gib" in (record := json.loads(line)):
                yield record["memory_gib"]


def _model_files(directory: Path) -> Iterator[Path]:
    """Yield the files of a run that prediction reads: label trees, members, combiner."""
    layout = RunLayout(directory)
    yield from directory.glob("tree-*/tree.*")
    for members in (*directory.glob("tree-*/*/"), layout.features.parent, layout.combiner):
        for path in members.rglob("*"):
            # The directory of levels also has the scores of documents and checkpoints, which only training reads.
            only_training = any(part.startswith("level-") and "." in part for part in path.parts)
            if path.is_file() and members.name != EVENTS and not only_training:
                yield path


if __name__ == "__main__":
    main()
