"""Score against seconds of training: our members, one tree and three trees next to linear systems.

    python benchmarks/time_to_accuracy.py [--corpora docstrings eurlex57k] [--systems parabel …] [--draw]

For each corpus, three steps of one run with `configs/CORPUS.yaml`: the members without networks; these and one tree;
these and the config's trees. Networks train as the config says, on one thread a tree, so that a single tree leaves
cores idle. Then the peers of `peers.py`, on the same training documents and all cores, with their own word TF-IDF.

- Seconds are of all that a new corpus costs: preparation, features, label trees, fits and, for ours, the combiner, but
  not prediction. A step's seconds include those of the steps before it, and their combiners. The peers start from the
  prepared texts, so reading those is in our seconds only.
- Scores are of the test split, in percent. Nothing is chosen by them.
- The run is named as `quality.py` names that of its first seed, which can score it without training it again.
- A run that exists is refused: seconds of a training that was interrupted are not known.
- Each row is written to `benchmarks/results/time-to-accuracy-CORPUS.json` when it is measured. At last, the picture
  `docs/images/time-to-accuracy.svg` is drawn from these files; `--draw` does only that.

Figures: for each system, such as `members without networks`, `1 tree`, `3 trees` and `parabel`: `NAME_seconds`,
`NAME_P@1`, `NAME_P@5` and `NAME_nDCG@5`.
"""

import argparse
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import peers
import peers_tables
import results_file
from peer_systems import BY_DEFAULT, PEERS
from rich import box
from rich.console import Console
from rich.table import Table

from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json, whole_file
from axml_ray.core.limits import available_cpus
from axml_ray.settings import Experiment, configuration
from axml_ray.workflow.train import run

CORPORA = ("docstrings", "eurlex57k")
MEASURES = ("P@1", "P@5", "nDCG@5")
DRAWN = "P@5"
OURS = "axml-ray"
NETWORKS = "network_tree"
WITHOUT_NETWORKS = "members without networks"
PREFIX = "time-to-accuracy"
PICTURE = results_file.ROOT / "docs" / "images" / f"{PREFIX}.svg"
COLOURS = {OURS: "#0f5c58", "omikuji": "#b4531f", "napkinxc": "#7a5195", "libpecos": "#5b6b70"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the corpora, print their tables, write the results, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", nargs="+", default=list(CORPORA), help="names of configs; default: both")
    parser.add_argument("--systems", nargs="+", choices=PEERS, default=list(BY_DEFAULT))
    parser.add_argument("--draw", action="store_true", help="only draw the results again")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    console = Console()
    for corpus in [] if options.draw else options.corpora:
        settings = configuration.load(results_file.ROOT / "configs" / f"{corpus}.yaml", name=f"quality-{corpus}-seed0")
        rows: list[dict[str, Any]] = []
        for row in measure(settings, options.systems, console):
            rows.append(row)
            results_file.write(results_file.RESULTS / f"{PREFIX}-{corpus}.json", figures(rows), rows)
        console.print(shown(corpus, rows))
    draw({corpus: stored for corpus in CORPORA if (stored := read(corpus))}, PICTURE)


def measure(settings: Experiment, systems: Sequence[str], console: Console) -> Iterator[dict[str, Any]]:
    """Train the steps and the peers, and yield a row for each.

    Args:
        settings: of the run with all trees; its directory must not exist.
        systems: names of peers.
        console: for the peers' progress.

    Raises:
        SettingsError: the run's directory exists, an input is wrong, or a peer failed.
    """
    if settings.run_directory.exists():
        raise SettingsError(f"{settings.run_directory}: exists, so its training can't be timed; move it elsewhere")
    for name, step in steps(settings):
        console.rule(name)
        metrics = run(step)
        phases, members = metrics["seconds"], list(step.members.chosen)
        yield {
            "system": name,
            "program": OURS,
            "trees": step.ensemble.trees if NETWORKS in members else 0,
            "members": members,
            "seconds": sum(phases.values()) - phases["predict"],
            "phases": phases,
            "scores": metrics["ensemble"],
            "trained_on": "train",
            "corpus": metrics["corpus"],
            "documents": metrics["documents"],
        }
    try:
        cores = available_cpus()
        _, *peer_rows = peers.compare(settings.run_directory, systems=systems, threads=cores, console=console)
    except peers.PeerError as error:
        raise SettingsError(str(error)) from None
    for row in peer_rows:
        yield row | {"seconds": peers_tables.seconds(row)[0], "phases": row["seconds"]}


def steps(settings: Experiment) -> Iterator[tuple[str, Experiment]]:
    """Yield the name and the settings of each step, which continues the one before."""
    values = settings.model_dump()
    members, ensemble, trees = values["members"], values["ensemble"], settings.ensemble.trees
    one_tree = values | {"ensemble": ensemble | {"trees": 1}}
    without = members | {NETWORKS: members[NETWORKS] | {"weight": 0.0}}
    yield WITHOUT_NETWORKS, Experiment(**one_tree | {"members": without})
    yield "1 tree", Experiment(**one_tree)
    if trees > 1:
        yield f"{trees} trees", settings


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return seconds and scores by the systems' names."""
    result = {}
    for row in scored(rows):
        result[f"{row['system']}_seconds"] = round(row["seconds"], 1)
        result |= {f"{row['system']}_{measure}": round(row["scores"][measure], 4) for measure in MEASURES}
    return result


def scored(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows without those of systems that can't be installed here."""
    return [row for row in rows if "failed" not in row]


def shown(corpus: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows as a table for a rich console."""
    table = Table(box=box.SIMPLE_HEAD, title=corpus, show_edge=False)
    table.add_column("")
    for name in ("seconds", *MEASURES):
        table.add_column(name, justify="right")
    for row in scored(rows):
        scores = [f"{row['scores'][measure]:.2f}" for measure in MEASURES]
        table.add_row(row["system"], f"{row['seconds']:,.0f}", *scores)
    return table


def read(corpus: str) -> list[Mapping[str, Any]]:
    """Return the stored rows of a corpus; none if it was not measured."""
    path = results_file.RESULTS / f"{PREFIX}-{corpus}.json"
    return scored(read_json(path)["rows"]) if path.is_file() else []


def draw(results: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw score against seconds as an SVG file, one panel a corpus; our steps are joined by a line.

    Args:
        results: rows by corpus.
        path: of the file to write or replace.

    Raises:
        SettingsError: there are no results.
    """
    if not results:
        raise SettingsError(f"{results_file.RESULTS}: no {PREFIX}-*.json; measure first, without --draw")
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": PREFIX, "font.family": "sans-serif"}):
        figure = Figure(figsize=(5 * len(results), 4.2), facecolor="#fbfaf6", layout="constrained")
        panels = figure.subplots(1, len(results), squeeze=False)[0]
        for panel, (corpus, rows) in zip(panels, results.items(), strict=True):
            ours = [row for row in rows if row["program"] == OURS]
            panel.plot([row["seconds"] for row in ours], [row["scores"][DRAWN] for row in ours], color=COLOURS[OURS])
            for row in rows:
                point, colour = (row["seconds"], row["scores"][DRAWN]), COLOURS[row["program"].split()[0]]
                panel.plot(*point, "o", color=colour)
                style = {"color": colour, "weight": "bold" if row in ours else "normal", "size": 9}
                # To their right, the labels of these points would cover other points or our line.
                is_left = row in ours[1:] or row["system"] == "parabel"
                place = {"ha": "right", "xytext": (-6, 4)} if is_left else {"ha": "left", "xytext": (6, -9)}
                panel.annotate(row["system"], point, textcoords="offset points", **place, **style)
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:,.0f}"))
            panel.margins(x=0.18, y=0.08)
            panel.set(title=corpus, xlabel="seconds of training", ylabel=f"{DRAWN}, percent", facecolor="#ffffff")
            panel.grid(alpha=0.3)
        with whole_file(path) as temporary:
            figure.savefig(temporary, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    results_file.run(main)
