"""The report of a plan for a terminal: tables of work and memory, notes and warnings."""

from collections.abc import Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from axml_ray.planning.estimate import KEPT_FREE, TrainingPlan
from axml_ray.planning.memory import GIB
from axml_ray.planning.scaling import EFFICIENT, LATENCY
from axml_ray.settings.presets import Choice


def render(plan: TrainingPlan) -> Group:
    """Return the whole report of a plan for a rich console."""
    sentences = "\n".join([*notes(plan), *warnings(plan)])
    return Group(Text(_title(plan)), Text(), work_table(plan), Text(), memory_table(plan), Text(), Text(sentences))


def work_table(plan: TrainingPlan) -> Table:
    """Return the table of sizes, steps, operations and time of each level."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, title=Text("Work of one tree, all of its workers together"))
    names = ["level", "nodes", "scored\na document", "million\nparameters", "documents\na step", "steps"]
    for name in (*names, "GFLOP\na document", "PFLOP", "time", "workers\nadvised"):
        table.add_column(name, justify="right")
    for level in plan.levels:
        shape = level.shape
        table.add_row(
            str(shape.number),
            f"{shape.nodes:,}",
            f"{min(shape.candidates, shape.nodes):,}",
            f"{level.parameters / 1e6:,.1f}",
            f"{level.documents_a_step:,}" + (f" ({level.encoded_here:,} each)" if plan.workers > 1 else ""),
            f"{level.steps:,}",
            f"{level.work.document / 1e9:,.2f}",
            f"{level.work.total / 1e15:,.3g}" if level.work.total < 1e18 else f"{level.work.total / 1e15:,.0f}",
            duration(level.seconds),
            str(level.recommended or "–"),
        )
    table.add_section()
    levels = plan.levels
    table.add_row(
        "tree",
        f"{sum(level.shape.nodes for level in levels):,}",
        "",
        f"{sum(level.parameters for level in levels) / 1e6:,.1f}",
        "",
        f"{sum(level.steps for level in levels):,}",
        "",
        f"{sum(level.work.total for level in levels) / 1e15:,.4g}",
        duration(None if plan.rates is None else sum(level.seconds or 0.0 for level in levels)),
        str(plan.recommended or "–"),
        style="bold",
    )
    return table


def memory_table(plan: TrainingPlan) -> Table:
    """Return the table of the memory of one worker at each level, by part."""
    where = "on its GPU" if plan.machines.accelerator else "of main memory"
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, title=Text(f"Memory of one worker {where}, GiB"))
    names = ["level", "label\ntable", "word\ntable", "encoder,\nhead", "Adam's\nmoments", "average,\nbest"]
    for name in (*names, "level\nabove", "gradients", "activations", "corpus,\nPyTorch", "all"):
        table.add_column(name, justify="right")
    for level in plan.levels:
        memory = level.memory
        weights = (memory.label_table, memory.word_table, memory.network, memory.moments)
        step = (memory.average + memory.best, memory.above, memory.gradients, memory.activations)
        parts = (*weights, *step, memory.corpus + memory.pytorch, memory.total)
        style = "bold red" if level in plan.too_large else ""
        table.add_row(str(level.shape.number), *(f"{part / GIB:,.2f}" for part in parts), style=style)
    return table


def notes(plan: TrainingPlan) -> list[str]:
    """Return sentences on the assumptions behind the numbers: counts, workers, memory, rate."""
    counts, machines = plan.counts, plan.machines
    trees = "one tree" if plan.trees == 1 else f"{plan.trees} trees"
    side = plan.side_by_side
    together = "" if plan.trees == 1 else ", one after the other" if side == 1 else f", {side} at a time"
    workers = "1 worker" if plan.workers == 1 else f"{plan.workers} workers"
    lines = [
        f"Counts: {counts.source}.",
        f"Workers: {trees} of {workers} each on {machines.units:g} {machines.unit}{together if side else ''}.",
        f"Memory: {plan.memory_gib:.1f} GiB a worker, {machines.memory_source}"
        + (
            f", which {plan.workers * max(1, side)} workers share"
            if machines.shared and plan.workers * side > 1
            else ""
        )
        + ".",
    ]
    if plan.main_memory:
        machine = f"; a machine with all {workers} of a tree needs {format_size(plan.main_memory * plan.workers)}"
        lines.append(
            f"Main memory: {format_size(plan.main_memory)} a worker at most, while a checkpoint is written"
            + (f"{machine}." if plan.workers > 1 else ".")
        )
    if plan.candidates:
        lines.append(
            f"Candidates: up to {format_size(plan.candidates)} in files of each tree, read and written while a level "
            "is scored; faster if as much main memory is free."
        )
    operations = plan.trees * sum(level.work.total for level in plan.levels)
    if plan.rates is None:
        lines.append(
            f"Time: not known. {trees[0].upper()}{trees[1:]} take{'s' if plan.trees == 1 else ''} at most "
            f"{operations / 1e18:,.3g} EFLOP of matrix products on real tokens, and there is no such GPU here to "
            "measure. Run this command on one, or give the rate that one sustains in training, --rate TFLOPS."
        )
    elif plan.side_by_side:
        each = " to ".join(dict.fromkeys(tera(rate) for rate in (min(plan.rates), max(plan.rates))))
        lines.append(
            f"Time: {duration(plan.seconds)} for {trees}{together}, at most (patience may end a level sooner; "
            f"preparing, clustering and predicting are not in it), at {each} TFLOPS a worker, {plan.rate_source}."
        )
    return [*lines, *scaling_notes(plan)]


def scaling_notes(plan: TrainingPlan) -> list[str]:
    """Return sentences on what is assumed of several workers, and on how many are recommended."""
    connection = f"{plan.interconnect.bandwidth / 1e9:,.3g} GB/s between workers, {plan.interconnect.source}"
    if plan.rates is None:
        return ["Workers advised: the fewest with which a level fits in memory; more than that needs a rate."]
    times = [level.time for level in plan.levels if level.time is not None]
    share = sum(time.exchanging for time in times) / sum(time.seconds for time in times)
    return [
        f"Several workers: {share:.0%} of the time is exchange, at {connection}, and {LATENCY * 1e6:.0f} µs for each "
        "collective operation, while nothing is computed; a worker's TFLOPS are assumed to be the same for any number "
        "of workers.",
        f"Workers advised: for a level, the most that reach {EFFICIENT:.0%} of a linear speed-up and fit; for the "
        "tree, those with which all trees are trained soonest.",
    ]


def warnings(plan: TrainingPlan) -> list[str]:
    """Return a sentence for each reason why training would fail, with the settings to change."""
    lines = []
    fixes = " or ".join(filter(None, [", ".join(map(str, plan.fixes[:-1])), *map(str, plan.fixes[-1:])]))
    if not plan.side_by_side:
        lines.append(
            f"WARNING: a tree's {plan.workers} workers need {plan.workers * plan.machines.unit_share:g} "
            f"{plan.machines.unit} and the machines have {plan.machines.units:g}; training would never start: "
            + (f"set {fixes}." if fixes else f"provide more {plan.machines.unit}.")
        )
    if plan.too_large:
        largest = max(plan.too_large, key=lambda level: level.memory.total)
        others = [str(level.shape.number) for level in plan.too_large if level is not largest]
        also = f" (nor does level {others[0]} fit)" if len(others) == 1 else ""
        also = f" (nor do levels {', '.join(others)} fit)" if len(others) > 1 else also
        lines.append(
            f"WARNING: level {largest.shape.number} needs {largest.memory.total / GIB:,.1f} GiB per worker, but only "
            f"{(1 - KEPT_FREE) * plan.memory_gib:.1f} of a worker's {plan.memory_gib:.1f} GiB can be planned for ("
            f"{KEPT_FREE:.0%} is a safety margin){also}: "
            + (
                f"set {fixes}."
                if fixes
                else "no change of resources.workers, network.hidden or training.batch_size is enough; use machines "
                "with more memory."
            )
        )
    return lines or ["Every level fits."]


def format_size(of_bytes: float) -> str:
    """Return a number of bytes in GiB or MiB."""
    return f"{of_bytes / GIB:,.1f} GiB" if of_bytes >= GIB else f"{of_bytes / 2**20:,.0f} MiB"


def tera(rate: float) -> str:
    """Return operations per second as TFLOPS with two digits."""
    return f"{rate / 1e12:,.2g}" if rate < 1e13 else f"{rate / 1e12:,.0f}"


def duration(seconds: float | None) -> str:
    """Return seconds in the largest unit of which there are at least two, or a dash if they are not known."""
    if seconds is None:
        return "–"
    for unit, size in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} seconds"


def _title(plan: TrainingPlan) -> str:
    """Return the sizes of the corpus on one line."""
    counts = plan.counts
    return (
        f"{plan.name}: {counts.documents:,} training documents of {counts.tokens:,.0f} words on average, "
        f"{counts.labels:,} labels, {counts.words:,} words"
    )


def choices_table(choices: Sequence[Choice]) -> Table:
    """Return the table of settings that the preset `auto` chose for the corpus, with reasons, for a rich console."""
    table = Table(box=box.SIMPLE_HEAD, title="chosen by preset auto", show_edge=False)
    for name in ("setting", "value", "why"):
        table.add_column(name)
    for choice in choices:
        table.add_row(choice.key, str(choice.value), choice.reason)
    return table
