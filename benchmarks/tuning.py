"""Savings of early stopping: training steps and best score of one sweep with ASHA and without.

    python benchmarks/tuning.py --config configs/quickstart.yaml [--space tune_spaces.tree:shape
                                tune_spaces.attention:rates] [--trials 12] [--part 0.25] [--quick] [--json PATH]
                                [--training.epochs '[4,3]', or any other setting]

Both sweeps draw the same trials at random; they are below the config's `runs`, and continue after an interruption.
Which trials ASHA stops depends on the order in which they report, so the scorings of the sweep without it are also
replayed to ASHA in many orders, as if each step took equally long: `replayed_*` are means over the orders.

- `--quick` takes 6 trials of learning rates, batches and dropouts, on a tenth of the documents.

Figures: `full_steps`, `asha_steps`, `saved_share` (of the steps), `full_nDCG@5`, `asha_nDCG@5` (the best trial's, on
validation), `full_seconds`, `asha_seconds` (all trials', one after the other), `replayed_saved_share`,
`replayed_best_kept_share` (orders in which the best trial trains to its end), `replayed_lost_nDCG@5` (of the best).
"""

import argparse
import heapq
import logging
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import results_file
from rich.console import Console
from rich.table import Table
from rich.text import Text

from axml_ray.cli.parser import with_flags
from axml_ray.cluster.connection import connect
from axml_ray.core.errors import SettingsError
from axml_ray.tuning.early_stopping import LevelwiseASHA
from axml_ray.tuning.outcome import best_trial
from axml_ray.tuning.records import Trial
from axml_ray.tuning.run_sweep import run_sweep
from axml_ray.tuning.space import Space
from axml_ray.tuning.sweep import Sweep
from axml_ray.workflow.train import prepare_corpus

SPACES = ["tune_spaces.tree:shape", "tune_spaces.attention:rates"]
ORDERS = 200
QUICK = {"trials": 6, "part": 0.1, "space": SPACES[1:]}


def replay(trials: Sequence[Trial], epoch: int, side_by_side: int, sweep: Sweep) -> dict[int, int]:
    """Return the steps of each trial, by number, if ASHA had stopped trials that are started in this order.

    Args:
        trials: trials that finished without early stopping.
        epoch: number of training documents of a trial.
        side_by_side: number of concurrent trials; all steps take the same time.
        sweep: sweep whose `grace` and `reduction` are used.
    """
    scheduler = LevelwiseASHA(max(1, round(sweep.grace * epoch)), sweep.reduction)
    waiting, spent = list(trials), dict.fromkeys((trial.number for trial in trials), 0)
    # A heap of: time of the next report, trial number, index of the next scoring, and start time.
    running: list[tuple[int, int, int, int]] = []
    by_number = {trial.number: trial for trial in trials}

    def begin(now: int) -> None:
        while waiting and len(running) < side_by_side:
            trial = waiting.pop(0)
            heapq.heappush(running, (now + _steps(trial, 0), trial.number, 0, now))

    begin(0)
    while running:
        now, number, place, started = heapq.heappop(running)
        trial = by_number[number]
        spent[number] = now - started
        name = SimpleNamespace(trial_id=str(number))
        stopped = scheduler.on_trial_result(None, name, vars(trial.curve[place])) == "STOP"
        if not stopped and place + 1 < len(trial.curve):
            heapq.heappush(running, (started + _steps(trial, place + 1), number, place + 1, started))
        else:
            begin(now)
    return spent


def _steps(trial: Trial, place: int) -> int:
    return replace(trial, curve=trial.curve[: place + 1]).steps


def replayed(trials: Sequence[Trial], epoch: int, side_by_side: int, sweep: Sweep) -> dict[str, float]:
    """Return means over random orders of the trials."""
    random = np.random.default_rng(0)
    best, all_steps = best_trial(trials), sum(trial.steps for trial in trials)
    saved, kept, lost = [], [], []
    for _ in range(ORDERS):
        order = [trials[place] for place in random.permutation(len(trials))]
        spent = replay(order, epoch, side_by_side, sweep)
        ended = [trial for trial in trials if spent[trial.number] == trial.steps]
        saved.append(1 - sum(spent.values()) / all_steps)
        kept.append(float(best in ended))
        lost.append((best.score or 0) - max((trial.score or 0 for trial in ended), default=0.0))
    return {
        "replayed_saved_share": statistics.mean(saved),
        "replayed_best_kept_share": statistics.mean(kept),
        "replayed_lost_nDCG@5": statistics.mean(lost),
    }


def main(arguments: list[str] | None = None) -> None:
    """Run both sweeps, print what they took, write the results; an error exits 2 with one message."""
    settings, options = with_flags("What early stopping saves a sweep.", _flags, arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    console = Console(highlight=False)
    rows: list[dict[str, Any]] = []
    try:
        corpus = prepare_corpus(settings)
        if options.quick:
            vars(options).update(QUICK)
        space = Space.load(options.space)
        full = Sweep(
            settings=settings, space=space, name=f"{settings.name}-tuning-full", trials=options.trials,
            part=options.part, search="random", early_stopping=False,
        )  # fmt: skip
        connect()
        trials_of: dict[str, list[Trial]] = {}
        asha = replace(full, name=f"{settings.name}-tuning-asha", early_stopping=True)
        for kind, sweep in (("full", full), ("asha", asha)):
            trials_of[kind] = run_sweep(sweep, corpus)
            rows += [{"sweep": kind, **trial.as_json()} for trial in trials_of[kind]]
        finished = [trial for trial in trials_of["full"] if trial.state == "finished"]
        figures = summary(trials_of) | replayed(finished, full.documents(corpus), 2, full)
    except (SettingsError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    console.print(shown(figures))
    path = options.json or results_file.RESULTS / f"tuning-{settings.name}.json"
    results_file.write(path, {name: round(value, 4) for name, value in figures.items()}, rows)
    console.print(Text(f"written to {path}"))


def summary(found: dict[str, list[Trial]]) -> dict[str, float]:
    """Return the steps, seconds and best score of each sweep."""
    figures: dict[str, float] = {}
    for kind, trials in found.items():
        figures[f"{kind}_steps"] = sum(trial.steps for trial in trials)
        figures[f"{kind}_seconds"] = sum(trial.seconds or 0 for trial in trials)
        figures[f"{kind}_nDCG@5"] = best_trial(trials).score or 0.0
    return figures | {"saved_share": 1 - figures["asha_steps"] / figures["full_steps"]}


def shown(figures: dict[str, float]) -> Table:
    """Return the figures as a table for a rich console."""
    table = Table(show_edge=False)
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.0f}" if name.endswith(("steps", "seconds")) else f"{value:.3f}")
    return table


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--space", nargs="+", default=SPACES, help="search spaces; by default the shape of trees and "
                        "training rates")  # fmt: skip
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--part", type=float, default=0.25, help="share of the training documents that trials take")
    parser.add_argument("--quick", action="store_true", help="under 10 minutes on 2 cores; see the module")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/tuning-<the settings' name>.json")


if __name__ == "__main__":
    main()
