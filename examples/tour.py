"""A tour: train on text that is on this machine, inspect a tree, explain a prediction, compare two runs.

    python examples/tour.py [DIRECTORY]

The texts are docstrings of SciPy, labelled with their package and the names of their arguments.
Everything is small, so that it takes about a minute on two cores, and scores are low. Results are kept in DIRECTORY, by
default `runs/tour`; run it again and finished parts are reused.
"""

import ast
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from axml_ray import Tagger
from axml_ray.evaluation.reports.comparison import measures_table
from axml_ray.evaluation.reports.report import scores_table
from axml_ray.inference.bundle.export import export_bundle
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import load
from axml_ray.tree.clustering import normalise_rows
from axml_ray.tree.inspection import clusters_around, describe_labels, find_label, summarise_levels
from axml_ray.tree.label_tree import LabelTree
from axml_ray.workflow.compare import compare_runs
from axml_ray.workflow.train import run

LABEL = "scipy.sparse"
TEXT = "Convert a sparse matrix to compressed row format; duplicate entries are summed."
WORDS = 60


def main(directory: Path) -> dict[str, Any]:
    """Take the tour and return the comparison of the two runs."""
    console = Console(width=110)
    directory = directory.resolve()
    texts = directory / "texts.jsonl"

    console.rule("1. Write the texts as JSON lines")
    count = write_texts(texts)
    console.print(f"{count:,} docstrings in {texts}")

    console.rule("2. Train one tree with the paper's preset, and one with linear classifiers and kNN as well")
    networks = settings(directory, "networks")
    ensemble = settings(directory, "ensemble", members={"linear_tree": {"weight": 0.7}, "knn": {"weight": 0.3}})
    for each in (networks, ensemble):
        console.print(scores_table(run(each)))

    console.rule(f"3. Inspect the tree: the clusters near {LABEL}")
    inspect_tree(ensemble, console)

    console.rule("4. Export a bundle, tag a text and explain the best label")
    export_bundle(Run.open(ensemble.run_directory), directory / "bundle")
    [tags] = Tagger.load(directory / "bundle").tag([TEXT], top_k=3, explain=True)
    for tag in tags:
        console.print(f"{tag.name}: score {tag.score:.2f}, probability {tag.probability:.2f}", highlight=False)
    print(tags[0].ansi())

    console.rule("5. Compare the two runs, document by document")
    comparison = compare_runs(Run.open(networks.run_directory), Run.open(ensemble.run_directory), "test")
    console.print(measures_table(comparison))
    return comparison


def settings(directory: Path, name: str, **changes: Any) -> Experiment:
    """Return the settings of a small run on the texts of the tour."""
    groups: dict[str, Any] = {
        "preset": "paper",
        "name": name,
        "runs": directory / "runs",
        "corpora": directory / "corpora",
        "corpus": {
            "name": "tour",
            "train": [directory / "texts.jsonl"],
            "max_tokens": WORDS,
            "min_label_count": 3,
            "word_vectors": "random",
            "word_dimension": 32,
        },
        "tree": {"height": 1, "cluster_size": 16, "beam": 8},
        "network": {"hidden": 32, "fully_connected": [32]},
        "training": {
            "epochs": [2],
            "average_after": [1],
            "batch_size": 20,
            "learning_rate": 0.005,
            "eval_every_steps": 50,
        },
        "ensemble": {"trees": 1},
        "resources": {"cpus_per_worker": 1},
    }
    return load(None, **groups | changes)


def write_texts(path: Path) -> int:
    """Write the docstrings of SciPy's functions and classes as JSON lines with their labels; return their number."""
    spec = importlib.util.find_spec("scipy")
    assert spec is not None and spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    records = [record for file in sorted(package.glob("[a-z]*/*.py")) for record in docstrings(file, package.parent)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return len(records)


def docstrings(file: Path, root: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of one module: the first words of each docstring; its package and arguments are the labels."""
    package = ".".join(file.relative_to(root).parts[:2])
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
            arguments = [] if isinstance(node, ast.ClassDef) else [each.arg for each in node.args.args]
            labels = [package, *(each for each in arguments if each not in ("self", "cls"))]
            yield {"text": " ".join(text.split()[:WORDS]), "labels": labels[:6]}


def inspect_tree(settings: Experiment, console: Console) -> None:
    """Print the levels of a run's first tree and the clusters around a label."""
    current = Run.open(settings.run_directory)
    tree = LabelTree.load(current.layout.tree_file(0))
    features = normalise_rows(current.corpus.clustering_features())
    for level in summarise_levels(tree, features):
        least, mean, most = level.labels
        console.print(f"level {level.level}: {level.nodes} clusters of {least} to {most} labels (mean {mean:.1f})")
    label = find_label(current.corpus.labels, LABEL)
    for cluster in clusters_around(tree, features, label, 2):
        console.print(describe_labels(cluster, current.corpus.labels, 12))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/tour"))
