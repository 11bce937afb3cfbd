"""A compact copy of a prepared corpus that fits where little can be taken along, and its training for `gpu.py`.

    python benchmarks/gpu_corpus.py CORPUS TO [--words 500]

The copy is a prepared corpus, too: it has no texts, the first words of each document, and word vectors in float16.
"""

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import results_file
import torch
from results_file import Result
from safetensors.numpy import save_file
from scipy import sparse

from axml_ray.core.files import whole_directory, write_json
from axml_ray.core.ragged import Ragged
from axml_ray.corpus.labels.label_features import keep_strongest
from axml_ray.corpus.store import MANIFEST, Corpus
from axml_ray.corpus.text.tokenizer import UNKNOWN
from axml_ray.evaluation.metrics.metrics import Scores, propensities
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment, fingerprint
from axml_ray.settings.configuration import load
from axml_ray.training.distributed import DistributedContext
from axml_ray.tree.kinds import build_tree

COPIED = ("labels.parquet", "tokenizer.json")
LABEL_TERMS = 128
"""Terms that the features of a label keep in a compact copy."""
MEASURES = ("P@1", "P@3", "P@5", "nDCG@5")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a compact copy and print its size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="directory of a prepared corpus")
    parser.add_argument("to", type=Path, help="directory to write or replace")
    parser.add_argument("--words", type=int, default=500, help="words of a document that are kept; default: 500")
    parser.add_argument("--vocabulary", type=int, default=30_000, help="most frequent words that are kept; 30,000")
    options = parser.parse_args(arguments)
    copy = write_compact(Corpus.open(options.corpus), options.to, options.words, options.vocabulary)
    sizes = [*copy.manifest["files"].values()]
    print(f"{options.to}: {sum(sizes) / 2**20:.1f} MiB, the largest file {max(sizes) / 2**20:.1f} MiB")


def write_compact(corpus: Corpus, to: Path, words: int, vocabulary: int) -> Corpus:
    """Write a copy of a corpus without texts and rare words, whose documents are cut to some words, and open it."""
    with whole_directory(to) as work:
        for name in COPIED:
            shutil.copyfile(corpus.directory / name, work / name)
        features = keep_strongest(corpus.label_features(), LABEL_TERMS)
        sparse.save_npz(work / "label_features.npz", features, compressed=False)
        save_file(
            {"word_vectors": corpus.word_vectors()[:vocabulary].astype(np.float16)}, work / "word_vectors.safetensors"
        )
        for name in corpus.manifest["counts"]["documents"]:
            split = corpus.split(name).cut(words)
            tokens = Ragged(
                np.where(split.tokens.values < vocabulary, split.tokens.values, UNKNOWN), split.tokens.offsets
            )
            (work / name).mkdir()
            table = pa.table({"tokens": _narrow(tokens), "labels": _narrow(split.labels)})
            pq.write_table(
                table, work / name / "0.parquet", use_dictionary=False, compression="zstd", compression_level=9
            )
        files = sorted(path for path in work.rglob("*") if path.is_file())
        manifest = {key: value for key, value in corpus.manifest.items() if key not in ("inputs", "sources")}
        manifest["fingerprint"] = fingerprint(corpus.fingerprint, words, vocabulary)
        manifest["files"] = {path.relative_to(work).as_posix(): path.stat().st_size for path in files}
        write_json(work / MANIFEST, manifest)
    return Corpus.open(to)


def _narrow(rows: Ragged) -> pa.ListArray:
    """Return rows as a column of the smallest unsigned integers that hold their values."""
    values = rows.values.astype(np.min_scalar_type(rows.values.max(initial=0)))
    return pa.ListArray.from_arrays(pa.array(rows.offsets.astype(np.int32)), pa.array(values))


def settings_of_corpus(directory: Path, home: Path, quick: bool) -> Experiment:
    """Return the settings of one tree: those of `configs/NAME.yaml`, if there is one, at a GPU's size."""
    config = results_file.ROOT / "configs" / f"{directory.name}.yaml"
    source = {} if config.is_file() else {"source": "installed_packages"}
    hidden = 16 if quick else 256
    return load(
        config if config.is_file() else None,
        name="gpu",
        runs=home,
        corpora=directory.parent,
        corpus={"name": directory.name, **source},
        network={"max_tokens": 24 if quick else 500, "hidden": hidden, "fully_connected": [hidden]},
        training={
            "epochs": [1] if quick else [10],
            "average_after": [6, 2],
            "batch_size": 200,
            "eval_every_steps": 400,
            "documents": 1_000 if quick else None,
            "precision": "bfloat16",
        },
        ensemble={"trees": 1, "combiner": "mean"},
        members={"network_tree": {"weight": 1.0}} | {name: {"weight": 0.0} for name in ("linear_tree", "knn")},
    )


def train_and_score(directory: Path, device: torch.device, quick: bool) -> Iterator[Result]:
    """Train one tree on a prepared corpus; yield figures after each level, and the scores of the test split."""
    with tempfile.TemporaryDirectory(prefix="axml-ray-gpu-") as home:
        run = Run(settings_of_corpus(directory, Path(home), quick), Corpus.open(directory))
        run.layout.directory.mkdir(parents=True)
        (spec,) = run.members
        began = time.perf_counter()
        run.keep_tree(0, build_tree(run.corpus, run.settings.tree, run.tree_seed(0)))
        yield {"corpus_tree_seconds": time.perf_counter() - began}, []

        def fit(report: Callable[[dict[str, Any]], None]) -> None:
            spec.implementation.fit(spec, run.prepare_fit(spec, DistributedContext(device=device), report))

        last: dict[str, Any] = {}
        for record in _reported(fit):
            if "loss" in record:
                last = record  # the last one of a level comes after its last step
            elif "scored" in record:
                yield _of_level(last | {"scoring_seconds": record["seconds"]})
        yield _of_level(last)
        spec.mark_fitted()
        trained = time.perf_counter()
        test = run.corpus.split("test")
        top = run.open_ensemble(device=device).rank(test.tokens).labels
        scored = time.perf_counter()
        scores = Scores(1 / propensities(run.corpus.labels.counts, run.corpus.documents("train")))
        scores.add(top, test.labels.values, test.labels.offsets)
        result = scores.result()
        figures = {"corpus_seconds": trained - began, "corpus_test_seconds": scored - trained}
        figures |= {f"{directory.name}_{name}": result[name] for name in MEASURES}
        yield figures, [{"documents": len(test), "fingerprint": run.corpus.fingerprint, **figures}]


def _of_level(record: dict[str, Any]) -> Result:
    names = ("level", "nodes", "seconds", "valid_nDCG@5", "documents_per_second", "memory_gib", "step", "loss")
    row = {name: record[name] for name in (*names, "scoring_seconds") if name in record}
    level = f"corpus_level{row['level']}"
    return {f"{level}_nDCG@5": row["valid_nDCG@5"], f"{level}_seconds": row["seconds"]}, [row]


def _reported(work: Callable[[Callable[[dict[str, Any]], None]], None]) -> Iterator[dict[str, Any]]:
    """Yield what `work` reports to the function that it is given, while it runs; its error is raised here."""
    records: SimpleQueue[dict[str, Any] | BaseException | None] = SimpleQueue()

    def run() -> None:
        try:
            work(records.put)
            records.put(None)
        except BaseException as error:
            records.put(error)

    threading.Thread(target=run, daemon=True).start()  # so that a run whose time is over ends
    while (record := records.get()) is not None:
        if isinstance(record, BaseException):
            raise record
        yield record


if __name__ == "__main__":
    results_file.run(main)
