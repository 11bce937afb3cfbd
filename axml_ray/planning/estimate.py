"""The plan of an experiment: memory and time of each level of a tree."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from axml_ray.corpus.counts import Counts
from axml_ray.planning.machines import Machines
from axml_ray.planning.memory import GIB, Memory, candidates_bytes, level_memory, main_memory, network_values
from axml_ray.planning.phases import Phase, RunPhases
from axml_ray.planning.shapes import LevelShape, network_shapes
from axml_ray.planning.work import Work, count_steps, level_work
from axml_ray.settings import Experiment

MARGIN = 0.1
"""Share of a worker's memory that a plan leaves free, for fragmentation and for other processes."""


@dataclass(frozen=True, kw_only=True)
class LevelPlan:
    """The estimate for one level of one tree."""

    shape: LevelShape
    parameters: int
    """Number of the network's parameters, over all workers."""
    steps: int
    """Number of optimizer steps if all epochs run."""
    memory: Memory
    """Memory of one worker."""
    work: Work
    """Operations of all workers together."""
    seconds: float | None
    """Time for the level, if W workers are W times as fast as one; None if the rate is not known."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The estimates for the training of an ensemble's trees."""

    name: str
    counts: Counts
    machines: Machines
    workers: int
    """Number of workers of each tree; the smallest, if the settings have two numbers."""
    trees: int
    side_by_side: int
    """Number of trees that train at the same time; 0 if not even one can start."""
    memory_gib: float
    """Memory of one worker."""
    rates: tuple[float, ...] | None
    """Operations per second of one worker, for each level; None if they are not known."""
    rate_source: str
    """Where the rates come from, for the report."""
    main_memory: int
    """Main memory that a worker on a GPU needs, in bytes; 0 if it trains in main memory."""
    candidates: int
    """Size of one tree's largest candidate files in bytes: those that a level reads and those that it writes."""
    levels: tuple[LevelPlan, ...]
    """The levels of one tree, from the top; none without networks."""
    operations: float
    """Operations of all trees."""
    seconds: float | None
    """Time until all trees are trained; None if it is not known."""
    too_large: tuple[int, ...]
    """Numbers of the levels that do not fit in a worker's memory."""
    phases: tuple[Phase, ...]
    """All phases of the run, from texts to a bundle."""
    task_memory: dict[str, int]
    """Bytes that a Ray task of each kind reserves."""

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain values for a JSON file."""
        levels = [
            {
                **{name: value for name, value in asdict(level).items() if name not in ("memory", "work")},
                "memory_bytes": {**asdict(level.memory), "total": level.memory.total},
                "operations": {**asdict(level.work), "total": level.work.total},
            }
            for level in self.levels
        ]
        return {**asdict(self), "levels": levels}


def make_plan(
    settings: Experiment,
    counts: Counts,
    machines: Machines,
    rates: tuple[float, ...] | None = None,
    rate_source: str = "",
) -> TrainingPlan:
    """Estimate memory and time of an experiment; `rates` are those of `training_rates`."""
    workers, trees = settings.resources.min_workers, settings.ensemble.trees
    shapes = network_shapes(counts.labels, settings)
    side_by_side = machines.side_by_side(workers, trees)
    memory_gib = machines.memory_of_worker(workers, trees)
    replicated = counts.words * counts.word_dimension + network_values(settings.network, counts.word_dimension)
    levels = []
    for shape in shapes:
        work = level_work(settings, counts, shape, last=shape is shapes[-1])
        levels.append(
            LevelPlan(
                shape=shape,
                parameters=shape.rows * shape.block * 2 * settings.network.hidden + replicated,
                steps=count_steps(settings, counts, shape.number),
                memory=level_memory(
                    settings, counts, shape, workers=workers, accelerator=machines.accelerator, width=machines.width
                ),
                work=work,
                seconds=work.total / (workers * rates[shape.number - 1]) if rates else None,
            )
        )
    known = [level.seconds for level in levels if level.seconds is not None]
    files = sorted(candidates_bytes(counts, shape, settings) for shape in shapes[:-1])
    usable = (1 - MARGIN) * memory_gib * GIB
    seconds = math.ceil(trees / side_by_side) * sum(known) if len(known) == len(shapes) and side_by_side else None
    whole = sum(level.work.total for level in levels)
    rate = whole / sum(known) / workers if known else None
    run = RunPhases(settings, counts, machines, seconds, rate)
    return TrainingPlan(
        name=settings.name,
        counts=counts,
        machines=machines,
        workers=workers,
        trees=trees,
        side_by_side=side_by_side,
        memory_gib=memory_gib,
        rates=rates,
        rate_source=rate_source,
        main_memory=max((main_memory(counts, level.memory) for level in levels if machines.accelerator), default=0),
        candidates=sum(files[-2:]),
        levels=tuple(levels),
        operations=trees * whole,
        seconds=seconds,
        too_large=tuple(level.shape.number for level in levels if level.memory.total > usable),
        phases=run.all(),
        task_memory=run.needed,
    )
