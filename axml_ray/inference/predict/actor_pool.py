"""Pool of Ray Data actors, each with an open model, that predict blocks of documents.

Each block becomes one file, written atomically, so a job that was killed and is started again predicts only the
missing blocks: of files of texts as of a split.
"""

from collections.abc import Iterator
from typing import Any

import ray
import ray.data

from axml_ray.cluster.connection import failure, max_processes, root_cause
from axml_ray.core.errors import SettingsError
from axml_ray.network.backends.devices import reserved_device

ROWS = 1_024
"""Number of documents of a block."""


def map_with_actors(
    dataset: ray.data.Dataset,
    predictor: type,
    arguments: tuple[Any, ...],
    actors: int,
    reserved: dict[str, float],
    *,
    then: str,
) -> Iterator[dict[str, Any]]:
    """Yield what a pool of actors of the class `predictor` returns for the rows of a dataset.

    Args:
        dataset: the rows.
        predictor: class of the actors.
        arguments: arguments of its constructor.
        actors: number of actors.
        reserved: CPUs and GPUs of an actor, by Ray's names.
        then: advice that is appended to the message of an error.

    Raises:
        SettingsError: the cluster's nodes have no room for the actors' GPUs, or PyTorch sees none there.
        RuntimeError: an actor failed.
    """
    gpus = reserved.get("GPU", 0)
    if gpus:
        _check_gpus(actors, reserved)
    predicted = dataset.map(
        predictor,
        fn_constructor_args=arguments,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=reserved["CPU"],
        num_gpus=gpus or None,
    )
    try:
        yield from predicted.iter_rows()
    except ray.exceptions.RayError as error:
        raise failure(error, f"{root_cause(error)}; {then}") from error


def _check_gpus(actors: int, reserved: dict[str, float]) -> None:
    """Raise a `SettingsError` if the actors' GPUs are not there, or cannot be used by PyTorch.

    For GPUs that are not there Ray would wait indefinitely. One that PyTorch cannot use is found by a task with an
    actor's resources: of an actor that fails to start, Ray Data prints pages of tracebacks.
    """
    if (fit := max_processes(reserved)) < actors:
        raise SettingsError(
            f"{actors} predictors × {reserved['GPU']:g} GPUs are required, but the cluster's nodes have room for "
            f"{fit}; lower the number of predictors or their GPUs, or set the GPUs to 0"
        )
    task = ray.remote(num_cpus=reserved["CPU"], num_gpus=reserved["GPU"], max_retries=0)(reserved_device)
    try:
        ray.get(task.remote(reserved["GPU"]))
    except ray.exceptions.RayError as error:
        raise SettingsError(root_cause(error)) from error
