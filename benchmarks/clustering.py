"""Time, memory and cluster similarity of label clustering: ours, a literal version, and other systems.

    python benchmarks/clustering.py [--quick] [--data ../shared/data] [--threads N] [--json PATH]

Each system gets the same label features and makes balanced clusters of at most `CLUSTER_SIZE` labels by halving, in its
own process: `axml_ray.tree` (`ours`), `literal_clustering.py` (`literal`, one thread), libpecos's
hierarchical k-means and omikuji's Parabel (each in its own environment below `.peers`, which the first call makes).

- Features: TF-IDF centroids of the labels of eurlex57k, tibkat and finna-titles, or generated ones of 64 terms per
  label (see `generated`). Missing data sets are left out and listed below the table.
- `seconds` is the time of clustering alone, the median over the seeds: nine for the data sets, three at 100,000 labels,
  one for more labels and for the literal version. `peak_gib` is the peak of the process, including its features.
  `similarity` is the mean cosine of a label to its cluster's centre, the mean over the seeds; `similarity_spread` is
  their standard deviation.
- omikuji reads text only, so it stops at 100,000 labels; the literal version isn't run on 2.8 million. `--quick` leaves
  out peers and literal version above 100,000 labels, and the literal version and omikuji on the data sets.

Figures: `speedup_100k` (against the literal version), `speedup_vs_libpecos_100k`, `similarity_100k`,
`similarity_libpecos_100k`, `seconds_2800k`, `peak_gib_2800k`, and `growth_share_2800k`: the growth of the seconds from
100,000 labels to 2.8 million, relative to the growth of L log L (1 is the same).
"""

import argparse
import gzip
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import peers
import results_file
from environments import PeerError, checked, environment
from peer_systems import PROGRAMS
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from axml_ray.core.files import read_json
from axml_ray.core.limits import available_cpus
from axml_ray.core.ragged import Ragged

CLUSTER_SIZE = 8
DATA = results_file.ROOT.parent / "shared" / "data"
DATA_SETS = ("eurlex57k", "tibkat", "finna-titles")
SMALL, MIDDLE, LARGE = 100_000, 670_000, 2_800_000
WORKER = Path(__file__).with_name("clustering_worker.py")
SEEDS = {SMALL - 1: 9, SMALL: 3}  # number of seeds by the largest number of labels; one seed for more labels

TERMS, WORDS_OF_A_TERM = 64, 8192
ROWS = 1 << 17


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all systems, print the table, write the results; an error exits 2 with one message."""
    parser = argparse.ArgumentParser(description="Compare label clustering with a literal version and with peers.")
    parser.add_argument("--quick", action="store_true", help="under 10 minutes on 2 cores; see the module")
    parser.add_argument("--data", type=Path, default=DATA, help="directory of the data sets")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="default: all usable cores")
    parser.add_argument("--json", type=Path, default=results_file.RESULTS / "clustering.json")
    options = parser.parse_args(arguments)
    console = Console()
    rows: list[dict[str, Any]] = []
    try:
        pythons = {
            "ours": Path(sys.executable),
            "literal": Path(sys.executable),
            "libpecos": environment(console, "libpecos", PROGRAMS["libpecos"]),
            "omikuji": environment(console, "omikuji", PROGRAMS["omikuji"]),
        }
        for name, make, systems in cases(options.data, quick=options.quick):
            with console.status(f"{name}: features"):
                features = make()
            console.print(f"{name}: {features.shape[0]:,} labels, {features.nnz:,} terms", highlight=False)
            for row in measure(name, features, {system: pythons[system] for system in systems}, options.threads):
                console.print(f"  {row['system']}: {row['seconds']:,.2f} s", highlight=False)
                rows.append(row)
            del features
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    console.print(table(rows))
    missing = [name for name in DATA_SETS if name not in {row["case"] for row in rows}]
    if missing:
        console.print(f"left out, since {options.data} doesn't hold them: {', '.join(missing)}", highlight=False)
    results_file.write(options.json, figures(rows), rows)
    console.print(Text(f"written to {options.json}"))


def cases(data: Path, *, quick: bool) -> Iterator[tuple[str, Callable[[], sparse.csr_matrix], Sequence[str]]]:
    """Yield each case: its name, a function that returns its features, and the systems to run."""
    everyone = ("ours", "literal", "libpecos", "omikuji")
    for name in DATA_SETS:
        if (data / name / "train.jsonl.gz").is_file():
            yield name, partial(centroids, data / name), ("ours", "libpecos") if quick else everyone
    yield "generated 100,000", partial(generated, SMALL), everyone
    yield "generated 670,000", partial(generated, MIDDLE), ("ours",) if quick else everyone[:3]
    yield "generated 2,800,000", partial(generated, LARGE), ("ours",) if quick else ("ours", "libpecos")


def centroids(directory: Path) -> sparse.csr_matrix:
    """Return TF-IDF centroids of a data set's labels, float32 CSR [L, F], over words in at least two documents."""
    with gzip.open(directory / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    documents = TfidfVectorizer(**peers.FEATURES).fit_transform(record["text"] for record in records)
    ids = {label: i for i, label in enumerate(sorted({label for record in records for label in record["labels"]}))}
    labels = Ragged.from_rows([ids[label] for label in dict.fromkeys(record["labels"])] for record in records)
    truth = sparse.csr_matrix((np.ones(len(labels.values)), labels.values, labels.offsets), (len(labels), len(ids)))
    return normalize((truth.T @ documents).tocsr()).astype(np.float32)


def generated(labels: int, seed: int = 0) -> sparse.csr_matrix:
    """Generate hierarchical label features, float32 CSR [labels, 524,288], rows of 64 terms and length one.

    Labels are the leaves of a binary tree, in random order. Each term of a label belongs to a depth, drawn at random:
    at the root it is any of 8,192 words (rank r in proportion to 1/r); further down one of four words that belong to
    the label's ancestor at that depth. So close labels share many words, and distant ones few.
    """
    random = np.random.default_rng(seed)
    leaf = random.permutation(labels).astype(np.uint64)
    deepest = max(1, int(math.log2(labels)) - 2)
    data = np.empty((labels, TERMS), np.float32)
    indices = np.empty((labels, TERMS), np.int32)
    terms = np.arange(TERMS, dtype=np.uint64)
    for start in range(0, labels, ROWS):
        part = slice(start, min(start + ROWS, labels))
        depth = random.integers(0, deepest + 1, (part.stop - start, TERMS)).astype(np.uint64)
        ancestor = ((leaf[part, None] << depth) // np.uint64(labels)) + (np.uint64(1) << depth)
        stirred = ancestor * np.uint64(0x9E3779B97F4A7C15) + terms * np.uint64(0xBF58476D1CE4E5B9)
        stirred = (stirred ^ (stirred >> np.uint64(31))) * np.uint64(0x94D049BB133111EB)
        rank = np.exp(random.random(depth.shape) * math.log(WORDS_OF_A_TERM)).astype(np.uint64) - np.uint64(1)
        rank = np.minimum(rank, np.uint64(WORDS_OF_A_TERM - 1))
        own = ((stirred >> np.uint64(29)) + rank % np.uint64(4)) % np.uint64(WORDS_OF_A_TERM)
        word = np.where(depth == 0, rank, own)
        indices[part] = terms * np.uint64(WORDS_OF_A_TERM) + word
        data[part] = (1 + random.exponential(size=depth.shape)) * (1 + np.log1p(word.astype(np.float64)))
        data[part] /= np.linalg.norm(data[part], axis=1, keepdims=True)
    indptr = np.arange(0, labels * TERMS + 1, TERMS, dtype=np.int32)
    return sparse.csr_matrix((data.ravel(), indices.ravel(), indptr), (labels, TERMS * WORDS_OF_A_TERM))


def measure(
    name: str, features: sparse.csr_matrix, pythons: Mapping[str, Path], threads: int
) -> Iterator[dict[str, Any]]:
    """Yield one row per system."""
    labels, depth = features.shape[0], 0
    while -(-labels // 2**depth) > CLUSTER_SIZE:
        depth += 1
    with tempfile.TemporaryDirectory(prefix="axml-ray-clustering-") as work:
        directory = Path(work)
        for part in ("data", "indices", "indptr"):
            np.save(directory / f"{part}.npy", getattr(features, part))
        if "omikuji" in pythons:
            own = Ragged(np.arange(labels, dtype=np.int32), np.arange(labels + 1))
            peers.write_documents(directory / "features.txt", features, own, labels)
        for system, python in pythons.items():
            done = []
            seeds = 1 if system == "literal" else next((count for most, count in SEEDS.items() if labels <= most), 1)
            for seed in range(seeds):
                task = {"labels": labels, "columns": features.shape[1], "cluster_size": CLUSTER_SIZE}
                task |= {"depth": depth, "seed": seed, "threads": threads}
                (directory / "task.json").write_text(json.dumps(task))
                checked([python, WORKER, system, directory], f"{system} failed on {name}")
                order, offsets = (np.fromfile(directory / f"{part}.int64", np.int64) for part in ("order", "offsets"))
                result = read_json(directory / "done.json")
                done.append(result | {"similarity": similarity(features, order, offsets)})
            yield {
                "case": name,
                "labels": labels,
                "terms": int(features.nnz),
                "system": system,
                "program": done[0]["program"],
                "threads": 1 if system == "literal" else threads,
                "seconds": statistics.median(run["seconds"] for run in done),
                "seconds_of_each_seed": [run["seconds"] for run in done],
                "peak_gib": max(run["peak_gib"] for run in done),
                "similarity": statistics.mean(run["similarity"] for run in done),
                "similarity_spread": statistics.stdev(run["similarity"] for run in done) if seeds > 1 else None,
                "clusters": len(offsets) - 1,
                "largest_cluster": int(np.diff(offsets).max()),
            }


def similarity(features: sparse.csr_matrix, order: np.ndarray, offsets: np.ndarray) -> float:
    """Return the mean cosine of the labels to the normalised sum of their cluster.

    Args:
        features: float32 CSR [L, F], rows of length one or empty.
        order: int64 [L], labels cluster by cluster.
        offsets: int64 [clusters + 1], where each cluster begins.
    """
    if not np.array_equal(np.sort(order), np.arange(features.shape[0])):
        raise PeerError("not every label is in one cluster")
    total = 0.0
    for start in range(0, len(offsets) - 1, ROWS // CLUSTER_SIZE):
        ends = offsets[start : start + ROWS // CLUSTER_SIZE + 1]
        rows = features[order[ends[0] : ends[-1]]].astype(np.float64)
        ones = np.ones(rows.shape[0])
        sums = sparse.csr_matrix((ones, np.arange(rows.shape[0]), ends - ends[0])) @ rows
        # A cluster's similarities to the direction of its sum add up to the length of its sum.
        total += float(np.sqrt(sums.multiply(sums).sum(axis=1)).sum())
    return total / features.shape[0]


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the benchmark's figures by name."""
    row_of = {(row["labels"], row["system"]): row for row in rows if row["case"].startswith("generated")}
    ours, large = row_of[SMALL, "ours"], row_of[LARGE, "ours"]
    growth = (LARGE * math.log(LARGE)) / (SMALL * math.log(SMALL))
    return {
        "speedup_100k": row_of[SMALL, "literal"]["seconds"] / ours["seconds"],
        "speedup_vs_libpecos_100k": row_of[SMALL, "libpecos"]["seconds"] / ours["seconds"],
        "similarity_100k": ours["similarity"],
        "similarity_libpecos_100k": row_of[SMALL, "libpecos"]["similarity"],
        "seconds_2800k": large["seconds"],
        "peak_gib_2800k": large["peak_gib"],
        "growth_share_2800k": large["seconds"] / ours["seconds"] / growth,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows as a table for a rich console."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, title=f"clusters of at most {CLUSTER_SIZE} labels")
    for name in ("", "labels", "terms", "system", "threads", "seconds", "peak GiB", "similarity"):
        shown.add_column(name, justify="left" if name in ("", "system") else "right")
    before = None
    for row in rows:
        first = row["case"] != before
        before = row["case"]
        case = (before, f"{row['labels']:,}", f"{row['terms']:,}") if first else ("", "", "")
        cells = f"{row['seconds']:,.2f}", f"{row['peak_gib']:.2f}", f"{row['similarity']:.4f}"
        shown.add_row(*case, row["system"], str(row["threads"]), *cells)
    return shown


if __name__ == "__main__":
    main()
