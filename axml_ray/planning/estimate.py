"""The plan of an experiment: memory and time of each level of a tree, where it will not fit, and what mends that."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from axml_ray.planning.machines import Machines
from axml_ray.planning.memory import (
    GIB,
    Memory,
    candidates_bytes,
    level_memory,
    main_memory,
    network_values,
    word_values,
)
from axml_ray.planning.shapes import Counts, LevelShape, level_shapes
from axml_ray.planning.work import Work, level_work, steps_of
from axml_ray.settings import Experiment, Settings

KEPT_FREE = 0.1
"""Share of a worker's memory that a plan leaves free: allocators waste some, and others need some."""


@dataclass(frozen=True, kw_only=True)
class LevelPlan:
    """Of one level of one tree."""

    shape: LevelShape
    parameters: int
    """Of the whole network, over all workers."""
    documents_a_step: int
    """Of all workers."""
    encoded_here: int
    """Of them, by one worker."""
    steps: int
    """If all epochs run."""
    memory: Memory
    """Of one worker."""
    work: Work
    """Of all workers."""
    seconds: float | None
    """Of one tree's level; None without a rate."""


Change = tuple[str, str, int]
"""Group, key and value of a setting."""


@dataclass(frozen=True, kw_only=True)
class Mend:
    """A change of a setting, or of two, with which a tree starts and every level fits."""

    changes: tuple[Change, ...]
    needs: str = ""
    """GPUs or cores that it needs in all, where those are more than there are."""

    def apply(self, settings: Experiment) -> Experiment:
        """The settings with it."""
        return _changed(settings, self.changes)

    def __str__(self) -> str:
        changes = " with ".join(f"{group}.{key} {value}" for group, key, value in self.changes)
        return changes + (f" on {self.needs}" if self.needs else "")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Of an ensemble."""

    name: str
    counts: Counts
    machines: Machines
    workers: int
    """Of each tree."""
    trees: int
    kind: str
    """Of the trees."""
    side_by_side: int
    """Trees that train at the same time; 0 where none would ever start."""
    memory_gib: float
    """That a worker may hold."""
    levels: tuple[LevelPlan, ...]
    rates: tuple[float, ...] | None
    """Operations a second of one worker, for each level."""
    rate_source: str
    """Where they are from, for people."""
    main_memory: int
    """Bytes that a worker on a GPU needs of main memory; 0 where it trains in main memory."""
    candidates: int
    """Bytes of the largest files of candidates, of one tree: those a level reads and those it writes."""
    mends: tuple[Mend, ...] = ()
    """Each makes all levels fit; none where they do, or where no single change does."""

    @property
    def seconds(self) -> float | None:
        """Until all trees are trained; None without a rate."""
        parts = [level.seconds for level in self.levels]
        if any(part is None for part in parts) or not self.side_by_side:
            return None
        return math.ceil(self.trees / self.side_by_side) * sum(part for part in parts if part is not None)

    @property
    def too_large(self) -> tuple[LevelPlan, ...]:
        """Levels that do not fit."""
        return tuple(level for level in self.levels if level.memory.total > (1 - KEPT_FREE) * self.memory_gib * GIB)

    def as_json(self) -> dict[str, Any]:
        """The same numbers, for a program."""
        levels = [
            {
                **{key: value for key, value in asdict(level).items() if key not in ("memory", "work")},
                "memory_bytes": {**asdict(level.memory), "total": level.memory.total},
                "operations": {**asdict(level.work), "total": level.work.total},
            }
            for level in self.levels
        ]
        return {
            **{key: value for key, value in asdict(self).items() if key not in ("levels", "mends")},
            "levels": levels,
            "operations": self.trees * sum(level.work.total for level in self.levels),
            "seconds": self.seconds,
            "too_large": [level.shape.number for level in self.too_large],
            "mends": [{**asdict(mend), "text": str(mend)} for mend in self.mends],
        }


def make_plan(
    settings: Experiment,
    counts: Counts,
    machines: Machines,
    rates: tuple[float, ...] | None = None,
    rate_source: str = "",
) -> Plan:
    """The plan of an experiment.

    Args:
        settings: the experiment.
        counts: of its corpus.
        machines: what it would train on.
        rates: operations a second of one worker, for each level.
        rate_source: where they are from.
    """
    plan = _without_mends(settings, counts, machines, rates, rate_source)
    return replace(plan, mends=tuple(_mends(settings, counts, machines))) if _fails(plan) else plan


def _without_mends(
    settings: Experiment,
    counts: Counts,
    machines: Machines,
    rates: tuple[float, ...] | None = None,
    rate_source: str = "",
) -> Plan:
    workers, trees = settings.resources.workers, settings.ensemble.trees
    shapes = level_shapes(counts.labels, settings.tree)
    levels = []
    for index, shape in enumerate(shapes):
        memory = level_memory(
            settings, counts, shape,
            workers=workers, accelerator=machines.accelerator, width=machines.width,
        )  # fmt: skip
        work = level_work(settings, counts, shape, last=index == len(shapes) - 1)
        replicated = word_values(counts) + network_values(settings.network, counts.word_dimension)
        levels.append(
            LevelPlan(
                shape=shape,
                parameters=shape.rows * shape.block * 2 * settings.network.hidden + replicated,
                documents_a_step=settings.training.batch_size,
                encoded_here=-(-settings.training.batch_size // workers),
                steps=steps_of(settings, counts, shape.number),
                memory=memory,
                work=work,
                seconds=work.total / (rates[index] * workers) if rates else None,
            )
        )
    files = [candidates_bytes(counts, shape, settings) for shape in shapes[:-1]]
    return Plan(
        name=settings.name,
        counts=counts,
        machines=machines,
        workers=workers,
        trees=trees,
        kind=settings.tree.kind,
        side_by_side=machines.side_by_side(workers, trees),
        memory_gib=machines.memory_of_worker(workers, trees),
        levels=tuple(levels),
        rates=rates,
        rate_source=rate_source,
        main_memory=max(main_memory(counts, level.memory) for level in levels) if machines.accelerator else 0,
        candidates=sum(sorted(files)[-2:]),
    )


def _fails(plan: Plan) -> bool:
    return bool(plan.too_large) or not plan.side_by_side


def _mends(settings: Experiment, counts: Counts, machines: Machines) -> Iterator[Mend]:
    """For workers, hidden units and batch, the least change that mends a plan; where none does, one of two settings."""

    def tried(*changes: Change) -> Mend | None:
        changed = _changed(settings, changes)
        needed = math.ceil(changed.resources.workers * machines.unit_share)
        enough = machines if machines.shared else replace(machines, units=max(machines.units, needed))
        if _fails(_without_mends(changed, counts, enough)):
            return None
        return Mend(changes=changes, needs=f"{needed} {machines.unit}" if needed > machines.units else "")

    workers, base = settings.resources.workers, list[Change]()
    if not machines.side_by_side(workers, 1):
        workers = math.floor(machines.units / machines.unit_share)
        if not workers:
            return
        base = [("resources", "workers", workers)]
        if mend := tried(*base):
            yield mend
            return
    more: list[Change] = [("resources", "workers", workers << doubled) for doubled in range(1, 9)]
    smaller: list[Change] = [("network", "hidden", value) for value in _halves(settings.network.hidden, 16)]
    fewer: list[Change] = [("training", "batch_size", value) for value in _halves(settings.training.batch_size, 1)]
    found = False
    for options, fixed in ((more, []), (smaller, base), (fewer, base)):
        if mend := next(filter(None, (tried(*fixed, option) for option in options)), None):
            found = True
            yield mend
    if not found:
        for options, others, fixed in ((smaller, more, []), (fewer, more, []), (fewer, smaller, base)):
            pairs = (tried(*fixed, option, other) for option in options for other in others)
            if mend := next(filter(None, pairs), None):
                yield mend


def _halves(value: int, least: int) -> list[int]:
    return [value >> times for times in range(1, value.bit_length()) if value >> times >= least]


def _changed(settings: Experiment, changes: Iterable[Change]) -> Experiment:
    for name, key, value in changes:
        group: Settings = getattr(settings, name)
        settings = settings.model_copy(update={name: group.model_copy(update={key: value})})
    return settings
