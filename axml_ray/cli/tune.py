"""Search for good settings by trials on a part of the corpus, and write the best as a config.

    axml-ray tune --config quickstart --space tune_spaces.tree --trials 20
    ray job submit --working-dir . -- python jobs/tune.py --config configs/quickstart.yaml --space tune_spaces.tree

After a stop, the same command continues: finished trials are not run again. Further flags are settings, as for the
other jobs, and apply to every trial. See docs/tuning.md.
"""

import argparse
import re
from collections.abc import Callable
from dataclasses import replace

from axml_ray.cli.console import count, job_with_flags, number, table_console
from axml_ray.core.errors import SettingsError
from axml_ray.core.extras import require_extra
from axml_ray.core.paths import with_urls
from axml_ray.settings import NAME, Experiment


def _above(least: float, most: float) -> Callable[[str], float]:
    return number(f"a number above {least:g}, at most {most:g}", lambda value: least < value <= most)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    group = parser.add_argument_group("the sweep")
    add = group.add_argument
    add(
        "--space",
        nargs="+",
        default=[],
        metavar="NAME",
        help="modules or files of search spaces, each with :function if needed",
    )
    add("--trials", type=count, default=20, metavar="N", help="number of trials (20)")
    add("--sweep", metavar="NAME", help="directory below runs; by default the config's name and the space's")
    add("--part", type=_above(0, 1), default=0.25, metavar="SHARE",
        help="share of the training documents that a trial trains on (0.25); or set --training.documents")  # fmt: skip
    add("--search", choices=("tpe", "random"), default="tpe", help="how settings are drawn (tpe)")
    add("--no-early-stopping", action="store_true", help="let every trial train to its end")
    add("--grace", type=_above(0, 1e6), default=1.0, metavar="EPOCHS",
        help="epochs of a level before a trial may be stopped (1)")  # fmt: skip
    add("--reduction", type=_above(1, 1e3), default=2.0, metavar="R",
        help="1/R of the trials at a rung continue (2)")  # fmt: skip
    add("--at-once", type=count, metavar="N", help="number of concurrent trials; by default as many as fit")


@job_with_flags(__doc__, add_flags)
def main(settings: Experiment, given: argparse.Namespace) -> None:
    """Run the sweep, and print its trials and the next command.

    Raises:
        SettingsError: the packages of the extra `tune` are not installed, or the space or a setting is wrong.
    """
    require_extra("tune")
    from axml_ray.cluster.connection import connect
    from axml_ray.cluster.failures import recorded_failures
    from axml_ray.cluster.shared_state import check_nodes_see
    from axml_ray.core.lease import own
    from axml_ray.tracking.kinds import check_installed
    from axml_ray.tracking.tracked_run import CLOSE_SECONDS
    from axml_ray.tuning.outcome import BEST, OUTCOME, PAGE, table, write_outcome
    from axml_ray.tuning.run_sweep import run_sweep, track_sweep
    from axml_ray.tuning.space import Space
    from axml_ray.tuning.sweep import Sweep
    from axml_ray.workflow.train import adapted, prepare_corpus

    check_installed(settings.tracking)
    if settings.continue_from is not None:
        raise SettingsError(
            "continue_from: a sweep trains new networks; leave it and corpus.continues out of the config"
        )
    space = Space.load(given.space)
    sweep = Sweep(
        settings=settings,
        space=space,
        name=_name(given.sweep or f"{settings.name}-{space.short_name}"),
        trials=given.trials,
        part=given.part,
        search=given.search,
        early_stopping=not given.no_early_stopping,
        grace=given.grace,
        reduction=given.reduction,
        at_once=given.at_once,
    )
    check_nodes_see(settings.runs)
    corpus = prepare_corpus(settings)
    sweep = replace(sweep, settings=adapted(settings, corpus))
    connect()
    with recorded_failures(sweep.directory), own(sweep.directory), track_sweep(sweep, corpus) as tracked:
        trials = run_sweep(sweep, corpus, begun=lambda: tracked.open(CLOSE_SECONDS))  # trials need its id
        best = write_outcome(sweep, corpus, trials)
        tracked.scores({"valid_nDCG@5": best.score or 0.0, "best_trial": best.number})
        for name in (OUTCOME, PAGE, BEST):
            tracked.artifact("report", sweep.directory / name)
    table_console().print(table(trials, best))
    print(f"Pictures: {with_urls(sweep.directory / PAGE)}")
    print(f"Next: axml-ray train --config {with_urls(sweep.directory / BEST)}")


def _name(word: str) -> str:
    if not re.fullmatch(NAME, word):
        raise SettingsError(
            "--sweep: a name consists of letters, digits, '-', '_' and '.', and starts with a letter or digit "
            f"(given: {word!r})"
        )
    return word
