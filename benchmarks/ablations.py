"""What the tree is worth: scores of one config with other trees, other K and H (paper, appendix), other path weights.

    python benchmarks/ablations.py --config configs/quickstart.yaml [--tables kinds K H features path] [--seeds N]
                                   [--quick] [--json PATH] [--training.epochs 4 3, or any other setting]

Each row is the whole main job with the given settings but for what the row names, with single trees (as the paper's
tables of K and H have), in a run of its own below the config's `runs`; a row that is finished is not run again. Scores
are of the test split, in percent, the mean over the seeds; nothing is chosen by them.

- `kinds`: balanced, Bonsai-style k-means and random trees, all by the config's height and cluster size.
- `features`: balanced trees of TF-IDF centroids, word vectors and the labels' names.
- `K`: clusters of 8 to 128 with H = 2; C falls as K grows, so that equally many candidates are scored.
- `H`: no tree, and 1 to 4 levels of clusters with K = 8.
- `path`: how much a parent's score counts in its children's, `network.path_weight`.
- `--quick` takes one seed, the kinds, the ends of K and of H (2 and 4), and at most 2,500 training documents.

Figures: for each row `NAME_P@1`, `NAME_P@5`, `NAME_PSP@5`, such as `random_P@5` or `K=128_P@5`.
"""

import argparse
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

from axml_ray import configuration
from axml_ray.experiment import run
from axml_ray.settings import Experiment, SettingsError

COLUMNS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
QUICK_DOCUMENTS = 2_500
Row = tuple[str, dict[str, Any]]


def tables(settings: Experiment, *, quick: bool) -> dict[str, list[Row]]:
    """For each table its rows: a name, and the settings that differ, by their group."""
    candidates = settings.tree.beam * settings.tree.cluster_size
    sizes = (8, 128) if quick else (8, 16, 32, 64, 128)
    heights = (2, 4) if quick else (0, 1, 2, 3, 4)
    trees: dict[str, list[Row]] = {
        "kinds": [(kind, {"kind": kind}) for kind in ("balanced", "kmeans", "random")],
        "features": [(kind, {"features": kind}) for kind in ("tfidf", "word_vectors", "label_text")],
        "K": [(f"K={size}", {"height": 2, "cluster_size": size, "beam": _beam(candidates, size)}) for size in sizes],
        "H": [
            (f"H={height}", {"height": height, "cluster_size": 8, "beam": _beam(candidates, 8)}) for height in heights
        ],
    }
    found = {table: [(name, {"tree": values}) for name, values in rows] for table, rows in trees.items()}
    return found | {
        "path": [(f"path={weight:g}", {"network": {"path_weight": weight}}) for weight in (0, 0.25, 0.5, 1)]
    }


def _beam(candidates: int, size: int) -> int:
    return max(1, candidates // size)


def scores(
    settings: Experiment, changes: Mapping[str, Any], name: str, seed: int, documents: int | None
) -> dict[str, Any]:
    """Scores of a row for one seed: what `metrics.json` says of the ensemble, which is a single tree."""
    values = settings.model_dump()
    values |= {"name": f"ablations-{settings.name}-{name}", "seed": seed}
    for group, change in (*changes.items(), ("ensemble", {"trees": 1})):
        values[group] |= change
    if documents:
        values["corpus"] |= {"max_train_documents": documents, "name": f"{settings.corpus.name}-{documents}"}
    return run(Experiment(**values))


def main(arguments: list[str] | None = None) -> None:
    """Run the rows, print the tables, write the results; an error exits 2 with one message."""
    settings, given = configuration.with_flags(
        "Score settings with other trees, and with other K and H.", _flags, arguments
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    console = Console(highlight=False)
    rows: list[dict[str, Any]] = []
    try:
        documents = (
            min(QUICK_DOCUMENTS, settings.corpus.max_train_documents or QUICK_DOCUMENTS) if given.quick else None
        )
        for table_name in given.tables:
            for name, changes in tables(settings, quick=given.quick)[table_name]:
                found = []
                for seed in range(settings.seed, settings.seed + (1 if given.quick else given.seeds)):
                    label = f"{name}-seed{seed}" + (f"-{documents}" if documents else "")
                    found.append(scores(settings, changes, label.replace("=", ""), seed, documents))
                means = {column: statistics.mean(one["ensemble"][column] for one in found) for column in COLUMNS}
                row = {"table": table_name, "row": name, "settings": changes, "seeds": len(found), "scores": means}
                row |= {"documents": documents or settings.corpus.max_train_documents, "corpus": found[0]["corpus"]}
                rows.append(row | {"train_seconds": statistics.mean(one["seconds"]["train"] for one in found)})
                console.print(f"{table_name}: {name}: P@1 {means['P@1']:.2f}, P@5 {means['P@5']:.2f}")
    except (SettingsError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    console.print(shown(rows))
    path = given.json or results_file.RESULTS / f"ablations-{settings.name}.json"
    results_file.write(path, figures(rows), rows)
    console.print(Text(f"written to {path}"))


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tables", nargs="+", choices=("kinds", "features", "K", "H", "path"), default=["kinds", "K", "H"]
    )
    parser.add_argument("--seeds", type=int, default=1, help="how many, counted on from the config's")
    parser.add_argument("--quick", action="store_true", help="under 10 minutes on 2 cores; see the module")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/ablations-<the settings' name>.json")


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The numbers of the tables by name, in percent."""
    return {
        f"{row['row']}_{column}": round(row["scores"][column], 4)
        for row in rows
        for column in ("P@1", "P@5", "PSP@5")
    }  # fmt: skip


def shown(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows as a table for a rich console."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("")
    for column in (*COLUMNS, "train s"):
        table.add_column(column, justify="right")
    before = None
    for row in rows:
        if before not in (None, row["table"]):
            table.add_section()
        before = row["table"]
        cells = [f"{row['scores'][column]:.2f}" for column in COLUMNS]
        table.add_row(row["row"], *cells, f"{row['train_seconds']:,.0f}")
    return table


if __name__ == "__main__":
    main()
