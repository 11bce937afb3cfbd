"""The plan of an experiment: memory and time of each level of a tree, and settings that make it fit."""

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
from axml_ray.planning.scaling import EFFICIENT, Interconnect, LevelTime, efficiency, level_time
from axml_ray.planning.shapes import Counts, LevelShape, level_shapes
from axml_ray.planning.work import Work, count_steps, level_work
from axml_ray.settings import Experiment, Settings

KEPT_FREE = 0.1
"""Share of a worker's memory that a plan leaves free, for fragmentation and for other processes."""


@dataclass(frozen=True, kw_only=True)
class LevelPlan:
    """The estimate for one level of one tree."""

    shape: LevelShape
    """Sizes of the level."""
    parameters: int
    """Number of the network's parameters, over all workers."""
    documents_a_step: int
    """Number of documents of a step, over all workers: the batch size."""
    encoded_here: int
    """Number of documents of a step that one worker encodes."""
    steps: int
    """Number of optimizer steps if all epochs run."""
    memory: Memory
    """Memory of one worker."""
    work: Work
    """Operations of all workers together."""
    time: LevelTime | None
    """Time for the level; None if the rate is not known."""
    recommended: int | None = None
    """Number of workers that the level makes good use of; None if no number that there are units for is enough."""

    @property
    def seconds(self) -> float | None:
        """Time for the level in seconds; None if the rate is not known."""
        return None if self.time is None else self.time.seconds


Change = tuple[str, str, int]
"""A change of a setting: group, key and new value."""


@dataclass(frozen=True, kw_only=True)
class Fix:
    """A change of one or two settings with which training can start and every level fits in memory."""

    changes: tuple[Change, ...]
    """The settings to change."""
    needs: str = ""
    """Total number of GPUs or cores that it needs, if that is more than there are."""

    def apply(self, settings: Experiment) -> Experiment:
        """Return the settings with the changes."""
        return _changed(settings, self.changes)

    def __str__(self) -> str:
        changes = " with ".join(f"{group}.{key} {value}" for group, key, value in self.changes)
        return changes + (f" on {self.needs}" if self.needs else "")


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The estimates for the training of an ensemble's trees."""

    name: str
    """Name of the experiment."""
    counts: Counts
    """Sizes of the corpus."""
    machines: Machines
    """The hardware that it would train on."""
    workers: int
    """Number of workers of each tree."""
    trees: int
    """Number of trees."""
    side_by_side: int
    """Number of trees that train at the same time; 0 if not even one can start."""
    memory_gib: float
    """Memory of one worker, in GiB."""
    levels: tuple[LevelPlan, ...]
    """The levels of one tree, from the top."""
    rates: tuple[float, ...] | None
    """Operations per second of one worker, for each level; None if they are not known."""
    rate_source: str
    """Where the rates come from, for the report."""
    interconnect: Interconnect
    """The connection between the workers of a tree."""
    main_memory: int
    """Main memory that a worker on a GPU needs, in bytes; 0 if it trains in main memory."""
    candidates: int
    """Size of one tree's largest candidate files in bytes: those that a level reads and those that it writes."""
    recommended: int | None = None
    """Number of workers with which all trees are trained soonest; None if it is not known."""
    fixes: tuple[Fix, ...] = ()
    """Changes each of which makes all levels fit; empty if they fit already, or if no such change was found."""

    @property
    def seconds(self) -> float | None:
        """Time until all trees are trained, in seconds; None if it is not known."""
        parts = [level.seconds for level in self.levels]
        if any(part is None for part in parts) or not self.side_by_side:
            return None
        return math.ceil(self.trees / self.side_by_side) * sum(part for part in parts if part is not None)

    @property
    def too_large(self) -> tuple[LevelPlan, ...]:
        """Levels that do not fit in a worker's memory."""
        return tuple(level for level in self.levels if level.memory.total > (1 - KEPT_FREE) * self.memory_gib * GIB)

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain values for a JSON file."""
        levels = [
            {
                **{key: value for key, value in asdict(level).items() if key not in ("memory", "work")},
                "seconds": level.seconds,
                "memory_bytes": {**asdict(level.memory), "total": level.memory.total},
                "operations": {**asdict(level.work), "total": level.work.total},
            }
            for level in self.levels
        ]
        return {
            **{key: value for key, value in asdict(self).items() if key not in ("levels", "fixes")},
            "levels": levels,
            "operations": self.trees * sum(level.work.total for level in self.levels),
            "seconds": self.seconds,
            "too_large": [level.shape.number for level in self.too_large],
            "fixes": [{**asdict(fix), "text": str(fix)} for fix in self.fixes],
        }


def make_plan(
    settings: Experiment,
    counts: Counts,
    machines: Machines,
    rates: tuple[float, ...] | None = None,
    rate_source: str = "",
    interconnect: Interconnect | None = None,
) -> TrainingPlan:
    """Estimate memory and time of an experiment; where it does not fit, search for settings with which it does.

    Args:
        settings: the experiment.
        counts: sizes of its corpus.
        machines: the hardware that it would train on.
        rates: operations per second of one worker, for each level; None if they are not known.
        rate_source: where the rates come from, for the report.
        interconnect: the connection between workers; None for the assumed one.
    """
    given = settings, counts, machines, rates, rate_source, interconnect
    plan = _with_recommendations(_plan_without_fixes(*given), *given)
    return replace(plan, fixes=tuple(_find_fixes(settings, counts, machines))) if _fails(plan) else plan


def _plan_without_fixes(
    settings: Experiment,
    counts: Counts,
    machines: Machines,
    rates: tuple[float, ...] | None = None,
    rate_source: str = "",
    interconnect: Interconnect | None = None,
) -> TrainingPlan:
    """Estimate memory and time of an experiment; the arguments are those of `make_plan`."""
    workers, trees = settings.resources.workers, settings.ensemble.trees
    interconnect = interconnect or Interconnect.of(machines.accelerator)
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
                steps=count_steps(settings, counts, shape.number),
                memory=memory,
                work=work,
                time=level_time(
                    settings,
                    counts,
                    shape,
                    work,
                    workers=workers,
                    width=machines.width,
                    rate=rates[index],
                    interconnect=interconnect,
                )
                if rates
                else None,
            )
        )
    files = [candidates_bytes(counts, shape, settings) for shape in shapes[:-1]]
    return TrainingPlan(
        name=settings.name,
        counts=counts,
        machines=machines,
        workers=workers,
        trees=trees,
        side_by_side=machines.side_by_side(workers, trees),
        memory_gib=machines.memory_of_worker(workers, trees),
        levels=tuple(levels),
        rates=rates,
        rate_source=rate_source,
        interconnect=interconnect,
        main_memory=max(main_memory(counts, level.memory) for level in levels) if machines.accelerator else 0,
        candidates=sum(sorted(files)[-2:]),
    )


MOST_WORKERS = 64
"""Largest number of workers that is considered for a recommendation."""


def _with_recommendations(
    plan: TrainingPlan,
    settings: Experiment,
    counts: Counts,
    machines: Machines,
    rates: tuple[float, ...] | None,
    rate_source: str,
    interconnect: Interconnect | None,
) -> TrainingPlan:
    """Add the recommended numbers of workers to a plan.

    A level's is the largest number that reaches `EFFICIENT` of a linear speed-up, or else the least with which it fits.
    That of all trees takes the least time, where every level fits; fewer workers are better at the same time.
    """
    most = min(MOST_WORKERS, math.floor(machines.units / machines.unit_share + 1e-9))
    plans = {
        workers: _plan_without_fixes(
            _changed(settings, [("resources", "workers", workers)]), counts, machines, rates, rate_source, interconnect
        )
        for workers in range(1, most + 1)
    }
    levels = tuple(replace(level, recommended=_recommended(plans, index)) for index, level in enumerate(plan.levels))
    times = {workers: one.seconds for workers, one in plans.items() if not one.too_large and one.seconds is not None}
    return replace(plan, levels=levels, recommended=min(times, key=lambda workers: times[workers], default=None))


def _recommended(plans: dict[int, TrainingPlan], index: int) -> int | None:
    """Return the number of workers for a level, given the plans of each number."""
    fitting = [workers for workers, plan in plans.items() if plan.levels[index] not in plan.too_large]
    if not fitting:
        return None
    times = {workers: plan.levels[index].time for workers, plan in plans.items()}
    one = times[1]
    if one is None:
        return fitting[0]
    efficient = [
        workers
        for workers in fitting
        if (several := times[workers]) is not None and efficiency(one, several, workers) >= EFFICIENT
    ]
    return max(efficient, default=fitting[0])


def _fails(plan: TrainingPlan) -> bool:
    """Return whether training would not start or a level would not fit."""
    return bool(plan.too_large) or not plan.side_by_side


def _find_fixes(settings: Experiment, counts: Counts, machines: Machines) -> Iterator[Fix]:
    """Yield, for each of workers, hidden units and batch size, the least change with which every level fits.

    If none of them suffices alone, combinations of two are tried.
    """

    def try_changes(*changes: Change) -> Fix | None:
        changed = _changed(settings, changes)
        needed = math.ceil(changed.resources.workers * machines.unit_share)
        enough = machines if machines.shared else replace(machines, units=max(machines.units, needed))
        if _fails(_plan_without_fixes(changed, counts, enough)):
            return None
        return Fix(changes=changes, needs=f"{needed} {machines.unit}" if needed > machines.units else "")

    workers, base = settings.resources.workers, list[Change]()
    if not machines.side_by_side(workers, 1):
        workers = math.floor(machines.units / machines.unit_share)
        if not workers:
            return
        base = [("resources", "workers", workers)]
        if fix := try_changes(*base):
            yield fix
            return
    more: list[Change] = [("resources", "workers", workers << doubled) for doubled in range(1, 9)]
    smaller: list[Change] = [("network", "hidden", value) for value in _halves(settings.network.hidden, 16)]
    fewer: list[Change] = [("training", "batch_size", value) for value in _halves(settings.training.batch_size, 1)]
    is_fixed = False
    for options, fixed in ((more, []), (smaller, base), (fewer, base)):
        if fix := next(filter(None, (try_changes(*fixed, option) for option in options)), None):
            is_fixed = True
            yield fix
    if not is_fixed:
        for options, others, fixed in ((smaller, more, []), (fewer, more, []), (fewer, smaller, base)):
            pairs = (try_changes(*fixed, option, other) for option in options for other in others)
            if fix := next(filter(None, pairs), None):
                yield fix


def _halves(value: int, least: int) -> list[int]:
    """Return the value halved once, twice and so on, down to `least`."""
    return [value >> times for times in range(1, value.bit_length()) if value >> times >= least]


def _changed(settings: Experiment, changes: Iterable[Change]) -> Experiment:
    """Return the settings with some changes."""
    for name, key, value in changes:
        group: Settings = getattr(settings, name)
        settings = settings.model_copy(update={name: group.model_copy(update={key: value})})
    return settings
