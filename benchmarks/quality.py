"""Accuracy of a corpus's config on its test split, by number of trees.

    python benchmarks/quality.py --corpus eurlex57k [--preset auto] [--seeds 3] [--trees 4] [--part NAME] [--json PATH]
                                 [--resources.gpus_per_worker 1, or any other setting of the main job]

Each seed runs the whole main job with `configs/CORPUS.yaml` and the given settings, in its own run below the config's
`runs`; an interrupted run continues, and a finished one is not trained again. `--trees` above the config's number shows
the gain of further trees.

- Figures: the measures of `FIGURES` of the config's number of trees, the mean over the seeds, and `P@1_half_spread` and
  so on, half the distance between the best and the worst seed (0 for one seed).
- Rows: for each seed its settings, seconds, and the scores by number of trees: for each number, the mean over all
  subsets of the run's trees of that size, and half the distance between the best and the worst subset. Trees of a run
  differ only by their seeds, so the scores of one tree are a mean over the number of trees.
- A combiner is fitted once per run, for all trees, and applied to the members of each subset. With `--trees` it was
  fitted on more trees than the config's: train without `--trees` for figures of exactly the config.
- `micro-F1` is that of the labels above one threshold, which is chosen on the validation documents.
- `--preset` reads no more of the config than its name and its `corpus` settings: what a user gets who tunes nothing
  else. Rows of `auto` have the settings that it chose.
- `--part` names the results of other settings: `benchmarks/results/quality-CORPUS-NAME.json`; the preset is a part.
- `python benchmarks/quality_table.py` makes README's table from these files.
"""

import argparse
import itertools
import logging
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import results_file
import yaml
from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from axml_ray.cli.parser import with_flags
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json
from axml_ray.evaluation.metrics.label_sets import best_threshold, scores_above
from axml_ray.evaluation.metrics.metrics import Scores
from axml_ray.evaluation.metrics.prediction_metrics import TrainingCounts, inverse_propensity
from axml_ray.evaluation.metrics.predictions import ENSEMBLE
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import read_yaml
from axml_ray.workflow.evaluate import current_predictions
from axml_ray.workflow.train import run

FIGURES = ("P@1", "P@3", "P@5", "nDCG@5", "RP@5", "F1@5", "PSP@1", "PSP@3", "PSP@5", "nDCG@10/all", "R@5-50")
SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")


def main(arguments: list[str] | None = None) -> None:
    """Train, judge, print the tables, write the results; an error exits 2 with one message."""
    words = sys.argv[1:] if arguments is None else arguments
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--corpus")
    first.add_argument("--preset")
    known, rest = first.parse_known_args(words)
    with tempfile.TemporaryDirectory() as directory:
        config = results_file.ROOT / "configs" / f"{known.corpus}.yaml"
        if known.preset:
            content = read_yaml(config)
            config = Path(directory) / config.name
            config.write_text(yaml.safe_dump({key: content[key] for key in ("name", "corpus")}), encoding="utf-8")
            rest += ["--preset", known.preset]
        flags = ["--config", str(config), *rest] if known.corpus else rest
        settings, options = with_flags("Score a corpus' config.", _flags, flags)
    if not known.corpus:
        print("error: --corpus: name one of configs/*.yaml", file=sys.stderr)
        raise SystemExit(2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    console = Console()
    part = "-".join(word for word in (known.corpus, known.preset, options.part) if word)
    config_trees, trees = settings.ensemble.trees, options.trees or settings.ensemble.trees
    rows = []
    try:
        if options.seeds < 1 or trees < config_trees:
            raise SettingsError(f"--seeds: at least 1; --trees: at least ensemble.trees, which is {config_trees}")
        for seed in range(settings.seed, settings.seed + options.seeds):
            rows.append(of_seed(settings, f"quality-{part}-seed{seed}", seed, trees))
            console.print(shown(rows))
    except (SettingsError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    path = options.json or results_file.RESULTS / f"quality-{part}.json"
    results_file.write(path, figures(rows, rows[0]["trees"]), rows)
    console.print(Text(f"written to {path}"))


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=1, help="how many, counted on from the config's")
    parser.add_argument("--trees", type=int, help="of each run; default: the config's")
    parser.add_argument("--part", help="a name for these settings and their results' file")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/quality-<corpus>-<part>.json")


def of_seed(settings: Experiment, name: str, seed: int, trees: int) -> dict[str, Any]:
    """Train a run and return its row: settings, seconds, documents, and by number of trees scores and half spreads."""
    values = settings.model_dump()
    values |= {"name": name, "seed": seed}
    values["ensemble"] |= {"trees": trees}
    try:
        chosen = Experiment(**values).with_given(
            settings.given | ({"ensemble.trees"} if trees > settings.ensemble.trees else set())
        )
    except ValidationError as error:
        raise SettingsError(f"--part or --trees: {error.errors()[0]['msg']}") from None
    metrics = run(chosen)
    trained = Run.open(chosen.run_directory)  # with what the preset chose
    chosen, corpus = trained.settings, trained.corpus
    row = {
        "seed": seed,
        "trees": min(settings.ensemble.trees, chosen.ensemble.trees),
        "corpus": metrics["corpus"],
        "fingerprint": corpus.fingerprint,
        "seconds": metrics["seconds"],
        "combiner": metrics.get("combiner"),
    }
    if trained.layout.selection.is_file():
        row["selection"] = read_json(trained.layout.selection)["choices"]
    row |= {"documents": {split: corpus.documents(split) for split in ("train", "valid", "test")}}
    stored_settings = chosen.model_dump(mode="json", exclude={"runs", "corpora", "corpus"})
    files = {"train", "valid", "test", "label_names", "label_features", "word_vectors"}
    stored_settings["corpus"] = chosen.corpus.model_dump(mode="json", exclude=files)
    scores = list(by_trees(trained))
    row |= {"by_trees": {count: means for count, means, _ in scores}}
    if corpus.documents("valid"):
        row["label_sets"] = label_sets(trained)
    return row | {"half_spread_by_trees": {count: spreads for count, _, spreads in scores}, "settings": stored_settings}


def label_sets(run: Run) -> dict[str, float]:
    """Return micro-F1 and so on of the labels above the threshold that is best on validation, with all trees."""
    threshold = best_threshold(current_predictions(run, "valid").read(ENSEMBLE))
    return scores_above(current_predictions(run, "test").read(ENSEMBLE), threshold)


def by_trees(run: Run) -> Iterator[tuple[str, dict[str, float], dict[str, float]]]:
    """Yield the scores on the test split in percent by number of trees: means and half spreads over all subsets.

    The ensemble of a subset has the members of its trees, those of the whole run, and those that only one tree has.
    """
    settings, corpus = run.settings, run.corpus
    predictions = current_predictions(run, "test")
    inverse = inverse_propensity(TrainingCounts(corpus.labels.counts, corpus.documents("train")), settings.evaluation)
    trees, combination = range(settings.ensemble.trees), run.combination(run.open_combiner())
    kinds = Counter(member.kind for member in run.members)
    shared = [member.name for member in run.members if kinds[member.kind] == 1]
    scores = {chosen: Scores(inverse) for count in trees for chosen in itertools.combinations(trees, count + 1)}
    for of_members, truth in predictions.read_all([member.name for member in run.members]):
        rankings = dict(zip(run.members, of_members, strict=True))
        for chosen, of_chosen in scores.items():
            inside = {each.name: top for each, top in rankings.items() if each.name in shared or each.tree in chosen}
            of_chosen.add(combination.rank(inside).labels, truth.values, truth.offsets)
    for count in trees:
        of_subsets = [of_chosen.result() for chosen, of_chosen in scores.items() if len(chosen) == count + 1]
        by_measure = {name: [subset[name] for subset in of_subsets] for name in of_subsets[0]}
        means = {name: float(np.mean(values)) for name, values in by_measure.items()}
        yield str(count + 1), means, {name: (max(values) - min(values)) / 2 for name, values in by_measure.items()}


def figures(rows: Sequence[Mapping[str, Any]], trees: int) -> dict[str, float]:
    """Return means and half spreads over the seeds for a number of trees."""
    figures: dict[str, float] = {}
    for name in FIGURES:
        values = [row["by_trees"][str(trees)][name] for row in rows]
        figures[name] = round(statistics.mean(values), 4)
        figures[f"{name}_half_spread"] = round((max(values) - min(values)) / 2, 4)
    if all("label_sets" in row and row["settings"]["ensemble"]["trees"] == trees for row in rows):
        figures["micro-F1"] = round(statistics.mean(row["label_sets"]["micro-F1"] for row in rows), 4)
    return figures


def shown(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the scores by seed and number of trees as a table for a rich console."""
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
