"""Word vectors of PPMI and SVD compared with skip-gram vectors (gensim), by networks that start from them.

    python benchmarks/word_vectors.py --config configs/quickstart.yaml [--seeds N] [--threads N] [--quick] [--json PATH]
                                      [--network.max_tokens 128, or any other setting]

The networks of one label tree are trained from each kind of vectors with the same settings and seeds, and rank the
validation documents; the test split is not read. Skip-gram has five negative samples, window 5, subsampling at 1e-4 and
five epochs. It runs in an environment of its own in `.peers`, which the first call makes. `--quick` takes one seed and
at most 2,500 training documents.

Figures, in percent: `KIND_nDCG@5`, `KIND_P@5`, the means over the seeds, and `KIND_spread`, the largest less the
smallest nDCG@5; KIND is `ppmi` or `skip_gram`. `speedup` is skip-gram's seconds over those of PPMI and SVD, both in one
thread, without reading the documents for skip-gram.
"""

import argparse
import json
import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import results_file
from environments import Requirements, checked, environment
from rich.console import Console
from rich.text import Text

from axml_ray.cli.parser import with_flags
from axml_ray.core.files import read_json
from axml_ray.core.limits import available_cpus
from axml_ray.corpus.preparation.passes import count_cooccurrences
from axml_ray.corpus.store import Corpus
from axml_ray.corpus.text.cooccurrence import factorise, number_of_stripes
from axml_ray.ensemble.combiner import Mean
from axml_ray.evaluation.metrics.metrics import Scores
from axml_ray.network.backends.precision import use_threads
from axml_ray.runs.fitting import fit_run
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.workflow.train import prepare_corpus

KINDS = ("ppmi", "skip_gram")
COLUMNS = ("P@1", "P@5", "nDCG@5")
EPOCHS = 5
QUICK_DOCUMENTS = 2_500
WORKER = Path(__file__).with_name("skip_gram_worker.py")
GENSIM = Requirements(["gensim==4.4.0"])


def experiment(settings: Experiment, kind: str, vectors: str, seed: int) -> Experiment:
    """Return the settings of one tree without other members, which starts from some word vectors."""
    values = settings.model_dump() | {"name": f"word-vectors-{settings.name}-{kind}-seed{seed}", "seed": seed}
    values["corpus"] |= {"word_vectors": vectors, "name": f"{settings.corpus.name}-{kind}"}
    values["ensemble"] |= {"trees": 1, "combiner": "mean"}
    weights = {name: float(name == "network_tree") for name, _ in settings.members}
    values["members"] = {name: group.model_dump() | {"weight": weights[name]} for name, group in settings.members}
    return Experiment(**values)


def compute_vectors(corpus: Corpus, directory: Path, console: Console) -> dict[str, Any]:
    """Train skip-gram vectors of a corpus, and compute its own again, each in one thread.

    Args:
        corpus: the prepared corpus.
        directory: gets `vectors.npy` and `vocab.txt`. If it has them for this corpus already, nothing is computed.
        console: for the progress.

    Returns:
        Seconds by kind, and gensim's version.
    """
    about, key = directory / "about.json", {"corpus": corpus.fingerprint}
    if about.is_file() and key.items() <= read_json(about).items():
        return read_json(about)
    python = environment(console, "gensim", GENSIM)
    directory.mkdir(parents=True, exist_ok=True)
    tokens, words = corpus.split("train").tokens, corpus.tokenizer.words
    dimension = corpus.word_vectors().shape[1]
    np.savez(directory / "tokens.npz", values=tokens.values, offsets=tokens.offsets)
    (directory / "task.json").write_text(json.dumps({"dimension": dimension, "epochs": EPOCHS, "seed": 0}))
    console.print("training skip-gram vectors")
    checked([python, WORKER, directory], "skip-gram failed")
    names = [words[word] for word in np.load(directory / "ids.npy")]
    (directory / "vocab.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    paths = [directory / f"{stripe}.npz" for stripe in range(number_of_stripes(len(tokens.values), len(words)))]
    start = time.perf_counter()
    for stripe in range(len(paths)):
        count_cooccurrences(stripe, paths, corpus.files("train"), len(words))
    factorise(paths, dimension, seed=0)
    ppmi = time.perf_counter() - start
    done = read_json(directory / "done.json")
    content = {**key, "seconds": {"ppmi": ppmi, "skip_gram": done["seconds"]}, "gensim": done["version"]}
    about.write_text(json.dumps(content))
    return content


def scores(settings: Experiment) -> dict[str, float]:
    """Train the networks, unless they are; return the scores of their rankings of the validation documents."""
    run = Run(settings, prepare_corpus(settings))
    fit_run(run)
    valid = run.corpus.split("valid")
    [ranking] = run.open_ensemble(Mean).rank_members(valid.tokens).values()
    measured = Scores(np.ones(len(run.corpus.labels.counts)))
    measured.add(ranking.labels, valid.labels.values, valid.labels.offsets)
    return {column: measured.result()[column] for column in COLUMNS}


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of the rows so far."""
    result: dict[str, float] = {}
    for kind in KINDS:
        own = [row["scores"] for row in rows if row["kind"] == kind]
        if own:
            result |= {f"{kind}_{column}": statistics.mean(score[column] for score in own) for column in COLUMNS}
            gains = [score["nDCG@5"] for score in own]
            result[f"{kind}_spread"] = max(gains) - min(gains)
    seconds = {row["kind"]: row["vector_seconds"] for row in rows}
    if len(seconds) == len(KINDS):
        result["speedup"] = seconds["skip_gram"] / seconds["ppmi"]
    return {name: round(value, 4) for name, value in result.items()}


def main(arguments: list[str] | None = None) -> None:
    """Compute both kinds of vectors, train from each, and write the results after each training."""
    settings, options = with_flags("Compare word vectors of PPMI and SVD with skip-gram's.", _flags, arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    console = Console(highlight=False)
    use_threads(options.threads)
    if options.quick:
        documents = min(QUICK_DOCUMENTS, settings.corpus.max_train_documents or QUICK_DOCUMENTS)
        corpus = settings.corpus.model_copy(update={"max_train_documents": documents})
        settings = settings.model_copy(update={"corpus": corpus, "name": f"{settings.name}-quick"})
    path = options.json or results_file.RESULTS / f"word-vectors-{settings.name}.json"
    rows: list[dict[str, Any]] = []
    prepared = prepare_corpus(experiment(settings, "ppmi", "train", settings.seed))
    directory = prepared.directory.with_name(f"{prepared.directory.name}-vectors")
    about = compute_vectors(prepared, directory, console)
    vectors = {"ppmi": "train", "skip_gram": str(directory / "vectors.npy")}
    prepare_corpus(experiment(settings, "skip_gram", vectors["skip_gram"], settings.seed))
    ray.shutdown()  # preparation may have started it; a single tree trains without
    for seed in range(settings.seed, settings.seed + (1 if options.quick else options.seeds)):
        for kind in KINDS:
            row = {"kind": kind, "seed": seed, "scores": scores(experiment(settings, kind, vectors[kind], seed))}
            row |= {"vector_seconds": about["seconds"][kind], "threads": options.threads, "gensim": about["gensim"]}
            counts = {split: prepared.documents(split) for split in ("train", "valid")}
            rows.append(row | {"documents": counts, "words": len(prepared.tokenizer)})
            console.print(f"{kind}, seed {seed}: {rows[-1]['scores']}")
            results_file.write(path, figures(rows), rows)
    console.print(Text(f"written to {path}"))


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds, from the config's on")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="default: all usable cores")
    parser.add_argument("--quick", action="store_true", help="under 10 minutes on 2 cores; see the module")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/word-vectors-<the settings' name>.json")


if __name__ == "__main__":
    results_file.run(main)
