"""What linear classifiers beside networks are worth: validation scores of a finished run by their share and cost.

    python benchmarks/linear_share.py --run runs/quickstart [--costs 1 2 4] [--json PATH]

Classifiers are fitted anew for each of the costs (`linear.cost`), networks are the run's. Both rank the validation
documents, and are joined with shares (`linear.weight`) of 0, the networks alone, to 1, the classifiers alone. A run's
neighbours and names count as part of its classifiers; its correction and its learned join are left out of every share.
The test split isn't read.

Figures: `cost=1_share=0.5_P@1`, `…_nDCG@5` and so on.
"""

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import results_file
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from axml_ray.configuration import open_run
from axml_ray.corpus.store import Corpus
from axml_ray.evaluation.judge import Labels, inverse_propensity
from axml_ray.evaluation.metrics import Scores
from axml_ray.inference.combining import Votes
from axml_ray.inference.ensemble import open_trees
from axml_ray.inference.joining import Join
from axml_ray.linear.fitting import fit_linear
from axml_ray.network.precision import use_threads
from axml_ray.settings import LinearSettings, SettingsError
from axml_ray.training.tree import NAME_MATCHES, NEIGHBOURS, linear_texts

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
COLUMNS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")


def main(arguments: Sequence[str] | None = None) -> None:
    """Score, print the table, write the results; an error exits 2 with one message."""
    parser = argparse.ArgumentParser(description="Validation scores of a run by the share of linear classifiers.")
    parser.add_argument("--run", type=Path, required=True, help="a finished run")
    parser.add_argument("--costs", type=float, nargs="+", default=[1.0])
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/linear-share-<run name>.json")
    given = parser.parse_args(arguments)
    if min(given.costs) <= 0:
        parser.error("--costs: above 0")
    console = Console()
    try:
        rows = by_share(given.run, given.costs)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    console.print(shown(rows))
    figures = {
        f"cost={row['cost']:g}_share={row['share']:g}_{name}": round(row["scores"][name], 4)
        for row in rows
        for name in COLUMNS
    }
    path = given.json or results_file.RESULTS / f"linear-share-{given.run.resolve().name}.json"
    results_file.write(path, figures, rows)
    console.print(Text(f"written to {path}"))


def by_share(directory: Path, costs: Sequence[float]) -> list[dict[str, Any]]:
    """A row a cost and share: `cost`, `share`, `scores` in percent by measure, and what they are of.

    Raises:
        SettingsError: no such run, or an unfinished one.
    """
    settings = open_run(directory.absolute())
    use_threads(results_file.cores())
    corpus, top = Corpus.open(settings.corpus_directory), settings.ensemble.top_labels
    valid, train = corpus.split("valid"), linear_texts(settings, corpus)
    inverse = inverse_propensity(Labels(corpus.labels.counts, corpus.documents("train")), settings.evaluation)
    alone = settings.model_copy(update={"linear": LinearSettings()})
    trees = open_trees(alone, corpus)
    by_networks = [tree.predict(valid.tokens, top) for tree in trees]
    by_linear = {}
    for cost in costs:
        how = settings.linear.model_copy(update={"cost": cost})
        words = corpus.tokenizer.words
        fitted = (
            fit_linear(one.tree, train.tokens, train.labels, words, how, settings.seed + number, corpus.translation)
            for number, one in enumerate(trees)
        )
        if how.neighbours:
            place = settings.run_directory / NEIGHBOURS
            fitted = (linear.beside(place, how.neighbours, how.neighbours_weight) for linear in fitted)
        if share := how.name_matches_weight:
            names = settings.run_directory / NAME_MATCHES
            fitted = (linear.beside_names(names, share) for linear in fitted)
        by_linear[cost] = [linear.find(linear.see(valid.tokens), top) for linear in fitted]
    rows = []
    for cost, share in itertools.product(costs, SHARES):
        join = Join(share)
        found = [join.ranking(one, other, top) for one, other in zip(by_networks, by_linear[cost], strict=True)]
        best, _ = Votes(top).ranking(found)
        scores = Scores(inverse)
        scores.add(best, valid.labels.values, valid.labels.offsets)
        about = {"corpus": settings.corpus.name, "documents": len(valid), "trees": len(trees), "seed": settings.seed}
        rows.append({"cost": cost, "share": share, "scores": scores.result(), "split": "valid", **about})
    return rows


def shown(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows as a table for a rich console."""
    table = Table("cost", "share", *COLUMNS, box=box.SIMPLE_HEAD, show_edge=False)
    for row in rows:
        table.add_row(f"{row['cost']:g}", f"{row['share']:g}", *(f"{row['scores'][name]:.2f}" for name in COLUMNS))
    return table


if __name__ == "__main__":
    main()
