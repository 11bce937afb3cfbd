"""Settings of the resources that are reserved on the Ray cluster (package `axml_ray.orchestration`)."""

from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator, model_validator

from axml_ray.settings.base import Positive, Settings


def _read_workers(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """Return a number of workers, or the smallest and the largest; the command line reads a number as a list of one."""
    try:
        workers = read(value[0] if isinstance(value, list | tuple) and len(value) == 1 else value)
    except ValidationError:
        workers = (1, 0)
    if isinstance(workers, tuple) and workers[0] > workers[1]:
        raise ValueError("expected a number from 1 on, or the smallest and the largest, such as [1, 4]")
    return workers


class ResourceSettings(Settings):
    """Resources that are reserved on the Ray cluster."""

    workers: Annotated[Positive | tuple[Positive, Positive], WrapValidator(_read_workers)] = 1
    """Ray Train workers per tree; with two numbers, from the first up to the second if the cluster has room."""
    cpus_per_worker: Annotated[float, Field(gt=0)] = 1.0
    """CPUs reserved per worker, and its Torch threads, at least one; below 1, several trees share a core."""
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0.0
    """GPUs reserved per worker; 0 trains on the CPU. Below 1, trees with one worker each share a GPU and its memory."""
    gpus_per_predictor: Annotated[float, Field(ge=0)] = 0.0
    """GPUs reserved per predictor; 0 predicts on the CPU. Below 1, predictors share a GPU."""
    checkpoint_minutes: Annotated[float, Field(ge=0)] = 5.0
    """Least time between two checkpoints of a level, in minutes; they are written after evaluations."""
    max_failures: Annotated[int, Field(ge=0)] = 2
    """Number of restarts of a tree's workers, or of a trial, after a process died; preemptions don't count."""

    @model_validator(mode="after")
    def _gpus_are_whole(self) -> Self:
        for name in ("gpus_per_worker", "gpus_per_predictor"):
            gpus = getattr(self, name)
            if gpus > 1 and gpus % 1:
                raise ValueError(f"resources.{name} is {gpus:g}; above 1, take a whole number")
        gpus = self.gpus_per_worker
        if 0 < gpus < 1 < self.max_workers:
            raise ValueError(
                f"resources.gpus_per_worker is {gpus:g}, and workers of one tree can't share a GPU; set it to 1, or "
                "resources.workers to 1"
            )
        return self

    @property
    def min_workers(self) -> int:
        """Return the smallest number of workers with which a tree is trained."""
        return self.workers if isinstance(self.workers, int) else self.workers[0]

    @property
    def max_workers(self) -> int:
        """Return the largest number of workers with which a tree is trained."""
        return self.workers if isinstance(self.workers, int) else self.workers[1]

    @property
    def threads_of_worker(self) -> int:
        """Torch threads per worker."""
        return max(1, int(self.cpus_per_worker))

    @property
    def of_a_predictor(self) -> dict[str, float]:
        """Ray resources that a predictor reserves besides memory: `CPU`, at least one, and `GPU`."""
        return {"CPU": max(1.0, self.cpus_per_worker), "GPU": self.gpus_per_predictor}

    @property
    def of_a_worker(self) -> dict[str, float]:
        """Ray resources that a worker reserves: `CPU` and `GPU`."""
        reserved = {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker}
        return {kind: amount for kind, amount in reserved.items() if amount}
