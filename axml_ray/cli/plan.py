"""Estimate the memory and time of a training, level by level, before it is started. Ray is not started.

axml-ray plan --config amazon3m --gpus 8
"""

import argparse
from pathlib import Path

from axml_ray.cli.console import count, job_with_flags
from axml_ray.core.errors import SettingsError
from axml_ray.settings import Experiment, adapt


def _positive(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0 (given: {word!r})")
    return value


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    group = parser.add_argument_group("hardware and output")
    group.add_argument("--gpus", type=count, metavar="N", help="total number of GPUs, one per worker")
    group.add_argument("--memory", type=_positive, metavar="GIB", help="memory of one worker")
    group.add_argument("--rate", type=_positive, metavar="TFLOPS", help="rate that one worker sustains in training")
    group.add_argument("--json", type=Path, metavar="PATH", help="also write the plan to this JSON file")


@job_with_flags(__doc__, add_flags)
def main(settings: Experiment, given: argparse.Namespace) -> None:
    """Print the plan, and write it to the file of --json.

    Raises:
        SettingsError: the sizes of the corpus are not known, or the file cannot be written.
    """
    from rich.console import Console

    from axml_ray.core.files import write_json
    from axml_ray.planning.estimate import make_plan
    from axml_ray.planning.machines import choose_machines
    from axml_ray.planning.report import choices_table, render
    from axml_ray.planning.shapes import count_corpus
    from axml_ray.planning.work import training_rates

    counts = count_corpus(settings)
    settings, choices = adapt(settings, counts.documents, counts.labels)
    machines = choose_machines(settings, given.gpus, given.memory)
    rates, source = training_rates(settings, counts, machines, given.rate)
    plan = make_plan(settings, counts, machines, rates, source)
    console = Console(width=None if Console().is_terminal else 120)
    console.print(render(plan))
    if choices:
        console.print(choices_table(choices))
    if given.json:
        try:
            write_json(given.json, plan.as_json())
        except OSError as error:
            raise SettingsError(
                f"--json {given.json}: cannot be written ({error.strerror}); give a path in an existing directory"
            ) from None
