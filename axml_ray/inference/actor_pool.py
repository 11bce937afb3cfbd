"""Pool of Ray Data actors, each with an open model, that predict blocks of documents.

Each block becomes one file, written atomically, so a job that was killed and is started again predicts only the
missing blocks.
"""

from collections.abc import Iterator
from typing import Any

import ray
import ray.data

from axml_ray.cluster import max_processes, root_cause
from axml_ray.settings import SettingsError

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
    """Yield what a pool of actors returns for the rows of a dataset.

    Args:
        dataset: the rows.
        predictor: class of the actors.
        arguments: arguments of its constructor.
        actors: number of actors.
        reserved: CPUs and GPUs of an actor, by Ray's names.
        then: advice that is appended to the message of an error.

    Raises:
        SettingsError: the cluster's nodes have no room for the actors' GPUs.
        RuntimeError: an actor failed.
    """
    gpus = reserved.get("GPU", 0)
    if gpus and (fit := max_processes(reserved)) < actors:  # Ray would wait indefinitely
        raise SettingsError(
            f"{actors} predictors × {gpus:g} GPUs are required, but the cluster's nodes have room for {fit}; lower the "
            "number of predictors or their GPUs, or set the GPUs to 0"
        )
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
        raise RuntimeError(f"{root_cause(error)}; {then}") from error
