"""The report of a plan for a terminal: a table of work and memory, notes and warnings."""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from axml_ray.evaluation.reports.report import empty_table
from axml_ray.planning.estimate import MARGIN, TrainingPlan
from axml_ray.planning.memory import GIB
from axml_ray.settings.presets import Choice


def render(plan: TrainingPlan) -> Group:
    """Return the whole report of a plan for a rich console."""
    counts = plan.counts
    title = (
        f"{plan.name}: {counts.documents:,} training documents of {counts.tokens:,.0f} words on average, "
        f"{counts.labels:,} labels, {counts.words:,} words"
    )
    sentences = "\n".join([*notes(plan), *warnings(plan)])
    shown = (work_table, memory_table, phase_table) if plan.levels else (phase_table,)
    tables = [part for table in shown for part in (table(plan), Text())]
    return Group(Text(title), Text(), *tables, Text(sentences))


def work_table(plan: TrainingPlan) -> Table:
    """Return the table of sizes, steps, operations and time of each level."""
    table = empty_table(
        "Work of one tree, all of its workers together",
        ("level", "nodes", "scored\na document", "million\nparameters", "steps", "GFLOP\na document", "PFLOP", "time"),
    )
    for level in plan.levels:
        shape = level.shape
        table.add_row(
            str(shape.number),
            f"{shape.nodes:,}",
            f"{min(shape.candidates, shape.nodes):,}",
            f"{level.parameters / 1e6:,.1f}",
            f"{level.steps:,}",
            f"{level.work.document / 1e9:,.2f}",
            f"{level.work.total / 1e15:,.3g}",
            duration(level.seconds),
        )
    return table


def memory_table(plan: TrainingPlan) -> Table:
    """Return the table of the memory of one worker at each level, by part."""
    names = ("level", "label\ntable", "word\ntable", "encoder,\nhead", "Adam's\nmoments", "average,\nbest")
    where = "on its GPU" if plan.machines.accelerator else "of main memory"
    table = empty_table(
        f"Memory of one worker {where}, GiB",
        (*names, "gradients", "activations", "corpus,\nPyTorch", "all"),
    )
    for level in plan.levels:
        memory = level.memory
        weights = (memory.label_table, memory.word_table, memory.network, memory.moments)
        step = (memory.average + memory.best, memory.gradients, memory.activations)
        sizes = (*weights, *step, memory.corpus + memory.pytorch, memory.total)
        style = "bold red" if level.shape.number in plan.too_large else ""
        table.add_row(str(level.shape.number), *(f"{size / GIB:,.2f}" for size in sizes), style=style)
    return table


def phase_table(plan: TrainingPlan) -> Table:
    """Return the table of all phases of the run: memory of a process, time, bytes moved and on disk, hours of workers.

    The hours are those for which the phase holds all of a tree's workers.
    """
    columns = ("phase", "GiB of\na process", "processes", "time", "GiB\nmoved", "GiB\non disk", "hours of\nworkers")
    table = empty_table("Phases of the run, all trees", columns)
    for phase in plan.phases:
        hours = "–" if phase.seconds is None else f"{phase.seconds * plan.workers / 3600:,.2f}"
        table.add_row(
            phase.name,
            f"{phase.memory / GIB:,.1f}" if phase.memory else "",
            f"{phase.processes:,}" if phase.memory else "",
            duration(phase.seconds) if phase.seconds != 0 else "",
            f"{phase.moved / GIB:,.1f}",
            f"{phase.disk / GIB:,.1f}",
            hours if phase.seconds != 0 else "",
        )
    seconds = [phase.seconds for phase in plan.phases]
    known = None if None in seconds else sum(filter(None, seconds))
    moved, disk = (sum(getattr(phase, name) for phase in plan.phases) / GIB for name in ("moved", "disk"))
    hours = "–" if known is None else f"{known * plan.workers / 3600:,.2f}"
    table.add_row("all", "", "", duration(known), f"{moved:,.1f}", f"{disk:,.1f}", hours)
    return table


def notes(plan: TrainingPlan) -> list[str]:
    """Return sentences on the assumptions behind the numbers: counts, workers, memory, rate."""
    machines, side = plan.machines, plan.side_by_side
    counts = f"Counts: {plan.counts.source}."
    if not plan.levels:
        return [counts]
    lines = [
        counts,
        f"Workers: {plan.trees} × {plan.workers} (trees × workers of a tree) on {machines.units:g} {machines.unit}; "
        f"{side} of {plan.trees} trees at a time.",
        f"Memory: {plan.memory_gib:.1f} GiB a worker, {machines.memory_source}"
        + (f", which {plan.workers * side} workers share." if machines.shared and side else "."),
    ]
    if plan.main_memory:
        lines.append(
            f"Main memory: {format_size(plan.main_memory)} a worker at most, while a checkpoint is written; "
            f"{format_size(plan.main_memory * plan.workers)} if all workers of a tree are on one machine."
        )
    if plan.candidates:
        lines.append(
            f"Candidates: up to {format_size(plan.candidates)} in files of each tree, read and written while a level "
            "is scored; faster if as much main memory is free."
        )
    if plan.rates is None:
        lines.append(
            f"Time: not known. The trees take at most {plan.operations / 1e18:,.3g} EFLOP of matrix products on real "
            "tokens, and there is no such GPU here to measure. Run this command on one, or give the rate that one "
            "sustains in training, --rate TFLOPS."
        )
    elif side:
        low, high = (f"{rate / 1e12:,.2g}" for rate in (min(plan.rates), max(plan.rates)))
        lines.append(
            f"Time: {duration(plan.seconds)} for all trees, at most (patience may end a level sooner; preparing, "
            "clustering and predicting are not in it, nor is what workers of one tree exchange), at "
            f"{low if low == high else f'{low} to {high}'} TFLOPS a worker, {plan.rate_source}."
        )
    return lines


def warnings(plan: TrainingPlan) -> list[str]:
    """Return a sentence for each reason why training would fail, with the settings to change."""
    lines = []
    if plan.levels and not plan.side_by_side:
        needed = plan.workers * plan.machines.unit_share
        lines.append(
            f"WARNING: a tree's {plan.workers} workers need {needed:g} {plan.machines.unit} and the machines have "
            f"{plan.machines.units:g}; training would never start: lower resources.workers, or provide more."
        )
    if plan.too_large:
        largest = max(plan.levels, key=lambda level: level.memory.total)
        memory, rest = largest.memory, largest.memory.corpus + largest.memory.pytorch
        advice = {
            "the label table, its moments and averages: raise resources.workers, or lower network.hidden": (
                memory.total - memory.activations - rest
            ),
            "activations: lower training.batch_size or corpus.max_tokens": memory.activations,
            "the corpus and PyTorch: use a machine with more memory": rest,
        }
        lines.append(
            f"WARNING: level {largest.shape.number} needs {memory.total / GIB:,.1f} GiB per worker, but only "
            f"{(1 - MARGIN) * plan.memory_gib:.1f} of a worker's {plan.memory_gib:.1f} GiB can be planned for "
            f"(a margin of {MARGIN:.0%}); too large: {', '.join(map(str, plan.too_large))}. "
            f"Most of it is {max(advice, key=lambda fix: advice[fix])}."
        )
    machine = plan.machines.memory * GIB
    lines += [
        f"WARNING: {phase.name} needs {format_size(phase.memory)} in a process, and this machine has "
        f"{format_size(machine)}."
        for phase in plan.phases
        if plan.machines.shared and phase.name != "networks" and phase.memory > machine
    ]
    return lines or ["Every level fits." if plan.levels else "Everything fits."]


def format_size(of_bytes: float) -> str:
    """Return a number of bytes in GiB or MiB."""
    return f"{of_bytes / GIB:,.1f} GiB" if of_bytes >= GIB else f"{of_bytes / 2**20:,.0f} MiB"


def duration(seconds: float | None) -> str:
    """Return seconds in the largest unit of which there are at least two, or a dash if they are not known."""
    if seconds is None:
        return "–"
    for unit, size in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} seconds"


def choices_table(choices: Sequence[Choice]) -> Table:
    """Return the table of settings that the preset `auto` chose for the corpus, with reasons, for a rich console."""
    table = empty_table("chosen by preset auto", ())
    for name in ("setting", "value", "why"):
        table.add_column(name)
    for choice in choices:
        table.add_row(choice.key, str(choice.value), choice.reason)
    return table
