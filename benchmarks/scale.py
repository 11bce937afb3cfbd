"""Speed and memory of preparing a corpus of the size of Amazon-3M.

    python benchmarks/scale.py [--quick] [--documents N] [--json PATH]

The corpus is generated (`generate` says how): 1.7 million training texts of about 104 words, 2.8 million labels, 36 a
text, as JSON lines in a temporary directory. `jobs/prepare_corpus.py` prepares it in its own process;
its memory is the sum of the proportional set sizes of the process and all that it starts, including Ray.

- The plain loop does the same work in one process, on `PLAIN_DOCUMENTS` documents (`plain` is all of it): read, split
  into words, count, rank, encode, write Parquet, sum up label features. The number of labels is reduced in proportion,
  else labels would take a larger share of the time than in the whole corpus. It makes no word vectors, counts no
  duplicates and computes no checksums; ours does, and starts Ray, in the time that is counted.
- Growth is of peak memory, from 1 million documents to 2 million.
- `--quick` generates 150,000 documents with labels in proportion instead, and 100,000 and 200,000 for the growth: its
  speedup is a lower bound, since what doesn't grow with the corpus, such as starting Ray, weighs more.

Figures: `prepare_speedup`, `peak_gib`, `peak_growth_1m_to_2m` (0.1 is 10% more), and `documents_per_second`,
`plain_documents_per_second`, `documents`.
"""

import argparse
import gc
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import results_file
from process_costs import descendants, proportional_bytes
from rich.console import Console
from scipy import sparse

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.labels.label_features import max_terms

DOCUMENTS, TEST_DOCUMENTS = 1_700_000, 20_000
LABELS, LABELS_OF_A_TEXT = 2_812_281, 36
WORDS, WORDS_OF_A_TEXT = 1_500_000, 104
PLAIN_DOCUMENTS = 40_000
CHUNK = 4096


def main(arguments: Sequence[str] | None = None) -> None:
    """Generate, run the plain loop, prepare, write the results."""
    parser = argparse.ArgumentParser(description="Speed and memory of preparing a corpus the size of Amazon-3M.")
    parser.add_argument("--quick", action="store_true", help="under 10 minutes on 2 cores; see the module")
    parser.add_argument("--documents", type=int, help=f"training documents (default {DOCUMENTS:,})")
    parser.add_argument("--growth", type=int, nargs=2, metavar=("N", "M"), help="documents to compare memory at")
    parser.add_argument("--plain", type=int, default=PLAIN_DOCUMENTS, help="documents of the plain loop")
    parser.add_argument("--folder", type=Path, help="where the generated corpora lie (default: a temporary directory)")
    parser.add_argument("--json", type=Path, default=results_file.RESULTS / "scale.json")
    options = parser.parse_args(arguments)
    documents = options.documents or (150_000 if options.quick else DOCUMENTS)
    growth = tuple(options.growth or ((100_000, 200_000) if options.quick else (1_000_000, 2_000_000)))
    console = Console()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="axml-ray-scale-") as temporary:
        folder = Path(temporary)
        names = max(1000, round(LABELS * min(1.0, documents / DOCUMENTS)))
        plain_documents = min(documents, options.plain)
        with console.status("generating"):
            write(folder / "test.jsonl", TEST_DOCUMENTS, 1, names)
            write(folder / "plain.jsonl", plain_documents, 0, max(1000, round(LABELS * plain_documents / DOCUMENTS)))
        plain_seconds = plain(folder / "plain.jsonl", folder / "plain")
        rows.append({"system": "plain loop", "documents": plain_documents, "seconds": plain_seconds})
        console.print(f"plain loop: {plain_documents / plain_seconds:,.0f} documents a second", highlight=False)
        for count in sorted({documents, *growth}):
            with console.status(f"generating {count:,} documents"):
                write(folder / "train.jsonl", count, 0, names)
            row = measure(folder, count + TEST_DOCUMENTS)
            row["training_documents"] = count
            rows.append(row)
            rate = f"{row['documents'] / row['seconds']:,.0f} documents a second, {row['peak_gib']:.2f} GiB"
            console.print(f"ours, {count:,} documents: {rate}", highlight=False)
    by_count = {row["training_documents"]: row for row in rows if "training_documents" in row}
    whole = by_count[documents]
    speed, plain_speed = whole["documents"] / whole["seconds"], plain_documents / plain_seconds
    results_file.write(
        options.json,
        {
            "prepare_speedup": speed / plain_speed,
            "peak_gib": whole["peak_gib"],
            "peak_growth_1m_to_2m": by_count[growth[1]]["peak_gib"] / by_count[growth[0]]["peak_gib"] - 1,
            "documents_per_second": speed,
            "plain_documents_per_second": plain_speed,
            "documents": documents,
        },
        rows,
    )
    console.print(f"{speed / plain_speed:.2f} times the plain loop; written to {options.json}", highlight=False)


def generate(count: int, seed: int, names: int) -> Iterator[bytes]:
    """Lines of JSON: texts of words, and labels, whose frequencies fall as in natural text, with their length varying.

    A label's name is eight or nine letters long, as product numbers are. Equal seeds give equal lines, and the first
    of more documents are those of fewer.
    """
    words = _names(WORDS, 7, shortest=2)
    labels = _names(names, 11, shortest=8)
    for begin in range(0, count, CHUNK):
        random = np.random.default_rng([seed, begin])
        sizes = random.poisson(WORDS_OF_A_TEXT, CHUNK)
        text = ranks(random, int(sizes.sum()), WORDS, 1.05)
        label_counts = random.poisson(LABELS_OF_A_TEXT - 1, CHUNK) + 1
        tags = ranks(random, int(label_counts.sum()), names, 0.55)
        word, tag = 0, 0
        for size, tagged in zip(sizes[: count - begin].tolist(), label_counts[: count - begin].tolist(), strict=True):
            record = {
                "text": " ".join(words[i] for i in text[word : word + size]),
                "labels": list(dict.fromkeys(labels[i] for i in tags[tag : tag + tagged])),
            }
            word, tag = word + size, tag + tagged
            yield json.dumps(record).encode() + b"\n"


def ranks(random: np.random.Generator, count: int, size: int, exponent: float) -> np.ndarray:
    """Ranks below `size`, int64 [count], whose frequency falls with rank to the power of `exponent`."""
    uniform = random.random(count)
    power = 1 - exponent
    ranks = ((size + 1) ** power * uniform + (1 - uniform)) ** (1 / power) - 1
    drawn: np.ndarray = np.minimum(ranks.astype(np.int64), size - 1)
    return drawn


@cache
def _names(count: int, factor: int, shortest: int) -> list[str]:
    """Different names of lower-case letters and digits; frequent ones are short where `shortest` allows it.

    Digits to base 36, mixed at each place by a `factor` that has none in common with 36.
    """
    letters = "etaoinshrdlucmfwypvbgkjqxz0123456789"
    names = []
    for number in range(count):
        name, rest = "", number
        while rest or len(name) < shortest:
            rest, letter = divmod(rest, len(letters))
            name += letters[(letter * factor + len(name) * 5) % len(letters)]
        names.append(name)
    return names


def write(path: Path, count: int, seed: int, names: int = LABELS) -> None:
    """Write `count` generated lines with `names` labels."""
    with path.open("wb") as file:
        file.writelines(generate(count, seed, names))
    gc.collect()


WORD = re.compile(r"\w+")


def plain(path: Path, folder: Path) -> float:
    """Return the seconds of the loop that one would write without this project; it keeps everything in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    texts: list[str] = []
    tokens: list[list[str]] = []
    labels: list[list[str]] = []
    word_counts: Counter[str] = Counter()
    label_counts: Counter[str] = Counter()
    digests: set[bytes] = set()
    with path.open(encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            text = record["text"]
            if not isinstance(text, str) or not all(isinstance(label, str) for label in record["labels"]):
                raise SettingsError(f"{path}: a bad record")
            digests.add(hashlib.blake2b(text.encode(), digest_size=16).digest())
            words = WORD.findall(text.lower())[:500]
            word_counts.update(set(words))
            unique_labels = list(dict.fromkeys(label.strip() for label in record["labels"]))
            label_counts.update(unique_labels)
            texts.append(text)
            tokens.append(words)
            labels.append(unique_labels)
    ranked = sorted(word_counts, key=lambda word: (-word_counts[word], word))[: 500_000 - 2]
    id_of = {word: i for i, word in enumerate(ranked, start=2)}
    names = sorted(label_counts, key=lambda label: (-label_counts[label], label))
    label_id = {label: i for i, label in enumerate(names)}
    token_ids = [[id_of.get(word, 1) for word in words] or [1] for words in tokens]
    label_ids = [sorted(label_id[label] for label in ids) for ids in labels]
    columns = {
        "id": pa.array([f"train.jsonl:{i}" for i in range(1, len(texts) + 1)]),
        "tokens": pa.array(token_ids, pa.list_(pa.int32())),
        "labels": pa.array(label_ids, pa.list_(pa.int32())),
        "text": pa.array(texts),
    }
    pq.write_table(pa.table(columns), folder / "train.parquet")
    frequency = np.array([0, 0, *(word_counts[word] for word in ranked)], dtype=np.float32)
    idf = np.log((len(texts) + 1) / (frequency + 1)) + 1
    rows: list[int] = []
    weights: list[float] = []
    offsets = [0]
    for ids in token_ids:
        counted = Counter(i for i in ids if i > 1)
        vector = {word: (1 + math.log(count)) * float(idf[word]) for word, count in counted.items()}
        length = math.sqrt(sum(weight * weight for weight in vector.values())) or 1.0
        rows.extend(vector)
        weights.extend(weight / length for weight in vector.values())
        offsets.append(len(rows))
    documents = sparse.csr_matrix((np.array(weights, np.float32), rows, offsets), shape=(len(texts), len(frequency)))
    flat = np.array([i for ids in label_ids for i in ids])
    ends = np.cumsum([0, *map(len, label_ids)])
    given_matrix = sparse.csr_matrix((np.ones(len(flat), np.float32), flat, ends), shape=(len(texts), len(names)))
    sums = (given_matrix.T.tocsr() @ documents).tocsr()
    most = max_terms(len(names)) or sums.shape[1]
    for row in range(len(names)):
        begin, end = sums.indptr[row], sums.indptr[row + 1]
        data = sums.data[begin:end]
        if end - begin > most:
            data[np.argpartition(data, -most)[:-most]] = 0
        data /= np.sqrt((data * data).sum()) or 1.0
    sums.eliminate_zeros()
    sparse.save_npz(folder / "label_features.npz", sums, compressed=False)
    return time.perf_counter() - began


def measure(folder: Path, documents: int) -> dict[str, Any]:
    """Prepare the corpus in `folder` in its own process; return its seconds and the peak memory of its process tree."""
    settings = {
        "corpora": str(folder / "corpora"),
        "corpus": {
            "name": "scale",
            "train": [str(folder / "train.jsonl")],
            "test": [str(folder / "test.jsonl")],
            "valid_documents": 4000,
            "word_vectors": "random",
        },
    }
    config = folder / "scale.yaml"
    config.write_text(json.dumps(settings), encoding="utf-8")
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, str(results_file.ROOT / "jobs" / "prepare_corpus.py"), "--config", str(config)],
        env={**os.environ, "PYTHONPATH": str(results_file.ROOT)},
        cwd=results_file.ROOT,
    )
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.5):
            processes = (process.pid, *descendants(process.pid))
            peak = max(peak, sum(map(proportional_bytes, processes)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        code = process.wait()
    finally:
        done.set()
        watcher.join()
    seconds = time.perf_counter() - began
    if code:
        raise SystemExit(code)
    manifest = json.loads((folder / "corpora" / "scale" / "corpus.json").read_text(encoding="utf-8"))
    return {
        "system": "ours",
        "documents": documents,
        "seconds": seconds,
        "peak_gib": peak / 2**30,
        "counts": manifest["counts"],
    }


if __name__ == "__main__":
    main()
