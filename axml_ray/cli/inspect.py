"""Show a label tree: its levels, their balance, and the clusters around a label; and the weights of members.

    axml-ray inspect --config quickstart [--tree N] [--label NAME] [--html PATH]

The tree is that of the run if there is one; otherwise it is built from the prepared corpus, and not saved.
Weights are shown of a finished run that fitted them.
"""

import argparse
from typing import TYPE_CHECKING

from axml_ray.cli.console import count, job_with_flags, table_console, write_output
from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.paths import absolute
from axml_ray.settings import Experiment, adapt, with_choices

if TYPE_CHECKING:
    from rich.table import Table

    from axml_ray.tree.inspection import LevelSummary

SHOWN = ("name", "seed", "runs", "corpora", "corpus.name", "tree", "ensemble.trees")
"""Settings that `--help` lists; others are accepted, since a config contains them, but have no effect."""
NEIGHBOURS = 5
"""Number of clusters that are shown around a label."""
NAMES = 24
"""Largest number of labels that are listed of a cluster."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    parser.add_argument(
        "--tree", dest="number", type=count, default=1, metavar="N",
        help="which tree of the ensemble, from 1 (1); tree N is in the directory tree-(N-1) of the run",
    )  # fmt: skip
    parser.add_argument("--label", metavar="NAME", help="label whose clusters to show; default: the most frequent")
    parser.add_argument(
        "--html", type=absolute, metavar="PATH", help="also write a page of the whole tree, to zoom into"
    )


@job_with_flags(__doc__, add_flags, SHOWN)
def main(settings: Experiment, given: argparse.Namespace) -> None:
    """Print the tree and its clusters around a label.

    Raises:
        SettingsError: the tree or the label does not exist, or the corpus is not prepared.
    """
    from rich.text import Text

    from axml_ray.corpus.store import Corpus
    from axml_ray.evaluation.reports.report import weights_table
    from axml_ray.runs.fitting import build_tree_of_run
    from axml_ray.runs.run import Run
    from axml_ray.runs.selection import open_selection
    from axml_ray.tree.clustering import normalise_rows
    from axml_ray.tree.inspection import clusters_around, describe_labels, find_label, summarise_levels
    from axml_ray.tree.tree_page import write_tree_page

    number = given.number
    if number > settings.ensemble.trees:
        raise SettingsError(f"--tree: {number} is not one of the ensemble's, 1 to {settings.ensemble.trees}")
    console = table_console()
    corpus = Corpus.open(settings.corpus_directory)
    settings, _ = adapt(settings, corpus.documents("train"), corpus.trained, corpus.mean_words)
    settings = with_choices(settings, open_selection(settings, corpus) or [])
    chosen = find_label(corpus.labels, given.label) if given.label else int(corpus.labels.counts.argmax())
    run = Run(settings, corpus)
    path = run.layout.tree_file(number - 1)
    storage.fetch(path)
    if path.is_file():
        tree, origin = run.open_tree(number - 1), f"of the run {settings.run_directory}"
        if not run.has_tree(number - 1):
            raise SettingsError(
                f"{path}: a tree of another corpus or of other settings; give the run's settings.yaml as --config, "
                "or choose another --name to build a tree of these settings"
            )
    else:
        tree, origin = build_tree_of_run(run, number - 1), "built now and not saved (there is no run)"
    features = normalise_rows(corpus.clustering_features())
    console.print(Text(f"tree {number} of {settings.name}: {settings.tree.kind}, {origin}", style="bold"))
    console.print(table(summarise_levels(tree, features), corpus.trained))
    if run.has_combiner() and (about := run.open_combiner().about()) is not None:
        console.print(weights_table(about))
    if given.html:
        title = f"{settings.name}, tree {number}"
        write_output("--html", given.html, lambda path: write_tree_page(path, tree, corpus.labels, title))
    if not tree.height:
        console.print("The tree is flat: there are no clusters to show.")
        return
    name = corpus.labels.names[chosen]
    clusters = clusters_around(tree, features, chosen, NEIGHBOURS)
    for place, cluster in enumerate(clusters):
        heading = "near: " if place else f"\nwith {name}: "
        console.print(Text.assemble((heading, "bold"), describe_labels(cluster, corpus.labels, NAMES)))


def table(rows: "list[LevelSummary]", labels: int) -> "Table":
    """Return the levels, with the leaf level of `labels` labels, as a table for a rich console."""
    from axml_ray.evaluation.reports.report import empty_table

    shown = empty_table("", ("level", "nodes", "children", "labels below", "similarity"))
    for row in rows:
        spread = [f"{least:,} to {most:,}, mean {mean:,.1f}" for least, mean, most in (row.children, row.labels)]
        shown.add_row(str(row.level), f"{row.nodes:,}", *spread, f"{row.similarity:.3f}")
    shown.add_row(str(len(rows) + 1), f"{labels:,}", "–", "–", "–")
    return shown
