"""The plan of an experiment: memory and time of each level of a tree."""

import math
from dataclasses import asdict, dataclass
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
from axml_ray.planning.work import Work, count_steps, level_work
from axml_ray.settings import Experiment

KEPT_FREE = 0.1
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

    settings: Experiment
    counts: Counts
    machines: Machines
    levels: tuple[LevelPlan, ...]
    """The levels of one tree, from the top."""
    rates: tuple[float, ...] | None
    """Operations per second of one worker, for each level; None if they are not known."""
    rate_source: str
    """Where the rates come from, for the report."""
    main_memory: int
    """Main memory that a worker on a GPU needs, in bytes; 0 if it trains in main memory."""
    candidates: int
    """Size of one tree's largest candidate files in bytes: those that a level reads and those that it writes."""

    @property
    def workers(self) -> int:
        """Number of workers of each tree."""
        return self.settings.resources.workers

    @property
    def trees(self) -> int:
        """Number of trees."""
        return self.settings.ensemble.trees

    @property
    def side_by_side(self) -> int:
        """Number of trees that train at the same time; 0 if not even one can start."""
        return self.machines.side_by_side(self.workers, self.trees)

    @property
    def memory_gib(self) -> float:
        """Memory of one worker, in GiB."""
        return self.machines.memory_of_worker(self.workers, self.trees)

    @property
    def operations(self) -> float:
        """Operations of all trees."""
        return self.trees * sum(level.work.total for level in self.levels)

    @property
    def seconds(self) -> float | None:
        """Time until all trees are trained, in seconds; None if it is not known."""
        known = [level.seconds for level in self.levels if level.seconds is not None]
        if len(known) < len(self.levels) or not self.side_by_side:
            return None
        return math.ceil(self.trees / self.side_by_side) * sum(known)

    @property
    def too_large(self) -> tuple[LevelPlan, ...]:
        """Levels that do not fit in a worker's memory."""
        return tuple(level for level in self.levels if level.memory.total > (1 - KEPT_FREE) * self.memory_gib * GIB)

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain values for a JSON file."""
        levels = [
            {
                "shape": asdict(level.shape),
                "parameters": level.parameters,
                "steps": level.steps,
                "seconds": level.seconds,
                "memory_bytes": {**asdict(level.memory), "total": level.memory.total},
                "operations": {**asdict(level.work), "total": level.work.total},
            }
            for level in self.levels
        ]
        names = ("workers", "trees", "side_by_side", "memory_gib", "rates", "rate_source", "main_memory", "candidates")
        return {
            "name": self.settings.name,
            "counts": asdict(self.counts),
            "machines": asdict(self.machines),
            **{name: getattr(self, name) for name in names},
            "levels": levels,
            "operations": self.operations,
            "seconds": self.seconds,
            "too_large": [level.shape.number for level in self.too_large],
        }


def make_plan(
    settings: Experiment,
    counts: Counts,
    machines: Machines,
    rates: tuple[float, ...] | None = None,
    rate_source: str = "",
) -> TrainingPlan:
    """Estimate memory and time of an experiment; `rates` are those of `training_rates`."""
    workers, shapes = settings.resources.workers, level_shapes(counts.labels, settings.tree)
    replicated = word_values(counts) + network_values(settings.network, counts.word_dimension)
    levels = []
    for index, shape in enumerate(shapes):
        work = level_work(settings, counts, shape, last=index == len(shapes) - 1)
        levels.append(
            LevelPlan(
                shape=shape,
                parameters=shape.rows * shape.block * 2 * settings.network.hidden + replicated,
                steps=count_steps(settings, counts, shape.number),
                memory=level_memory(
                    settings, counts, shape, workers=workers, accelerator=machines.accelerator, width=machines.width
                ),
                work=work,
                seconds=work.total / (workers * rates[index]) if rates else None,
            )
        )
    files = [candidates_bytes(counts, shape, settings) for shape in shapes[:-1]]
    return TrainingPlan(
        settings=settings,
        counts=counts,
        machines=machines,
        levels=tuple(levels),
        rates=rates,
        rate_source=rate_source,
        main_memory=max(main_memory(counts, level.memory) for level in levels) if machines.accelerator else 0,
        candidates=sum(sorted(files)[-2:]),
    )
