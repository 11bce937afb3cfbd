"""Estimate memory, time and disk of a run, by level and by phase, before it is started. Ray is not started.

axml-ray plan --config amazon3m --gpus 8
"""

import argparse
import math
import os

from axml_ray.cli.console import count, job_with_flags, number, table_console, write_output
from axml_ray.core.paths import absolute
from axml_ray.settings import Experiment, adapt

_positive = number("a number above 0", lambda value: 0 < value < math.inf)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    group = parser.add_argument_group("hardware and output")
    group.add_argument("--gpus", type=count, metavar="N", help="total number of GPUs")
    group.add_argument("--memory", type=_positive, metavar="GIB", help="memory of one worker")
    group.add_argument("--rate", type=_positive, metavar="TFLOPS", help="rate that one worker sustains in training")
    group.add_argument("--json", type=absolute, metavar="PATH", help="also write the plan to this JSON file")


@job_with_flags(__doc__, add_flags)
def main(settings: Experiment, given: argparse.Namespace) -> None:
    """Print the plan, and write it to the file of --json.

    Raises:
        SettingsError: the sizes of the corpus are not known, or the file cannot be written.
    """
    from axml_ray.core.files import write_json
    from axml_ray.core.limits import available_cpus
    from axml_ray.corpus.counts import count_corpus
    from axml_ray.planning.estimate import make_plan
    from axml_ray.planning.machines import choose_machines
    from axml_ray.planning.report import choices_table, render
    from axml_ray.planning.work import training_rates
    from axml_ray.runs.selection import planned_selection
    from axml_ray.settings.presets import knn_refusal

    counts = count_corpus(settings)
    # Of a cluster that is joined, `auto` divides no CPUs.
    cpus = available_cpus() if given.gpus is None and not os.environ.get("RAY_ADDRESS") else None
    settings, choices = adapt(settings, counts.documents, counts.labels, counts.tokens, cpus)
    settings, selected = planned_selection(settings, counts)
    choices += selected
    machines = choose_machines(settings, given.gpus, given.memory)
    rates, source = training_rates(settings, counts, machines, given.rate)
    plan = make_plan(settings, counts, machines, rates, source)
    console = table_console(120)
    console.print(render(plan))
    if choices:
        console.print(choices_table(choices))
    if "knn" in settings.members.chosen and (refusal := knn_refusal(counts.documents, counts.tokens)):
        console.print(f"WARNING: {refusal}: set members.knn.weight to 0, or limit training.documents.")
    if given.json:
        write_output("--json", given.json, lambda path: write_json(path, plan.as_json()))
