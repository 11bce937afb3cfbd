"""Memory, time and accuracy of the k-nearest-neighbour member by the number of training texts.

    python benchmarks/knn_scale.py [--quick] [--documents N …] [--corpus DIRECTORY …] [--json PATH]

- For each N, generated texts of about 104 words and 36 of 2.8 million labels (as of `scale.py`) are indexed in one
  process, and the index is opened in another one that scores 512 further texts: peak resident set of both, bytes of
  the index, processor milliseconds a text. The process that indexes holds the word ids and labels of all texts, too.
- For each prepared corpus, the nDCG@5 and P@5 on its validation documents, if features in more than a tenth, a
  fiftieth, … of the training texts are ignored.

Figures: `fit_peak_gib_N`, `open_peak_gib_N`, `ms_per_text_N`.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from scale import LABELS, LABELS_OF_A_TEXT, WORDS_OF_A_TEXT, ranks

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.store import Corpus
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.evaluation.metrics.metrics import Scores
from axml_ray.members import knn
from axml_ray.members.featurizer import Featurizer, text_blocks
from axml_ray.members.knn import FILE, KnnConfig, NearestNeighbours
from axml_ray.members.member import LoadInputs
from axml_ray.settings.members import FeatureSettings, KnnSettings

DOCUMENTS = (50_000, 200_000)
VOCABULARY, SCORED, BATCH = 500_000, 512, 256
CHUNK = 1 << 14
SHARES = (0.1, 0.02, 0.01)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all and write the results."""
    parser = argparse.ArgumentParser(description="The k-nearest-neighbour member by the number of training texts.")
    parser.add_argument("--quick", action="store_true", help="20,000 and 40,000 texts")
    parser.add_argument("--documents", type=int, nargs="*", help="numbers of training texts")
    parser.add_argument("--corpus", type=Path, nargs="*", default=[], help="directories of prepared corpora")
    parser.add_argument("--json", type=Path, default=results_file.RESULTS / "knn-scale.json")
    options = parser.parse_args(arguments)
    sizes = options.documents if options.documents is not None else (20_000, 40_000) if options.quick else DOCUMENTS
    figures: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    for documents in sizes:
        with tempfile.TemporaryDirectory(prefix="axml-ray-knn-") as folder:
            row = {"documents": documents, **alone(fit, Path(folder), documents), **alone(score, Path(folder))}
        rows.append(row)
        print(row, flush=True)
        figures |= {f"{name}_{documents}": row[name] for name in ("fit_peak_gib", "open_peak_gib", "ms_per_text")}
    for directory in options.corpus:
        for row in accuracy(directory):
            rows.append(row)
            print(row, flush=True)
    results_file.write(options.json, figures, rows)


def alone(function: Any, *arguments: Any) -> dict[str, Any]:
    """Return what a function returns in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        result: dict[str, Any] = pool.submit(function, *arguments).result()
        return result


def peak_gib() -> float:
    """Return the largest resident set that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def generated(documents: int, mean: int, size: int, exponent: float, seed: int) -> Ragged:
    """Return rows of about `mean` numbers below `size` whose frequency falls with their rank."""
    random = np.random.default_rng(seed)
    lengths = random.poisson(mean - 1, documents) + 1
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.empty(offsets[-1], np.int32)
    for start in range(0, documents, CHUNK):
        inside = slice(offsets[start], offsets[min(start + CHUNK, documents)])
        values[inside] = ranks(random, inside.stop - inside.start, size, exponent)
    return Ragged(values, offsets)


def texts(documents: int, seed: int) -> Ragged:
    """Return generated texts; the first two ids are no words."""
    rows = generated(documents, WORDS_OF_A_TEXT, VOCABULARY - 2, 1.05, seed)
    return Ragged(rows.values + np.int32(2), rows.offsets)


def fit(folder: Path, documents: int) -> dict[str, Any]:
    """Index generated texts."""
    tokens, labels = texts(documents, 0), generated(documents, LABELS_OF_A_TEXT, LABELS, 0.55, 1)
    held, began = peak_gib(), time.process_time()
    featurizer = Featurizer.fit(tokens, [""] * VOCABULARY, FeatureSettings())
    rows = map(featurizer.matrix, text_blocks(tokens))
    index = NearestNeighbours.of(rows, labels, LABELS, KnnSettings().neighbours, featurizer)
    index.save(folder / FILE, "key")
    seconds = time.process_time() - began
    featurizer.save(folder / "features.safetensors", "key")
    return {
        "inputs_gib": held,
        "fit_peak_gib": peak_gib(),
        "fit_seconds": seconds,
        "index_gib": (folder / FILE).stat().st_size / 2**30,
    }


def score(folder: Path) -> dict[str, Any]:
    """Open the index and score further texts."""
    featurizer = Featurizer.load(folder / "features.safetensors", VOCABULARY)
    config = KnnConfig(neighbours=KnnSettings().neighbours, features=FeatureSettings())
    index = NearestNeighbours.load(folder, config, LoadInputs(labels=LABELS, words=VOCABULARY, featurizer=featurizer))
    tokens = texts(SCORED, 2)
    batches = [tokens.take(np.arange(first, min(first + BATCH, SCORED))) for first in range(0, SCORED, BATCH)]
    index.rank(TextViews(batches[0]), 100)  # reads the file
    began = time.process_time()
    for batch in batches:
        index.rank(TextViews(batch), 100)
    seconds = time.process_time() - began
    singles, began = range(32), time.process_time()
    for row in singles:
        index.rank(TextViews(tokens.take(np.array([row]))), 100)
    single = 1_000 * (time.process_time() - began) / len(singles)
    return {"open_peak_gib": peak_gib(), "ms_per_text": 1_000 * seconds / SCORED, "ms_alone": single}


def accuracy(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the scores on validation for each largest share of the texts that a feature may be in."""
    corpus = Corpus.open(directory)
    train, valid = corpus.split("train"), corpus.split("valid")
    featurizer = Featurizer.fit(train.tokens, corpus.tokenizer.words, FeatureSettings())
    for share in SHARES:
        knn.COMMON_TEXTS, knn.COMMON_SHARE = 0, share
        blocks = map(featurizer.matrix, text_blocks(train.tokens))
        index = NearestNeighbours.of(blocks, train.labels, corpus.trained, KnnSettings().neighbours, featurizer)
        began = time.process_time()
        ranking = index.rank(TextViews(valid.tokens), 100)
        seconds = time.process_time() - began
        scores = Scores(np.ones(len(corpus.labels)))
        scores.add(ranking.labels, valid.labels.values, valid.labels.offsets)
        row = {"corpus": directory.name, "training_texts": len(train), "share": share}
        row |= {"ms_per_text": 1_000 * seconds / len(valid)}
        yield row | {name: scores.result()[name] for name in ("P@1", "P@5", "nDCG@5", "R@10")}


if __name__ == "__main__":
    results_file.run(main)
