"""What a training will hold and how long it will take, level by level, before anything is spent. Starts no Ray.

python jobs/plan.py --config configs/amazon3m.yaml --gpus 8
"""

import argparse
from pathlib import Path

from axml_ray.console import count, job_with_flags
from axml_ray.settings import Experiment, SettingsError, adapt


def _positive(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0 (given: {word!r})")
    return value


def flags(parser: argparse.ArgumentParser) -> None:
    """The job's own flags."""
    group = parser.add_argument_group("what to train on")
    group.add_argument("--gpus", type=count, metavar="N", help="GPUs in all, one a worker")
    group.add_argument("--memory", type=_positive, metavar="GIB", help="memory of one worker")
    group.add_argument("--rate", type=_positive, metavar="TFLOPS", help="what one worker sustains in training")
    group.add_argument("--json", type=Path, metavar="PATH", help="write the same numbers there")


@job_with_flags(__doc__, flags)
def main(settings: Experiment, given: argparse.Namespace) -> None:
    """Show the plan."""
    from rich.console import Console

    from axml_ray.files import write_json
    from axml_ray.planning.estimate import make_plan
    from axml_ray.planning.machines import machines_of
    from axml_ray.planning.report import chosen, shown
    from axml_ray.planning.shapes import counts_of
    from axml_ray.planning.work import known_rates

    counts = counts_of(settings)
    settings, choices = adapt(settings, counts.documents, counts.labels)
    machines = machines_of(settings, given.gpus, given.memory)
    rates, source = known_rates(settings, counts, machines, given.rate)
    plan = make_plan(settings, counts, machines, rates, source)
    console = Console(width=None if Console().is_terminal else 120)
    console.print(shown(plan))
    if choices:
        console.print(chosen(choices))
    if given.json:
        try:
            write_json(given.json, plan.as_json())
        except OSError as error:
            raise SettingsError(f"--json {given.json}: cannot be written ({error.strerror})") from None


if __name__ == "__main__":
    main()
