"""Training of a member on its workers: in one Ray task, or on a Ray Train group if there are several.

- A single worker needs neither a process group nor a controller, so its task is the worker. For three trees on two
  cores that leaves three processes instead of nine, each of which takes seconds to start.
- The task that starts a group reserves no CPU, so any number of groups can wait for workers without a deadlock. A group
  starts when all of its workers fit.
- After the death of a worker both continue from the last checkpoint, at most `resources.max_failures` times.
"""

import time
from typing import Any

import ray
import torch

from axml_ray.corpus.store import Corpus
from axml_ray.network.backends.devices import reserved_device
from axml_ray.network.backends.precision import use_threads
from axml_ray.orchestration.tasks import ANYWHERE
from axml_ray.runs.fitting import fit_member
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.settings.resources import ResourceSettings
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level import TrainingDivergedError


def training_task(resources: ResourceSettings) -> Any:
    """Return a Ray remote function that takes an experiment's settings and the name of a member, and trains it.

    The task returns the message of a training that diverged, which must not be retried as an exception would be, or
    else None.
    """
    # max_calls=1: a process that stayed for the next member would keep its memory, and Ray Train's controller.
    if resources.workers > 1:
        return ray.remote(num_cpus=0, max_retries=2, max_calls=1, **ANYWHERE)(_train_on_group)
    reserved = resources.of_a_worker
    return ray.remote(
        num_cpus=reserved.get("CPU", 0),
        num_gpus=reserved.get("GPU", 0),
        memory=reserved.get("memory"),
        max_retries=resources.max_failures,
        retry_exceptions=True,  # as Ray Train does: a fault of a GPU may be an exception
        max_calls=1,
        **ANYWHERE,
    )(_train_alone)


def _train_alone(settings: Experiment, name: str) -> str | None:
    """Train a member in this process, on the GPU that Ray reserved for it, if any."""
    device = reserved_device(settings.resources.gpus_per_worker)
    return _mark_fitted(settings, name, _train(settings, name, device))


def _train_on_group(settings: Experiment, name: str) -> str | None:
    """Train a member on a group of Ray Train workers."""
    # Not at the top: the processes that need no group would take another second to start.
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    run, resources = Run(settings, Corpus.open(settings.corpus_directory)), settings.resources
    trainer = TorchTrainer(
        _train_as_worker,
        train_loop_config={"settings": settings, "name": name},
        torch_config=TorchConfig(backend="nccl" if resources.gpus_per_worker else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=resources.workers,
            use_gpu=resources.gpus_per_worker > 0,
            resources_per_worker=resources.of_a_worker,
        ),
        run_config=RunConfig(
            # Our own files record what is finished; a unique name keeps Ray from resuming an earlier attempt.
            name=f"{name}-{time.time_ns():x}",
            storage_path=str(run.layout.workers),
            failure_config=FailureConfig(max_failures=resources.max_failures),
        ),
    )
    return _mark_fitted(settings, name, trainer.fit().return_value)


def _train_as_worker(config: dict[str, Any]) -> str | None:
    """Train a member as one worker of a Ray Train group."""
    from ray.train.torch import get_device

    settings = config["settings"]
    gpus = settings.resources.gpus_per_worker
    return _train(settings, config["name"], reserved_device(gpus, str(get_device()) if gpus else "cpu"))


def _train(settings: Experiment, name: str, device: torch.device) -> str | None:
    """Train a member on a device, with the other workers of this process's group, if there is one.

    Returns:
        The message of a training that diverged, or None.
    """
    use_threads(settings.resources.threads_of_worker)
    run = Run(settings, Corpus.open(settings.corpus_directory))
    try:
        fit_member(run, run.spec(name), DistributedContext.current(device))
    except TrainingDivergedError as error:
        return str(error)
    return None


def _mark_fitted(settings: Experiment, name: str, divergence: str | None) -> str | None:
    """Mark a member as fitted when all its workers are done, unless the training diverged; return `divergence`."""
    if not divergence:
        Run(settings, Corpus.open(settings.corpus_directory)).spec(name).mark_fitted()
    return divergence
