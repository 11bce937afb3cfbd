"""The tables of hundred-million.md, made of the plans of nine runs: python docs/hundred_million.py writes them."""

from collections.abc import Sequence
from pathlib import Path

from axml_ray.corpus.counts import count_corpus
from axml_ray.planning.estimate import TrainingPlan, make_plan
from axml_ray.planning.machines import choose_machines
from axml_ray.planning.memory import GIB
from axml_ray.planning.work import training_rates
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import SHIPPED, load

PAGE = Path(__file__).with_name("hundred-million.md")
BEGIN, END = "<!-- tables: python docs/hundred_million.py -->\n", "<!-- end of tables -->\n"
LABELS, WORKERS = (2_812_281, 30_000_000, 100_000_000), (1, 8, 64)
DOCUMENTS_PER_LABEL = 1_717_899 / 2_812_281
MEMORY, RATE = 80, 86
"""GiB of a GPU, and TFLOPS that one sustains."""


def flags(labels: int, workers: int) -> dict[str, object]:
    """Return the flags of a plan: Amazon-3M grown in proportion, one tree, all members of the preset."""
    return {
        "preset": "recommended",
        "ensemble.trees": 1,
        "tree.height": 3 if labels < 10_000_000 else 4,
        "corpus.expected.labels": labels,
        "corpus.expected.documents": round(DOCUMENTS_PER_LABEL * labels),
        "resources.workers": workers,
    }


def command(labels: int, workers: int) -> str:
    """Return the command that prints the plan."""
    given = " ".join(f"--{name} {value}" for name, value in flags(labels, workers).items())
    return f"axml-ray plan --config amazon3m {given} --gpus {workers} --memory {MEMORY} --rate {RATE}"


def settings_of(labels: int, workers: int) -> Experiment:
    """Return the settings of that command."""
    values: dict[str, object] = {}
    for name, value in flags(labels, workers).items():
        group, _, key = name.rpartition(".")
        at = values
        for part in filter(None, group.split(".")):
            at = at.setdefault(part, {})  # type: ignore[assignment]
        at[key] = value
    return load(SHIPPED / "amazon3m.yaml", **values)


def plan_of(labels: int, workers: int) -> TrainingPlan:
    """Return the plan that the command prints."""
    settings = settings_of(labels, workers)
    counts, machines = count_corpus(settings), choose_machines(settings, workers, MEMORY)
    rates, source = training_rates(settings, counts, machines, RATE)
    return make_plan(settings, counts, machines, rates, source)


def cell(numbers: Sequence[float]) -> str:
    """Return the numbers for 1, 8 and 64 workers; one number if they are equal."""
    shown = [f"{number:,.0f}" if number >= 10 else f"{number:.2g}" for number in numbers]
    return shown[0] if len(set(shown)) == 1 else " / ".join(shown)


def table(labels: int) -> str:
    """Return the table of one number of labels, after the command of its last column."""
    plans = [plan_of(labels, workers) for workers in WORKERS]
    lines = [
        f"### {labels:,} labels\n",
        f"```\n{command(labels, WORKERS[-1])}\n```\n",
        "| phase | GiB of a process | hours | hours of machines | GiB moved | GiB on disk |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for phases in zip(*(plan.phases for plan in plans), strict=True):
        hours = [(phase.seconds or 0) / 3600 for phase in phases]
        held = [hour * workers for hour, workers in zip(hours, WORKERS, strict=True)]
        memory, moved, disk = ([getattr(phase, name) / GIB for phase in phases] for name in ("memory", "moved", "disk"))
        lines.append(f"| {phases[0].name} | " + " | ".join(map(cell, (memory, hours, held, moved, disk))) + " |")
    hours = [sum(phase.seconds or 0 for phase in plan.phases) / 3600 for plan in plans]
    held = [hour * workers for hour, workers in zip(hours, WORKERS, strict=True)]
    totals = [
        [sum(getattr(phase, name) for phase in plan.phases) / GIB for plan in plans] for name in ("moved", "disk")
    ]
    lines.append(f"| **all** | | {cell(hours)} | {cell(held)} | {cell(totals[0])} | {cell(totals[1])} |")
    on_gpu = [max(level.memory.total for level in plan.levels) / GIB for plan in plans]
    lines.append(f"\nMemory of a worker on its GPU: {cell(on_gpu)} GiB.\n")
    return "\n".join(lines)


def with_tables(page: str) -> str:
    """Return the page with the tables made again."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "\n" + "\n".join(map(table, LABELS)) + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
