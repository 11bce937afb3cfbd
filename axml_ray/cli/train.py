"""The main job: prepare a corpus if necessary, train an ensemble, and evaluate it on the test split.

    axml-ray train --config quickstart
    ray job submit --working-dir . -- python jobs/train_ensemble.py --config configs/quickstart.yaml

After a stop, the same command continues: finished levels are not trained again.

    axml-ray train --continue runs/mine --corpus.train more.jsonl

trains a new run that goes on from the weights of a finished one, with its texts and the new ones.
"""

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from axml_ray.cli.console import Command, find_flag, table_console
from axml_ray.cli.parser import with_flags
from axml_ray.core.paths import absolute, with_urls
from axml_ray.core.run_layout import RunLayout
from axml_ray.runs.continuation import continued_settings
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import read_config, read_settings

if TYPE_CHECKING:
    from axml_ray.inference.predict.first_scores import FirstScores

OWN_TEXTS = """  For texts of your own, write JSON lines {"text": …, "labels": […]}, and name the files:
  axml-ray train --config mine --corpus.train FILE; --help explains every setting."""


def train(settings: Experiment) -> None:
    """Run the main job, and print its scores and the next commands."""
    from axml_ray.core.run_layout import RunLayout
    from axml_ray.evaluation.reports.report import scores_table
    from axml_ray.workflow.train import run

    console = table_console()

    def print_first(scores: "FirstScores", seconds: float) -> None:
        console.print(scores.table(seconds))
        print("The networks are trained now. The last row of the table at the end tells what they add.")

    metrics = run(settings, print_first)
    console.print(scores_table(metrics))
    print(f"Run: {with_urls(settings.run_directory)} (metrics.json, predictions/test, tree-*/network_tree)")
    print(f"Its report, for a browser: {RunLayout(settings.run_directory).report()}")
    print(next_steps(settings))


def parse(argv: list[str]) -> tuple[Experiment]:
    """Return the settings that the command line gives: of a run from scratch, or of a continued one.

    Raises:
        SettingsError: `--continue` does not name a run, or a run that cannot be continued with these settings.
    """
    directory = find_flag(argv, "--continue")
    if directory is None or {"-h", "--help"} & set(argv):
        return (with_flags(__doc__ or "", _add_continue, argv)[0],)
    read_settings(directory)  # raises if there is no run, while `with_flags` would speak of a missing config
    old = read_config(RunLayout(directory).settings)
    settings, _ = with_flags(__doc__ or "", _add_continue, argv, base=old)
    return (continued_settings(settings, directory),)


def _add_continue(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--continue",
        type=absolute,
        dest="continue_run",
        metavar="RUN",
        help="directory or URL of a finished run: start from its settings, texts, label trees and weights; "
        "corpus.train names further texts, --name the new run",
    )


main = Command(parse, train)


def next_steps(settings: Experiment) -> str:
    """Return the commands that evaluate, export, use and serve a finished run, with its paths."""
    run = settings.run_directory
    bundle = run.parent.parent / "bundles" / run.name
    commands = (
        ("evaluate", "--run", run, "--open"),
        ("export", "--run", run, "--to", bundle),
        ("predict", "--bundle", bundle, "--input", "new.jsonl", "--output", "predictions"),
        ("serve", "--bundle", bundle),
    )
    working_directory = Path.cwd()  # paths below it are shown relative to it
    lines = []
    for command in commands:
        argv = [
            os.path.relpath(word)
            if isinstance(word, Path) and word.is_relative_to(working_directory)
            else with_urls(word)
            for word in command
        ]
        lines.append(f"  axml-ray {shlex.join(argv)}")
    if settings.corpus.source == "installed_packages":
        lines.append(OWN_TEXTS)
    return "\n".join(["Next:", *lines])
