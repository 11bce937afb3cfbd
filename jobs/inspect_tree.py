"""A look at a label tree: its levels, its balance, and the clusters around a label, by name and as a picture.

python jobs/inspect_tree.py --config configs/quickstart.yaml [--tree N] [--label NAME] [--picture PATH]

--tree: which tree of the ensemble, from 0. --label: whose surroundings, by default the most frequent label's.
--picture: where to, by default beside the tree in the run. Other flags are settings, as for the other jobs.
The tree is that of the run where there is one; else it is built from the prepared corpus, and not kept.
"""

import argparse
from functools import partial
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from axml_ray.configuration import from_command_line
from axml_ray.console import run_command
from axml_ray.corpus.store import Corpus
from axml_ray.judging import SETTINGS
from axml_ray.settings import Experiment, SettingsError, absolute
from axml_ray.training.ensemble import has_tree
from axml_ray.training.tree import TREE, tree_directory
from axml_ray.tree.clustering import normalise_rows
from axml_ray.tree.features import clustering_features
from axml_ray.tree.inspection import LevelSummary, clusters_around, describe_labels, find_label, summarise_levels
from axml_ray.tree.kinds import build_tree, check_hierarchy
from axml_ray.tree.label_tree import LabelTree
from axml_ray.tree.picture import draw_clusters

NEIGHBOURS = 5
NAMES = 24


def inspect(settings: Experiment, number: int, label: str | None, picture: Path | None, console: Console) -> None:
    """Print the tree and draw its clusters around a label.

    Raises:
        SettingsError: there is no such tree or label, or no prepared corpus.
    """
    if not 0 <= number < settings.ensemble.trees:
        raise SettingsError(f"--tree: {number} is not one of the ensemble's, 0 to {settings.ensemble.trees - 1}")
    corpus = Corpus.open(settings.corpus_directory)
    chosen = find_label(corpus.labels, label) if label else 0
    directory = tree_directory(settings.run_directory, number)
    tree, origin = _open_or_build(settings, corpus, directory / TREE, number)
    features = normalise_rows(clustering_features(corpus, settings.tree.features))
    shape = settings.tree
    console.print(Text(f"tree {number} of {settings.name}: {shape.kind} by {shape.features}, {origin}", style="bold"))
    console.print(table(summarise_levels(tree, features), corpus.trained))
    if not tree.height:
        console.print("The tree is flat: there are no clusters to show.")
        return
    name = corpus.labels.names[chosen]
    clusters = clusters_around(tree, features, chosen, NEIGHBOURS)
    parts = [f"\nwith {name}: ", *["near: "] * (len(clusters) - 1)]
    for part, cluster in zip(parts, clusters, strict=True):
        console.print(Text.assemble((part, "bold"), describe_labels(cluster, corpus.labels, NAMES)))
    picture = picture or (directory if directory.is_dir() else Path.cwd()) / f"tree-{number}.svg"
    title = f"{settings.name}, tree {number}: the cluster of {name} and those most like it"
    draw_clusters(picture, clusters, features, corpus.labels.names, title)
    console.print(Text(f"\npicture: {picture}"))


def _open_or_build(settings: Experiment, corpus: Corpus, path: Path, number: int) -> tuple[LabelTree, str]:
    check_hierarchy(settings.tree, corpus)
    if path.is_file():
        try:
            tree = LabelTree.load(path)
        except ValueError as error:
            raise SettingsError(f"{error}; remove the file, and the job that trains builds it anew") from None
        if not has_tree(settings, corpus, number):
            raise SettingsError(
                f"{path}: a tree of another corpus or of other settings; give {settings.run_directory / SETTINGS} as "
                "--config, or choose another --name to look at a tree of these settings"
            )
        return tree, f"of the run {settings.run_directory}"
    return build_tree(corpus, settings.tree, settings.seed + number), "built for this look (there is no run)"


def table(rows: list[LevelSummary], labels: int) -> Table:
    """The levels, with the leaves below them, as a table for a rich console."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in ("level", "nodes", "children", "labels below", "similarity"):
        shown.add_column(name, justify="right")
    for row in rows:
        spread = [f"{least:,} to {most:,}, mean {mean:,.1f}" for least, mean, most in (row.children, row.labels)]
        shown.add_row(str(row.level), f"{row.nodes:,}", *spread, f"{row.similarity:.3f}")
    shown.add_row(str(len(rows) + 1), f"{labels:,}", "–", "–", "–")
    return shown


def main() -> None:
    """Show a tree; a wrong setting or flag ends it with code 2 and one line."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--tree", type=int, default=0)
    parser.add_argument("--label")
    parser.add_argument("--picture", type=absolute)
    flags, rest = parser.parse_known_args()  # not with the settings, where --tree is a group
    settings = from_command_line(__doc__ or "", rest)
    console = Console(width=None if Console().is_terminal else 110, highlight=False)
    run_command(partial(inspect, settings, flags.tree, flags.label, flags.picture, console))


if __name__ == "__main__":
    main()
