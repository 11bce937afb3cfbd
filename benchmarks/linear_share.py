"""What linear classifiers beside the networks are worth: validation scores of a finished run by their share.

    python benchmarks/linear_share.py --run runs/quickstart [--json PATH]

The run must have been trained with `linear.weight` above 0. Its trees' networks and classifiers rank the validation
documents, and are joined with other shares than the run's, 0 (networks alone) to 1 (classifiers alone); nothing is
trained, and nothing of the test split is read.

Figures: `0.5_P@1`, `0.5_nDCG@5` and so on for each share.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import results_file
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from axml_ray.corpus.store import Corpus
from axml_ray.evaluation.metrics import Scores, propensities
from axml_ray.inference.beam import TreePredictor
from axml_ray.inference.combining import combine
from axml_ray.inference.ensemble import Ensemble
from axml_ray.judging import open_run
from axml_ray.network.precision import use_threads
from axml_ray.settings import SettingsError

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
COLUMNS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")


def main(arguments: Sequence[str] | None = None) -> None:
    """Score, print the table, write the results; an error exits 2 with one message."""
    parser = argparse.ArgumentParser(description="Validation scores of a run by the share of linear classifiers.")
    parser.add_argument("--run", type=Path, required=True, help="a finished run with linear.weight above 0")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/linear-share-<run name>.json")
    given = parser.parse_args(arguments)
    console = Console()
    try:
        rows = by_share(given.run)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    console.print(shown(rows))
    figures = {f"{row['share']:g}_{name}": round(row["scores"][name], 4) for row in rows for name in COLUMNS}
    path = given.json or results_file.RESULTS / f"linear-share-{given.run.resolve().name}.json"
    results_file.write(path, figures, rows)
    console.print(Text(f"written to {path}"))


def by_share(directory: Path) -> list[dict[str, Any]]:
    """A row a share: `share`, `scores` in percent by measure, and what they are of.

    Raises:
        SettingsError: no such run, or one without linear classifiers.
    """
    settings = open_run(directory.absolute())
    if not settings.linear.weight:
        raise SettingsError(f"{directory}: trained without linear classifiers; train one with --linear.weight 0.5")
    use_threads(results_file.cores())
    corpus, top = Corpus.open(settings.corpus_directory), settings.ensemble.top_labels
    valid = corpus.split("valid")
    a, b = settings.evaluation.propensity_a, settings.evaluation.propensity_b
    inverse = 1 / propensities(corpus.labels.counts, corpus.documents("train"), a=a, b=b)
    both = []
    for tree in Ensemble.open(settings, corpus).trees:
        assert tree.linear is not None
        alone = TreePredictor(tree.tree, tree.networks, tree.beam, tree.precision)
        both.append((alone.predict(valid.tokens, top), tree.linear[0].find(valid.tokens, tree.beam, top)))
    rows = []
    for share in SHARES:
        joined = [
            combine([one[0], other[0]], [one[1] * (1 - share), other[1] * share], top) if 0 < share < 1 else
            (other if share else one)
            for one, other in both
        ]  # fmt: skip
        best, _ = combine([labels for labels, _ in joined], [scores for _, scores in joined], top)
        scores = Scores(inverse)
        scores.add(best, valid.labels.values, valid.labels.offsets)
        about = {"corpus": settings.corpus.name, "documents": len(valid), "trees": len(both), "seed": settings.seed}
        rows.append({"share": share, "scores": scores.result(), "split": "valid", **about})
    return rows


def shown(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows as a table for a rich console."""
    table = Table("share", *COLUMNS, box=box.SIMPLE_HEAD, show_edge=False)
    for row in rows:
        table.add_row(f"{row['share']:g}", *(f"{row['scores'][name]:.2f}" for name in COLUMNS))
    return table


if __name__ == "__main__":
    main()
