"""Ablations: scores of one config with another tree, network, training or word vectors.

    python benchmarks/ablations.py --config configs/quickstart.yaml [--tables kinds K H …] [--seeds N] [--vectors FILE]
                                   [--quick] [--json PATH] [--training.epochs '[4,3]', or any other setting]

Each row runs the whole main job with the given settings, except for what the row names, with a single tree (as in the
paper's tables of K and H), in a run below the config's `runs`. Rows that are trained with the same settings share a
run, and finished runs are not trained again. Scores are on the test split, in percent: the mean over the seeds, and
half the distance between the best and the worst seed. Choose settings by `valid` only, the last level's nDCG@5 on
validation. Except for some rows of the table `additions`, the ensemble has network trees and the mean only, whatever
members and combiner the config has.

- `kinds`: balanced and random trees, both with the config's height and cluster size.
- `K`: clusters of 8 to 128 with H = 2; C decreases as K grows, so that the number of candidates stays the same.
- `H`: no tree, and 1 to 4 levels of clusters with K = 8.
- `path`: the weight of a parent's score in its children's, `network.parent_score_exponent`.
- `networks`: attention, a BiLSTM with max-pooling, and XML-CNN (paper's table of ablations), on the same tree, without
  the config's additions to attention.
- `averaging`: stochastic weight averaging on and off (paper's table of ablations).
- `additions`: the config's networks alone ("as it is"); without each of their additions to the paper's network;
  together with other members, one more kind in each row; and with the combiner `calibrated`. `valid` is the score of
  the networks in every row, so it cannot choose among the latter; `benchmarks/member_scores.py` compares members and
  combiners on validation.
- `candidates`: a level trained with and without the true nodes that the beam above missed,
    `training.include_true_parents`.
- `vectors`: word vectors learned from the corpus, drawn at random, and read from `--vectors FILE`.
- `validation`: 50 to 1,000 validation documents, which choose the best checkpoint of each level. `valid` is a score on
  other documents in each row.
- `--quick` takes one seed, the kinds, the ends of K and of H (2 and 4), and at most 2,500 training documents.

Figures: for each row `NAME_P@1`, `NAME_P@5`, `NAME_PSP@5`, `NAME_valid`, such as `random_P@5` or `K=128_P@5`.
"""

import argparse
import json
import logging
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import results_file
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from axml_ray.cli.parser import with_flags
from axml_ray.core.errors import SettingsError
from axml_ray.settings import Experiment, fingerprint
from axml_ray.training.progress import JOURNAL
from axml_ray.workflow.train import run

COLUMNS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
TABLES = (
    "kinds",
    "K",
    "H",
    "path",
    "networks",
    "averaging",
    "additions",
    "candidates",
    "vectors",
    "validation",
)
VALID = "valid"
QUICK_DOCUMENTS = 2_500
PLAIN_ATTENTION = {"evidence": False, "label_vector_init": "random"}
Row = tuple[str, dict[str, Any]]


def tables(settings: Experiment, *, quick: bool, vectors: Path | None = None) -> dict[str, list[Row]]:
    """Return the rows of each table: a name, and the changed settings by their group."""
    candidates = settings.tree.beam * settings.tree.cluster_size
    sizes = (8, 128) if quick else (8, 16, 32, 64, 128)
    heights = (2, 4) if quick else (0, 1, 2, 3, 4)
    trees: dict[str, list[Row]] = {
        "kinds": [(kind, {"kind": kind}) for kind in ("balanced", "random")],
        "K": [(f"K={size}", {"height": 2, "cluster_size": size, "beam": _beam(candidates, size)}) for size in sizes],
        "H": [
            (f"H={height}", {"height": height, "cluster_size": 8, "beam": _beam(candidates, 8)}) for height in heights
        ],
    }
    networks: dict[str, list[Row]] = {
        "path": [(f"path={weight:g}", {"parent_score_exponent": weight}) for weight in (0, 0.25, 0.5, 1)],
        "networks": [(kind, {"kind": kind, **PLAIN_ATTENTION}) for kind in ("attention", "bilstm", "xml_cnn")],
    }
    starts = (start for start in ("features", "names") if start != settings.network.label_vector_init)
    # Weights of the members; the networks always have 0.5. Other settings of members are the config's.
    linear = {"network_tree": 0.5, "linear_tree": 0.5}
    knn = {**linear, "linear_tree": 0.35, "knn": 0.15}
    names = {**knn, "linear_tree": 0.275, "label_names": 0.075}
    additions: list[Row] = [
        ("as it is", {}),
        *((f"without {name}", {"network": {name: value}}) for name, value in PLAIN_ATTENTION.items()),
        *((f"start at {start}", {"network": {"label_vector_init": start}}) for start in starts),
        ("without both", {"network": PLAIN_ATTENTION}),
        ("with linear trees", {"members": _weights(linear)}),
        ("with linear trees and kNN", {"members": _weights(knn)}),
        ("with linear trees, kNN and label names", {"members": _weights(names)}),
        ("calibrated", {"ensemble": {"combiner": "calibrated"}}),
    ]
    words = {"train": "train", "random": "random"} | ({"file": str(vectors)} if vectors else {})
    name = settings.corpus.name
    return {
        **{table: [(name, {"tree": values}) for name, values in rows] for table, rows in trees.items()},
        **{table: [(name, {"network": values}) for name, values in rows] for table, rows in networks.items()},
        "additions": additions,
        "averaging": [
            ("averaging on", {}),
            ("averaging off", {"training": {"average_after": settings.training.epochs}}),
        ],
        "candidates": [
            (f"candidates {row}", {"training": {"include_true_parents": row == "with true"}})
            for row in ("with true", "of the beam")
        ],
        "vectors": [
            (f"vectors {row}", {"corpus": {"word_vectors": value, "name": f"{name}-{row}"}})
            for row, value in words.items()
        ],
        "validation": [
            (f"validation {documents}", {"corpus": {"valid_documents": documents, "name": f"{name}-valid{documents}"}})
            for documents in (50, 200, 1_000)
        ],
    }


def _weights(weights: Mapping[str, float]) -> dict[str, dict[str, float]]:
    return {kind: {"weight": weight} for kind, weight in weights.items()}


def _beam(candidates: int, size: int) -> int:
    return max(1, candidates // size)


def scores(
    settings: Experiment, changes: Mapping[str, Any], name: str, seed: int, documents: int | None, runs: dict[str, str]
) -> dict[str, Any]:
    """Return the metrics of a row for one seed, as in `metrics.json`, with `valid` added to those of the ensemble.

    `runs` maps the fingerprint of training settings to the name of a run; this run is added.
    """
    values = settings.model_dump() | {"seed": seed}
    values["ensemble"] |= {"trees": 1, "combiner": "mean"}
    weights = changes.get("members", _weights({"network_tree": 1.0}))
    own = {kind: group.model_dump() for kind, group in settings.members}
    values["members"] = {kind: group | weights.get(kind, {"weight": 0.0}) for kind, group in own.items()}
    for group, change in changes.items():
        if group != "members":
            values[group] |= change
    if documents:
        values["corpus"] |= {"max_train_documents": documents, "name": f"{values['corpus']['name']}-{documents}"}
    plain = Experiment(**values)
    trained_with = fingerprint(plain.corpus, plain.tree, plain.network, plain.training, seed)
    changed = plain.model_copy(update={"name": runs.setdefault(trained_with, f"ablations-{settings.name}-{name}")})
    metrics = run(changed)
    journal = (changed.run_directory / "tree-0" / JOURNAL).read_text(encoding="utf-8").splitlines()
    scored = [line["scoring"]["nDCG@5"] for line in map(json.loads, journal) if _of_last_level(line)]
    metrics["ensemble"][VALID] = max(scored)
    return metrics


def _of_last_level(line: Mapping[str, Any]) -> bool:
    return "scoring" in line and line["level"] == line["levels"]


def main(arguments: list[str] | None = None) -> None:
    """Run the rows, print the tables, write the results; an error exits 2 with one message."""
    settings, options = with_flags("Score settings with other trees, and with other K and H.", _flags, arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    console = Console(highlight=False)
    rows: list[dict[str, Any]] = []
    runs: dict[str, str] = {}
    try:
        documents = (
            min(QUICK_DOCUMENTS, settings.corpus.max_train_documents or QUICK_DOCUMENTS) if options.quick else None
        )
        for table_name in options.tables:
            for name, changes in tables(settings, quick=options.quick, vectors=options.vectors)[table_name]:
                metrics = []
                for seed in range(settings.seed, settings.seed + (1 if options.quick else options.seeds)):
                    label = f"{name}-seed{seed}" + (f"-{documents}" if documents else "")
                    label = label.replace("=", "").replace(" ", "-")
                    metrics.append(scores(settings, changes, label, seed, documents, runs))
                by_column = {column: [of_run["ensemble"][column] for of_run in metrics] for column in (*COLUMNS, VALID)}
                means = {column: statistics.mean(values) for column, values in by_column.items()}
                spread = {column: (max(values) - min(values)) / 2 for column, values in by_column.items()}
                row = {"table": table_name, "row": name, "settings": changes, "seeds": len(metrics), "scores": means}
                row |= {"half_spread": spread}
                row |= {"documents": documents or settings.corpus.max_train_documents, "corpus": metrics[0]["corpus"]}
                rows.append(
                    row | {"train_seconds": statistics.mean(of_run["seconds"]["network_tree"] for of_run in metrics)}
                )
                console.print(f"{table_name}: {name}: P@1 {means['P@1']:.2f}, P@5 {means['P@5']:.2f}", highlight=False)
    except (SettingsError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    console.print(shown(rows))
    path = options.json or results_file.RESULTS / f"ablations-{settings.name}.json"
    results_file.write(path, figures(rows), rows)
    console.print(Text(f"written to {path}"))


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=["kinds", "K", "H"])
    parser.add_argument("--vectors", type=Path, help="word vectors for the table of that name")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from the config's on")
    parser.add_argument("--quick", action="store_true", help="under 10 minutes on 2 cores; see the module")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/ablations-<the settings' name>.json")


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the numbers of the tables by name, in percent."""
    return {
        f"{row['row']}_{column}": round(row["scores"][column], 4)
        for row in rows
        for column in ("P@1", "P@5", "PSP@5", VALID)
    }  # fmt: skip


def shown(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows as a table for a rich console."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("")
    for column in (*COLUMNS, VALID, "train s"):
        table.add_column(column, justify="right")
    before = None
    for row in rows:
        if before not in (None, row["table"]):
            table.add_section()
        before = row["table"]
        cells = [
            f"{row['scores'][column]:.2f}" + (f" ±{row['half_spread'][column]:.1f}" if row["seeds"] > 1 else "")
            for column in (*COLUMNS, VALID)
        ]
        table.add_row(row["row"], *cells, f"{row['train_seconds']:,.0f}")
    return table


if __name__ == "__main__":
    main()
