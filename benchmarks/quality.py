"""How accurate a corpus' config is on its test split, tree by tree, beside published scores.

    python benchmarks/quality.py --corpus eurlex57k [--seeds 3] [--trees 4] [--part NAME] [--json PATH]
                                 [--resources.gpus_per_worker 1, or any other setting of the main job]

Each seed is the whole main job with `configs/CORPUS.yaml` and the settings given, in a run of its own below the
config's `runs`; stopped and started again it goes on, and a finished run is not trained again. `--trees` more than the
config's are trained to see what one more is worth.

- Figures: the measures of `FIGURES` of the config's number of trees, the mean over the seeds, and `P@1_half_spread` and
  so on, half the distance between the best and the worst seed (0 for one seed).
- Rows: for each seed its settings, seconds, and the scores of one tree, two, and so on: the mean over all choices of so
  many of its trees, and half the distance between the best choice and the worst. Nothing is chosen by them. Trees of a
  run differ by their seeds alone, so those of one tree are of as many seeds as there are trees.
- A combiner is fitted once a run, for all of its trees, and is applied to the members of the trees chosen. With
  `--trees` it was fitted on more trees than the config's: train without `--trees` for figures of the config exactly.
- `--part` tells results of other settings apart: `benchmarks/results/quality-CORPUS-NAME.json`.
- The table of README is made of these files: `python benchmarks/quality_table.py`.
"""

import argparse
import itertools
import logging
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from axml_ray import configuration
from axml_ray.corpus.store import Corpus
from axml_ray.evaluation.metrics import Scores
from axml_ray.evaluation.prediction_metrics import TrainingCounts, inverse_propensity
from axml_ray.evaluation.predictions import Predictions
from axml_ray.members.topk import TopK
from axml_ray.pipeline import run
from axml_ray.run import Run
from axml_ray.settings import Experiment, SettingsError

SEEDS_APART = 100
FIGURES = ("P@1", "P@3", "P@5", "nDCG@5", "RP@5", "F1@5", "PSP@1", "PSP@3", "PSP@5", "nDCG@10/all")
SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")


def main(arguments: list[str] | None = None) -> None:
    """Train, judge, print the tables, write the results; an error exits 2 with one message."""
    words = sys.argv[1:] if arguments is None else arguments
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--corpus")
    known, rest = first.parse_known_args(words)
    config = ["--config", str(results_file.ROOT / "configs" / f"{known.corpus}.yaml")] if known.corpus else []
    settings, given = configuration.with_flags("Score a corpus' config.", _flags, [*config, *rest])
    if not known.corpus:
        print("error: --corpus: name one of configs/*.yaml", file=sys.stderr)
        raise SystemExit(2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    console = Console()
    part = "-".join(word for word in (known.corpus, given.part) if word)
    wanted, trees = settings.ensemble.trees, given.trees or settings.ensemble.trees
    rows = []
    try:
        if given.seeds < 1 or trees < wanted:
            raise SettingsError(f"--seeds: at least 1; --trees: at least ensemble.trees, which is {wanted}")
        for seed in range(settings.seed, settings.seed + given.seeds):
            rows.append(of_seed(settings, f"quality-{part}-seed{seed}", seed, trees))
            console.print(shown(rows))
    except (SettingsError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    path = given.json or results_file.RESULTS / f"quality-{part}.json"
    results_file.write(path, figures(rows, wanted), rows)
    console.print(Text(f"written to {path}"))


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=1, help="how many, counted on from the config's")
    parser.add_argument("--trees", type=int, help="of each run; default: the config's")
    parser.add_argument("--part", help="a name for these settings and their results' file")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/quality-<corpus>-<part>.json")


def of_seed(settings: Experiment, name: str, seed: int, trees: int) -> dict[str, Any]:
    """The row of one run: `seed`, `settings`, `seconds`, `documents`; by number of trees `by_trees`, the scores, and
    `half_spread_by_trees`.
    """
    values = settings.model_dump()
    # The trees of a run count their seeds on from its own.
    values |= {"name": name, "seed": seed * SEEDS_APART}
    values["ensemble"] |= {"trees": trees}
    try:
        chosen = Experiment(**values)
    except ValidationError as error:
        raise SettingsError(f"--part or --trees: {error.errors()[0]['msg']}") from None
    metrics = run(chosen)
    corpus = Corpus.open(chosen.corpus_directory)
    row = {
        "seed": seed,
        "trees": settings.ensemble.trees,
        "corpus": metrics["corpus"],
        "fingerprint": corpus.fingerprint,
        "seconds": metrics["seconds"],
    }
    row |= {"documents": {split: corpus.documents(split) for split in ("train", "valid", "test")}}
    told = chosen.model_dump(mode="json", exclude={"runs", "corpora", "corpus"})
    files = {"train", "valid", "test", "label_names", "label_features", "word_vectors"}
    told["corpus"] = chosen.corpus.model_dump(mode="json", exclude=files)
    found = list(by_trees(Run(chosen, corpus)))
    row |= {"by_trees": {count: means for count, means, _ in found}}
    return row | {"half_spread_by_trees": {count: spreads for count, _, spreads in found}, "settings": told}


def by_trees(run: Run) -> Iterator[tuple[str, dict[str, float], dict[str, float]]]:
    """Scores of the test split in percent, for one tree, two, and so on: means and half spreads of all choices.

    A choice of trees is an ensemble of their members, and of those of the whole run.
    """
    settings, corpus = run.settings, run.corpus
    predictions = Predictions.open(run.layout.predictions("test"))
    assert predictions is not None
    inverse = inverse_propensity(TrainingCounts(corpus.labels.counts, corpus.documents("train")), settings.evaluation)
    trees, combination = range(settings.ensemble.trees), run.combination(run.open_combiner())
    scores = {chosen: Scores(inverse) for count in trees for chosen in itertools.combinations(trees, count + 1)}
    columns = [f"{member.name}.{what}" for member in run.members for what in ("labels", "scores")]
    for values, truth in predictions.columns(columns):
        rankings = {member: TopK(*values[2 * place : 2 * place + 2]) for place, member in enumerate(run.members)}
        for chosen, of_chosen in scores.items():
            inside = {each.name: top for each, top in rankings.items() if each.tree is None or each.tree in chosen}
            of_chosen.add(combination.rank(inside).labels, truth.values, truth.offsets)
    for count in trees:
        found = [of_chosen.result() for chosen, of_chosen in scores.items() if len(chosen) == count + 1]
        every = {name: [one[name] for one in found] for name in found[0]}
        means = {name: float(np.mean(values)) for name, values in every.items()}
        yield str(count + 1), means, {name: (max(values) - min(values)) / 2 for name, values in every.items()}


def figures(rows: Sequence[Mapping[str, Any]], trees: int) -> dict[str, float]:
    """Means and half spreads over the seeds, of so many trees."""
    found: dict[str, float] = {}
    for name in FIGURES:
        values = [row["by_trees"][str(trees)][name] for row in rows]
        found[name] = round(statistics.mean(values), 4)
        found[f"{name}_half_spread"] = round((max(values) - min(values)) / 2, 4)
    return found


def shown(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The scores by seed and number of trees, for a rich console."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("seed")
    table.add_column("trees")
    for name in SHOWN:
        table.add_column(name, justify="right")
    for row in rows:
        for count, scores in row["by_trees"].items():
            table.add_row(str(row["seed"]), count, *(f"{scores[name]:.2f}" for name in SHOWN))
    return table


if __name__ == "__main__":
    main()
