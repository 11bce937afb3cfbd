"""The main job itself at the size of Amazon-3M: seconds, memory and disk of each phase, and what the model has learned.

    python benchmarks/paper_scale.py [--labels 2812281] [--documents 200000] [--workers 1] [--quick] [--home DIRECTORY]
                                     [--json PATH]

One label tree of the paper's shape (H = 3, K = 8, C = 160), hidden 64, one epoch for each level (of a small corpus six,
in smaller batches), all members of the preset `recommended`. The phases are those of `axml-ray train`, then export,
opening the bundle, tagging one text after the other, batch prediction of the test texts and the server. In `--home`,
what is finished stays: the same command continues after a stop, and adds its seconds to those of the phases before it.

`write_texts` generates the corpus; its labels can be learned. Five labels with consecutive numbers form a subject,
which has a word of its own, and a pair of words from a pool of `PAIRED` that it shares with others; 64 subjects form a
field with ten words. A text is about seven subjects of one field: each brings its labels, a few of them left out, and
its words several times; the rest are words of the field and `NOISE` words that say nothing. Fields, and subjects within
one, have frequencies that fall as in natural text, and most labels have few texts.

`--quick` has 20,000 labels and 2,000 texts, and ends within ten minutes on two cores, also on those without AVX-512.

Figures: `peak_gib` (of the sum of proportional set sizes over all processes), `largest_process_gib`, and of each phase
`seconds_PHASE`, `peak_gib_PHASE` and `largest_process_gib_PHASE`, whose row names that process (`largest_process`);
`run_gib` and `bundle_gib` on disk; `open_seconds`, `open_gib` and `second_open_gib` (private memory that a first and a
second process take to open the bundle), `tagging_ms` a text, `predict_docs_per_second` of batch prediction, `server_ms`
a text; `P@1` to `P@5` and `R@5` of each band of frequency in percent, `MEMBER_P@5`, next to `frequent_P@5` of always
ranking the most frequent labels.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import requests
import results_file
from process_costs import descendants, process_name, proportional_bytes
from rich import box
from rich.console import Console
from rich.table import Table
from scale import ranks
from serving import server

from axml_ray.core.files import file_bytes, read_json, write_json
from axml_ray.corpus.counts import count_corpus
from axml_ray.inference.bundle.export import export_bundle
from axml_ray.progress.heartbeat import phase
from axml_ray.progress.reporter import Reporter, report_to
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import load
from axml_ray.workflow.train import run

LABELS, DOCUMENTS, QUICK_LABELS, QUICK_DOCUMENTS = 2_812_281, 200_000, 20_000, 2_000
TEST_SHARE = 0.05
LABELS_OF_SUBJECT, SUBJECTS_OF_FIELD, SUBJECTS_OF_TEXT = 5, 64, 7
KEPT_SHARE = 0.9
"""Share of a subject's labels that a text has."""
PAIRED, FIELD_WORDS, NOISE = 2_000, 10, 20_000
OWN_TIMES, FIELD_TIMES, NOISE_TIMES = 3, 20, 40
"""How often a text has the words of each of its subjects, words of its field, and words that say nothing."""
CHUNK = 4_096
TAGGED_ALONE = 50
"""Texts that are tagged one after the other."""
OPENER = Path(__file__).with_name("bundle_opener.py")


def main(arguments: Sequence[str] | None = None) -> None:
    """Generate the corpus, run all phases, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, help=f"default: {LABELS:,}")
    parser.add_argument("--documents", type=int, help=f"training texts; default: {DOCUMENTS:,}")
    parser.add_argument("--workers", type=int, default=1, help="workers of the networks")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_LABELS:,} labels and {QUICK_DOCUMENTS:,} texts")
    parser.add_argument("--home", type=Path, help="directory of corpus, run and bundle; default: a temporary one")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/paper-scale[-quick].json")
    options = parser.parse_args(arguments)
    labels = options.labels or (QUICK_LABELS if options.quick else LABELS)
    documents = options.documents or (QUICK_DOCUMENTS if options.quick else DOCUMENTS)
    path = options.json or results_file.RESULTS / ("paper-scale-quick.json" if options.quick else "paper-scale.json")
    with tempfile.TemporaryDirectory(prefix="axml-ray-paper-scale-") as temporary:
        home = (options.home or Path(temporary)).resolve()
        test = round(TEST_SHARE * documents)
        write_texts(home / "train.jsonl", documents, labels, seed=0)
        write_texts(home / "test.jsonl", test, labels, seed=1)
        phases = Phases(home / "costs.json")
        with report_to(phases), phases.watched():
            measured = measure(home, labels, documents, options.workers)
    rows: list[dict[str, Any]] = [{"phase": name, **costs} for name, costs in phases.costs.items()]
    rows.append(
        {"labels": labels, "documents": documents, "test_documents": test, "workers": options.workers, **measured}
    )
    figures: dict[str, float] = {
        f"{name}_{row['phase'].replace(' ', '_')}": row[name]
        for row in rows[:-1]
        for name in ("seconds", "peak_gib", "largest_process_gib")
    }
    figures |= {name: value for name, value in measured.items() if isinstance(value, int | float)}
    figures |= {name: max(row[name] for row in rows[:-1]) for name in ("peak_gib", "largest_process_gib")}
    Console().print(table(rows[:-1]))
    results_file.write(path, figures, rows)


def write_texts(path: Path, count: int, labels: int, seed: int) -> None:
    """Write JSON lines of texts and labels, see the module, unless the file is there. Equal seeds give equal lines."""
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    subjects = -(-labels // LABELS_OF_SUBJECT)
    fields = -(-subjects // SUBJECTS_OF_FIELD)
    # Numbers of frequent fields and subjects are not neighbours, else the order of the labels would be their frequency.
    field_order = np.random.default_rng(2).permutation(fields)
    pairs = np.random.default_rng(3).integers(PAIRED, size=(subjects, 2))
    temporary = path.with_suffix(".writing")
    with temporary.open("w", encoding="utf-8") as file:
        for begin in range(0, count, CHUNK):
            random = np.random.default_rng([seed, begin])
            for _ in range(min(CHUNK, count - begin)):
                field = field_order[ranks(random, 1, fields, 0.6)[0]]
                drawn = field * SUBJECTS_OF_FIELD + ranks(random, 1 + random.poisson(SUBJECTS_OF_TEXT - 1), 64, 0.5)
                chosen = np.unique(np.minimum(drawn, subjects - 1))
                label_ids = (chosen[:, None] * LABELS_OF_SUBJECT + np.arange(LABELS_OF_SUBJECT)).ravel()
                label_ids = label_ids[(random.random(len(label_ids)) < KEPT_SHARE) & (label_ids < labels)]
                words = [f"s{subject}" for subject in chosen] * OWN_TIMES
                words += [f"p{word}" for word in pairs[chosen].ravel()] * OWN_TIMES
                words += [f"f{field}x{word}" for word in random.integers(FIELD_WORDS, size=FIELD_TIMES)]
                words += [f"n{word}" for word in ranks(random, NOISE_TIMES, NOISE, 1.05)]
                random.shuffle(words)
                record = {"text": " ".join(words), "labels": [f"L{label}" for label in label_ids]}
                file.write(json.dumps(record) + "\n")
    temporary.rename(path)


def settings_of(home: Path, labels: int, workers: int) -> Experiment:
    """Return the settings of the run, whose number of workers is no part of its name."""
    small = labels <= 100_000
    config = {
        "preset": "recommended",
        "name": "paper-scale",
        "runs": str(home / "runs"),
        "corpora": str(home / "corpora"),
        "corpus": {
            "name": "paper-scale",
            "train": [str(home / "train.jsonl")],
            "test": [str(home / "test.jsonl")],
            "word_dimension": 100,
            "min_document_frequency": 1,
        },
        "tree": {"height": 2 if small else 3, "cluster_size": 8, "beam": 160},
        "network": {"hidden": 64, "fully_connected": [64], "evidence": False},
        "training": {
            "epochs": [6, 6] if small else [1, 1],
            "average_after": [0, 0],
            "batch_size": min(200, labels // 200),
        },
        "ensemble": {"trees": 1},
        "resources": {"workers": workers, "cpus_per_worker": 1.0},
    }
    path = home / "paper-scale.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    return load(path)


def measure(home: Path, labels: int, documents: int, workers: int) -> dict[str, Any]:
    """Run all phases, whose costs the current reporter records; return the other figures."""
    settings = settings_of(home, labels, workers)
    metrics = run(settings)
    current, bundle, test = Run.open(settings), home / "bundle", home / "test.jsonl"
    if not bundle.exists():
        with phase("export"):
            export_bundle(current, bundle, "bfloat16")
    figures: dict[str, Any] = {
        "run_gib": file_bytes(settings.run_directory) / 2**30,
        "bundle_gib": file_bytes(bundle) / 2**30,
        "counts": asdict(replace(count_corpus(settings), source="the prepared corpus")),  # without its path
        "scores": metrics["ensemble"],
        "members": metrics["members"],
        "bands": metrics["bands"],
        "frequent_P@5": frequent_precision(current),
        **{f"P@{k}": metrics["ensemble"][f"P@{k}"] for k in (1, 3, 5)},
        **{f"{name}_P@5": scores["P@5"] for name, scores in metrics["members"].items()},
        **{f"R@5_{band['name']}": band["R@5"] for band in metrics["bands"] if "R@5" in band},
    }
    del current
    gc.collect()
    with phase("opening and tagging"):
        first, second = open_twice(bundle, test)
    figures |= {
        "open_seconds": first["seconds"], "tagging_ms": first["ms"],
        "open_gib": first["private_mib"] / 2**10, "second_open_gib": second["private_mib"] / 2**10,
    }  # fmt: skip
    began, count = time.perf_counter(), round(TEST_SHARE * documents)
    predict_test(bundle, test, home / "predictions")
    figures["predict_docs_per_second"] = count / (time.perf_counter() - began)
    with phase("server"), server(bundle, together=True) as (url, _):
        figures["server_ms"] = ask_server(url, test)
    return figures


def predict_test(bundle: Path, texts: Path, output: Path) -> None:
    """Predict a file of texts as `axml-ray predict` does."""
    command = [
        Path(sys.executable).with_name("axml-ray"),
        "predict",
        "--bundle",
        bundle,
        "--input",
        texts,
        "--output",
        output,
    ]
    with phase("batch prediction"):
        subprocess.run([str(word) for word in command], check=True, cwd=results_file.ROOT)


def frequent_precision(current: Run) -> float:
    """Return P@5 on the test split, in percent, of ranking the five labels with the most training documents."""
    best = np.argsort(-current.corpus.labels.counts, kind="stable")[:5]
    truth = current.corpus.split("test").labels
    return float(100 * np.isin(truth.values, best).sum() / (5 * len(truth)))


def open_twice(bundle: Path, texts: Path) -> list[dict[str, float]]:
    """Return what the opener measures in a first process, and in a second while the first has the bundle open."""
    command = [sys.executable, str(OPENER), str(bundle), str(texts), str(TAGGED_ALONE)]
    processes, answers = [], []
    try:
        for _ in range(2):
            process = subprocess.Popen(
                command, cwd=results_file.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            processes.append(process)
            assert process.stdout is not None
            answers.append(json.loads(process.stdout.readline()))
    finally:
        for process in processes:
            process.communicate("\n")
    return answers


def ask_server(url: str, texts: Path) -> float:
    """Return the median milliseconds of a request with one text."""
    with texts.open(encoding="utf-8") as file:
        asked = [json.loads(line)["text"] for _, line in zip(range(TAGGED_ALONE), file, strict=False)]
    times = []
    for text in asked:
        began = time.perf_counter()
        requests.post(f"{url}/v1/tag", json={"text": text}, timeout=120).raise_for_status()
        times.append(time.perf_counter() - began)
    return float(1000 * np.median(times))


class Phases(Reporter):
    """Records seconds and peak memory of each phase, from samples every half second; nested phases are not divided.

    The costs lie in a file, so that those of an interrupted command count.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.costs: dict[str, dict[str, Any]] = read_json(path) if path.is_file() else {}
        self._open: list[str] = []
        self._counted = 0.0
        self._lock = threading.Lock()

    def begin_phase(self, name: str) -> None:
        """Begin to count costs for a phase."""
        if not self._open:
            self.costs.setdefault(name, {"seconds": 0.0, "peak_gib": 0.0, "largest_process_gib": 0.0})
            self._counted = time.perf_counter()
        self._open.append(name)

    def end_phase(self, name: str, seconds: float) -> None:
        """Count the rest of a phase."""
        self.sample()
        with self._lock:
            self._open.pop()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Sample memory within the block."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.5):
                self.sample()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()

    def sample(self) -> None:
        """Add the seconds since the last sample, and a sample of the memory of this process and all below it."""
        with self._lock:
            if not self._open:
                return
            cost = self.costs[self._open[0]]
            now = time.perf_counter()
            cost["seconds"], self._counted = cost["seconds"] + now - self._counted, now
            processes = [os.getpid(), *descendants(os.getpid())]
            sizes = [proportional_bytes(process) / 2**30 for process in processes]
            cost["peak_gib"] = max(cost["peak_gib"], sum(sizes))
            largest = max(range(len(sizes)), key=sizes.__getitem__)
            if sizes[largest] > cost["largest_process_gib"]:
                cost["largest_process_gib"] = sizes[largest]
                cost["largest_process"] = process_name(processes[largest])
            write_json(self._path, self.costs)


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the phases as a table for a rich console."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in ("phase", "seconds", "GiB of all", "of the largest process", "which"):
        shown.add_column(name, justify="left" if name in ("phase", "which") else "right")
    for row in rows:
        memory = (f"{row[name]:.2f}" for name in ("peak_gib", "largest_process_gib"))
        shown.add_row(row["phase"], f"{row['seconds']:,.0f}", *memory, row.get("largest_process", ""))
    return shown


if __name__ == "__main__":
    results_file.run(main)
