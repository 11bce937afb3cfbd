"""A run that continues with new texts and labels, against training from scratch on the same texts: scores and seconds.

    python benchmarks/growth.py [--quick] [--json PATH] [--home DIRECTORY]

The texts are those of the config quickstart, the docstrings of the installed packages. A quarter of the texts, those of
some packages, is new: these packages' own modules and classes are new labels. One run is trained on the other texts; it
is there before the clock starts. Then, in turns, runs continue from it with the new texts, for few and for many
epochs, and runs are trained from scratch on the old and new texts for the same numbers of epochs. All have
one tree of networks alone, and one test split. `--quick` takes 2,000 texts instead of 8,000, and 1 and 4 epochs. Runs
and texts in the directory of `--home` are kept, and finished runs are not trained again.

Figures: for each row `continued_E` or `scratch_E` (E epochs of the first level, of the second at most one less),
`NAME_seconds` of training the networks, `NAME_P@5` and `NAME_nDCG@5` in percent, and `NAME_new_R@5`, the share of the
new labels' true occurrences that are among the best five; `old_P@5` of the run before.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from rich.console import Console

from axml_ray.corpus.readers.installed_packages import InstalledPackage, installed_package_readers
from axml_ray.corpus.records.records import Document
from axml_ray.corpus.store import Corpus
from axml_ray.evaluation.metrics.predictions import ENSEMBLE, Predictions
from axml_ray.evaluation.metrics.rankings import hits
from axml_ray.runs.continuation import continued_settings
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import load
from axml_ray.workflow.train import run

TEXTS, QUICK_TEXTS = 8_000, 2_000
NEW_SHARE, TEST_SHARE = 0.25, 0.1
EPOCHS, QUICK_EPOCHS = ((1, 1), (2, 2), (4, 3)), ((1, 1), (4, 3))
NETWORKS = {"network_tree": {"weight": 1.0}, "linear_tree": {"weight": 0.0}, "knn": {"weight": 0.0}}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all runs, print a row for each, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TEXTS:,} texts instead of {TEXTS:,}")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/growth.json, or growth-quick.json")
    parser.add_argument("--home", type=Path, help="directory of corpora and runs, kept; default: a temporary one")
    options = parser.parse_args(arguments)
    path = options.json or results_file.RESULTS / ("growth-quick.json" if options.quick else "growth.json")
    with tempfile.TemporaryDirectory(prefix="axml-ray-growth-") as temporary:
        home = (options.home or Path(temporary)).resolve()
        write_texts(home, QUICK_TEXTS if options.quick else TEXTS)
        rows = measure(home, QUICK_EPOCHS if options.quick else EPOCHS)
    figures: dict[str, float] = {"old_P@5": rows[0]["P@5"]}
    for row in rows[1:]:
        name = f"{row['side']}_{row['epochs'][0]}"
        figures |= {f"{name}_{key}": row[key] for key in ("seconds", "P@5", "nDCG@5", "new_R@5")}
    results_file.write(path, figures, rows)


def write_texts(home: Path, count: int) -> None:
    """Write `old.jsonl`, `more.jsonl` and `test.jsonl`: texts drawn by hashes, packages by a hash of their names.

    Texts that are there already are kept.
    """
    if (home / "test.jsonl").is_file():  # reading all packages takes as long as training a small tree
        return
    home.mkdir(parents=True, exist_ok=True)
    packages: list[tuple[int, list[Document]]] = []
    for reader in installed_package_readers():
        assert isinstance(reader, InstalledPackage)
        documents = [each for each in reader.read() if isinstance(each, Document)]
        packages.append((hash_of(str(reader.path.name)), documents))
    drawn = sorted(hash_of(each.text) for _, documents in packages for each in documents)[:count]
    limit, new = drawn[-1], 0
    with (
        (home / "old.jsonl").open("w") as old,
        (home / "more.jsonl").open("w") as more,
        (home / "test.jsonl").open("w") as test,
    ):
        for _, documents in sorted(packages, key=lambda package: package[0]):
            own = [each for each in documents if hash_of(each.text) <= limit]
            # A package that has most of the texts stays old.
            is_new = new + len(own) <= NEW_SHARE * count
            new += len(own) if is_new else 0
            for each in own:
                is_test = hash_of(f"test {each.text}") < TEST_SHARE * 2**64
                file = test if is_test else more if is_new else old
                file.write(json.dumps({"text": each.text, "labels": each.labels}) + "\n")


def hash_of(text: str) -> int:
    """Return a hash below 2^64 that is the same in every process."""
    return int.from_bytes(blake2b(text.encode(errors="replace"), digest_size=8).digest())


def measure(home: Path, all_epochs: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Train the old run, and then the continued runs and those from scratch in turns; return a row for each."""
    old = settings_of(home, "old", ("old.jsonl",), all_epochs[-1])
    rows = [measure_run(old, "old", None)]
    known = Corpus.open(old.corpus_directory)
    before = set(known.labels.labels[: known.trained])
    for epochs in all_epochs:
        name = f"continued-{epochs[0]}"
        more = settings_of(home, name, ("more.jsonl",), epochs, "continued")
        rows.append(measure_run(continued_settings(more, old.run_directory), "continued", before))
        fresh = settings_of(home, f"scratch-{epochs[0]}", ("old.jsonl", "more.jsonl"), epochs, "scratch")
        rows.append(measure_run(fresh, "scratch", before))
    return rows


def settings_of(
    home: Path, name: str, train: Sequence[str], epochs: tuple[int, int], corpus: str | None = None
) -> Experiment:
    """Return the settings of quickstart with other texts, one tree, networks alone and some epochs for each level."""
    files = {"train": [home / each for each in train], "test": [home / "test.jsonl"]}
    changes: dict[str, Any] = {
        "source": "json_lines", "name": corpus or name, "max_train_documents": None, **files
    }  # fmt: skip
    return load(
        "quickstart",
        name=name,
        runs=home / "runs",
        corpora=home / "corpora",
        corpus=changes,
        members=NETWORKS,
        ensemble={"trees": 1, "combiner": "mean"},
        training={"epochs": epochs, "average_after": [max(0, each - 2) for each in epochs]},
    )


def measure_run(settings: Experiment, side: str, before: set[str] | None) -> dict[str, Any]:
    """Train and evaluate a run.

    Args:
        settings: settings of the run.
        side: `old`, `continued` or `scratch`.
        before: labels that the old run has; None for the old run itself.
    """
    began = time.monotonic()
    metrics = run(settings)
    corpus = Corpus.open(settings.corpus_directory)
    row = {
        "side": side,
        "epochs": list(settings.training.epochs),
        "train": corpus.documents("train"),
        "labels": corpus.trained,
        "seconds": metrics["seconds"]["network_tree"],
        "whole_run_seconds": time.monotonic() - began,
        "test_documents": metrics["documents"],
        **{name: metrics["ensemble"][name] for name in ("P@1", "P@5", "nDCG@5")},
    }
    if before is not None:
        names = corpus.labels.labels
        is_new = np.array([names[label] not in before for label in range(corpus.trained)])
        row |= {"new_labels": int(is_new.sum()), "new_R@5": recall_of(Run(settings, corpus), is_new)}
    Console().print_json(json.dumps(row), indent=None)
    return row


def recall_of(current: Run, chosen: np.ndarray) -> float:
    """Return the share, in percent, of chosen labels' true occurrences in test texts that are in the best five.

    Args:
        current: an evaluated run.
        chosen: bool [trained labels].
    """
    predictions = Predictions.open(current.layout.predictions("test"))
    assert predictions is not None
    hit_occurrences = true = 0
    for ranking, truth in predictions.read(ENSEMBLE):
        top = ranking.labels[:, :5]
        is_hit = hits(top, truth.values, truth.offsets)
        hit_occurrences += int(chosen[top[is_hit]].sum())
        true += int(chosen[truth.values[truth.values < len(chosen)]].sum())
    return 100 * hit_occurrences / max(1, true)


if __name__ == "__main__":
    results_file.run(main)
