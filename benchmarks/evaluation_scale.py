"""Memory and time of an evaluation of the size of Amazon-3M.

    python benchmarks/evaluation_scale.py [--quick] [--documents N] [--labels L] [--top K] [--folder PATH] [--json PATH]

A corpus of L labels and a run without trained members are generated: N test documents and N/10 for validation
with 36 labels each, and predictions of K labels by the ensemble, a network and linear classifiers. Then
`axml-ray evaluate --label-sets` runs in its own process: metrics, intervals, bands of frequency, scores without
networks, label sets and the report. No member is there to explain the report's examples.

Figures: `peak_gib`, the largest resident set of that process; `seconds`; `documents`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import results_file
import yaml
from scale import LABELS, LABELS_OF_A_TEXT, ranks

from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json, write_json
from axml_ray.core.ragged import Ragged
from axml_ray.core.run_manifest import write_run_manifest
from axml_ray.corpus.labels.label_index import write_labels
from axml_ray.corpus.store import FORMAT, VERSION
from axml_ray.evaluation.metrics.predictions import ENSEMBLE, Predictions
from axml_ray.inference.predict.shards import ROWS
from axml_ray.runs.run import Run

DOCUMENTS, TRAINING_DOCUMENTS = 742_507, 1_717_899
EXPONENT = 0.55
"""A label's frequency falls with its rank to the power of this."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Generate, evaluate, write the results."""
    parser = argparse.ArgumentParser(description="Memory and time of an evaluation of the size of Amazon-3M.")
    parser.add_argument("--quick", action="store_true", help="20,000 documents and 100,000 labels")
    parser.add_argument("--documents", type=int, help=f"test documents (default {DOCUMENTS:,})")
    parser.add_argument("--labels", type=int, help=f"labels (default {LABELS:,})")
    parser.add_argument("--top", type=int, default=100, help="labels that are predicted for a document (default 100)")
    parser.add_argument("--folder", type=Path, help="where the generated files lie (default: a temporary directory)")
    parser.add_argument("--json", type=Path, default=results_file.RESULTS / "evaluation-scale.json")
    options = parser.parse_args(arguments)
    documents = options.documents or (20_000 if options.quick else DOCUMENTS)
    labels = options.labels or (100_000 if options.quick else LABELS)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="axml-ray-evaluation-") as temporary:
        run = generate(Path(temporary), documents, labels, options.top)
        command = [sys.executable, "-c", "from axml_ray.cli.dispatch import main; main()", "evaluate", "--label-sets"]
        environment = {**os.environ, "PYTHONPATH": str(results_file.ROOT)}
        began = time.perf_counter()
        process = subprocess.Popen([*command, "--run", str(run)], env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SettingsError(f"axml-ray evaluate failed with status {os.waitstatus_to_exitcode(status)}")
        seconds, peak = time.perf_counter() - began, usage.ru_maxrss / 2**20
        metrics = read_json(run / "metrics.json")
    row = {"documents": documents, "labels": labels, "top": options.top, "seconds": seconds, "peak_gib": peak}
    row |= {"P@1": metrics["ensemble"]["P@1"], "bands": {band["name"]: band["documents"] for band in metrics["bands"]}}
    results_file.write(options.json, {"peak_gib": peak, "seconds": seconds, "documents": documents}, [row])
    print(f"{documents:,} documents, {labels:,} labels: {peak:.2f} GiB, {seconds:,.0f} s; written to {options.json}")


def generate(folder: Path, documents: int, labels: int, top: int) -> Path:
    """Write a corpus and a run with predictions, and return the run's directory."""
    corpus, run = folder / "corpora" / "generated", folder / "runs" / "run"
    of_split = {"valid": documents // 10, "test": documents}
    for split in of_split:
        (corpus / split).mkdir(parents=True)
    run.mkdir(parents=True)
    trained = labels - labels // 100
    frequency = np.arange(1, labels + 1, dtype=np.float64) ** -EXPONENT
    counts = np.maximum(1, TRAINING_DOCUMENTS * LABELS_OF_A_TEXT / frequency.sum() * frequency).astype(np.int64)
    counts[trained:] = 0
    names = pa.array([f"B{number:09d}" for number in range(labels)])
    write_labels(corpus / "labels.parquet", names, names, counts)
    settings = {
        "name": "run",
        "runs": str(folder / "runs"),
        "corpora": str(folder / "corpora"),
        "corpus": {"name": "generated", "source": "installed_packages"},
        "members": {"linear_tree": {"weight": 0.5}},
        "ensemble": {"trees": 1, "top_labels": top},
    }
    (run / "settings.yaml").write_text(yaml.safe_dump(settings))
    write_run_manifest(run)
    for seed, (split, count) in enumerate(of_split.items()):
        random = np.random.default_rng(seed)
        (run / "predictions" / split).mkdir(parents=True)
        with pq.ParquetWriter(corpus / split / "00000.parquet", CORPUS_FILE) as file:
            for shard, first in enumerate(range(0, count, ROWS)):
                rows = range(first, min(first + ROWS, count))
                truth = true_labels(random, len(rows), labels)
                columns = {"id": [f"{split}-{row}" for row in rows], "labels": truth.to_arrow()}
                texts = {
                    "tokens": pa.array([[2, 3]] * len(rows), pa.list_(pa.int32())),
                    "text": ["two words"] * len(rows),
                }
                file.write_table(pa.table(columns | texts).select(CORPUS_FILE.names))
                for name in (ENSEMBLE, "network_tree-0", "linear_tree-0"):
                    for column, values in zip(("labels", "scores"), ranking(random, truth, trained, top), strict=True):
                        columns[f"{name}.{column}"] = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), top)
                pq.write_table(pa.table(columns), run / "predictions" / split / f"part-00000-{shard:06d}.parquet")
    files = {path.relative_to(corpus).as_posix(): path.stat().st_size for path in corpus.rglob("*.parquet")}
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": "generated",
        "files": dict(sorted(files.items())),
        "counts": {
            "documents": {"train": TRAINING_DOCUMENTS, **of_split},
            "labels": labels,
            "trained_labels": trained,
            "words": 4,
        },
        "word_vector_dimension": 3,
    }
    write_json(corpus / "corpus.json", manifest)
    opened = Run.open(run)
    for split in of_split:
        stored = Predictions.complete(run / "predictions" / split, opened.predictions_key)
        assert set(stored.members) == set(opened.member_names), (stored.members, opened.member_names)
    return run


CORPUS_FILE = pa.schema(
    [("id", pa.string()), ("tokens", pa.list_(pa.int32())), ("labels", pa.list_(pa.int32())), ("text", pa.string())]
)


def true_labels(random: np.random.Generator, documents: int, labels: int) -> Ragged:
    """Draw the true labels of documents: about 36 distinct ones each, sorted."""
    drawn = random.poisson(LABELS_OF_A_TEXT - 1, documents) + 1
    row = np.repeat(np.arange(documents), drawn)
    pairs = np.unique(row * labels + ranks(random, len(row), labels, EXPONENT))
    lengths = np.bincount(pairs // labels, minlength=documents)
    return Ragged((pairs % labels).astype(np.int32), np.concatenate([[0], np.cumsum(lengths)]))


def ranking(random: np.random.Generator, truth: Ragged, trained: int, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw rankings, labels int32 [N, K] and scores float32 [N, K], that have half of the true labels."""
    documents = len(truth)
    # The labels of a row are distinct, as column c only has labels c, c + K, c + 2 K, ….
    drawn = ranks(random, documents * top, trained // top, EXPONENT).reshape(documents, top) * top + np.arange(top)
    row = np.repeat(np.arange(documents), truth.lengths)
    is_found = (random.random(len(row)) < 0.5) & (truth.values < trained)
    drawn[row[is_found], truth.values[is_found] % top] = truth.values[is_found]
    scores = random.random((documents, top), np.float32) * np.float32(0.7)
    scores[row[is_found], truth.values[is_found] % top] += np.float32(0.3)
    order = np.argsort(-scores, axis=1)
    return np.take_along_axis(drawn, order, 1).astype(np.int32), np.take_along_axis(scores, order, 1)


if __name__ == "__main__":
    results_file.run(main)
