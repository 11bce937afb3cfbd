"""The tables of hundred-million.md and gpus.md that plans of runs make: python docs/plan_tables.py writes them."""

from collections.abc import Sequence
from pathlib import Path

from axml_ray.corpus.counts import count_corpus
from axml_ray.planning.estimate import TrainingPlan, make_plan
from axml_ray.planning.machines import choose_machines
from axml_ray.planning.memory import GIB
from axml_ray.planning.work import training_rates
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import SHIPPED, load

PAGES = [Path(__file__).with_name(name) for name in ("hundred-million.md", "gpus.md")]
LABELS, WORKERS = (2_812_281, 30_000_000, 100_000_000), (1, 8, 64)
DOCUMENTS_PER_LABEL = 1_717_899 / 2_812_281
MEMORY, RATE, MAIN_MEMORY = 80, 86, 128
"""GiB of a GPU, TFLOPS that one sustains, and GiB of a machine."""
RECIPES = {"eurlex4k": 1, "wiki10_31k": 1, "amazoncat13k": 3, "amazon670k": 6, "wiki500k": 6, "amazon3m": 8}
"""Numbers of GPUs of the paper's configs."""


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
    words = " ".join(f"--{name} {value}" for name, value in flags(labels, workers).items())
    return f"axml-ray plan --config amazon3m {words} --gpus {workers} --memory {MEMORY} --rate {RATE}"


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


def plan_of(settings: Experiment, gpus: int) -> TrainingPlan:
    """Return the plan that the command prints."""
    counts, machines = count_corpus(settings), choose_machines(settings, gpus, MEMORY)
    rates, source = training_rates(settings, counts, machines, RATE)
    return make_plan(settings, counts, machines, rates, source)


def cell(numbers: Sequence[float]) -> str:
    """Return the numbers for 1, 8 and 64 workers; one number if they are equal."""
    shown = [f"{number:,.0f}" if number >= 10 else f"{number:.2g}" for number in numbers]
    return shown[0] if len(set(shown)) == 1 else " / ".join(shown)


def table(labels: int) -> str:
    """Return the table of one number of labels, after the command of its last column."""
    plans = [plan_of(settings_of(labels, workers), workers) for workers in WORKERS]
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
    on_gpu = [max(level.memory.total for level in plan.levels) / GIB for plan in plans]
    lines.append(f"| networks, on the GPU | {cell(on_gpu)} | | | | |")
    hours = [sum(phase.seconds or 0 for phase in plan.phases) / 3600 for plan in plans]
    held = [hour * workers for hour, workers in zip(hours, WORKERS, strict=True)]
    totals = [
        [sum(getattr(phase, name) for phase in plan.phases) / GIB for plan in plans] for name in ("moved", "disk")
    ]
    lines.append(f"| **all** | | {cell(hours)} | {cell(held)} | {cell(totals[0])} | {cell(totals[1])} |\n")
    return "\n".join(lines)


def memory_of(plan: TrainingPlan) -> dict[str, float]:
    """Return the share of a machine's memory, or of its GPU's, that each phase needs."""
    shares = {phase.name: phase.memory / GIB / MAIN_MEMORY for phase in plan.phases if phase.memory}
    shares["networks, on the GPU"] = max(level.memory.total for level in plan.levels) / GIB / MEMORY
    shares["predict, on the GPU"] = next(phase.disk for phase in plan.phases if phase.name == "networks") / GIB / MEMORY
    return shares


def limits() -> str:
    """Return the table of the labels up to which each phase fits a machine, the phase that breaks first at the top."""
    sizes = [round(1.1**step * 1_000_000) for step in range(60)]  # to 277 million
    shares = [[memory_of(plan_of(settings_of(labels, workers), workers)) for labels in sizes] for workers in WORKERS]
    fit = {name: [sum(share[name] <= 1 for share in of_workers) for of_workers in shares] for name in shares[0][0]}

    def shown(count: int) -> str:
        return "more" if count == len(sizes) else f"{sizes[count - 1] / 1e6:.1f}" if count else "fewer"

    lines = ["| phase | 1 machine | 8 machines | 64 machines |", "|---|---:|---:|---:|"]
    for name, counts in sorted(fit.items(), key=lambda row: row[1][::-1]):
        lines.append(f"| {name} | " + " | ".join(map(shown, counts)) + " |")
    return "\n".join(lines) + "\n"


def recipes() -> str:
    """Return the table of the paper's configs."""
    lines = [
        "| config | GPUs | memory of one | main memory of a worker | work of three trees at most |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, gpus in RECIPES.items():
        plan = plan_of(load(SHIPPED / f"{name}.yaml"), gpus)
        memory = max(level.memory.total for level in plan.levels) / GIB
        work = f"{plan.operations / 1e18:.2g} EFLOP"
        lines.append(f"| `{name}` | {gpus} | {memory:.1f} GiB | {plan.main_memory / GIB:.1f} GiB | {work} |")
    return "\n".join(lines) + "\n"


TABLES = {"tables": lambda: "\n".join(map(table, LABELS)), "limits": limits, "recipes": recipes}


def with_tables(page: str) -> str:
    """Return a page with its tables made again."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}: python docs/plan_tables.py -->\n", f"<!-- end of {name} -->\n"
        before, separator, rest = page.partition(begin)
        if separator:
            page = before + begin + "\n" + make() + "\n" + end + rest.partition(end)[2]
    return page


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
