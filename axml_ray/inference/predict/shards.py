"""Prediction with Ray Data: documents flow from reader tasks to a pool of actors, each of which writes its shards.

    sources ─ reader tasks ─▶ shards of documents ─ actors with an open model ─▶ part-00000-000000.parquet, …

A shard's file is written atomically, and its name says which documents it holds, so a job that was killed and is
started again predicts only the shards without a file. Splits of a corpus and files of texts are predicted in this way.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from axml_ray.cluster.capacity import reservable_memory, wait_for_room
from axml_ray.cluster.connection import connect, quiet_data
from axml_ray.cluster.failures import failure, root_cause
from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json, whole_file, write_json
from axml_ray.core.lease import Lease, held_leases
from axml_ray.network.backends.devices import reserved_device

ROWS = 1_024
"""Number of documents of a shard."""
BLOCK_BYTES = 1 << 20
"""Approximate bytes that a reader task yields at a time; small, so that actors start while it still reads."""

JOB = "_job.json"
"""File of what determines the shards in a directory; it is written first."""

OpenPredictor = Callable[[], Callable[[pa.Table, Path], None]]
"""Opens a model, and returns a function that predicts the documents of a shard and writes them to a path."""


class Source(Protocol):
    """Documents that one task reads."""

    def shards(self) -> Iterator[pa.Table]:
        """Yield the documents in shards of at most `ROWS` rows, the same at every call."""


class OtherJobError(SettingsError):
    """A directory contains something else than the predictions of a job."""


def claim_directory(output: Path, job: dict[str, Any], **decided: Any) -> dict[str, Any]:
    """Write a job's identity into its output directory, or check that the directory belongs to the same job.

    Args:
        output: directory of the predictions.
        job: what determines the result.
        decided: what a new job decides for its later starts as well, such as the number format of predictions.

    Returns:
        The stored job, with what was decided.

    Raises:
        OtherJobError: the directory contains something else, or predictions of another job.
    """
    path, job = output / JOB, json.loads(json.dumps(job))  # tuples become lists, as in the stored job
    storage.fetch(output, [JOB])
    if not path.exists():
        if not storage.is_empty(output):
            raise OtherJobError(f"--output: {output} exists and holds no predictions; choose a new directory")
        output.mkdir(parents=True, exist_ok=True)
        write_json(path, {**job, **decided})
    try:
        stored: dict[str, Any] = read_json(path)
    except ValueError as error:
        raise OtherJobError(f"{error}; remove {output} and start again") from None
    if changed := [key for key in job if stored.get(key) != job[key]]:
        names = ", ".join(changed)
        raise OtherJobError(
            f"--output: {output} holds predictions of another job (other {names}); choose a new directory, or remove it"
        )
    storage.fetch(output)
    return stored


class ShardWriter:
    """An open model that writes predictions of shards to a directory; the class of the Ray Data actors."""

    def __init__(self, open_predictor: OpenPredictor, output: Path, leases: Sequence[Lease] = ()):
        for lease in leases:
            lease.enforce()
        self.predict, self.output = open_predictor(), output

    def __call__(self, row: dict[str, Any]) -> dict[str, int]:
        """Predict a row of `unfinished_shards`, and return the number of its documents."""
        documents = pa.ipc.open_stream(row["documents"]).read_all()
        with whole_file(self.output / row["name"]) as temporary:
            self.predict(documents, temporary)
        return {"rows": len(documents)}


def unfinished_shards(number: int, source: Source, form: str, finished: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Yield the shards of a source whose files are not in `finished`: the name of the file, and an Arrow stream.

    Args:
        number: number of the source among those of the job.
        source: the documents.
        form: ending of the files.
        finished: names of the files that exist.
    """
    for shard, documents in enumerate(source.shards()):
        name = f"part-{number:05d}-{shard:06d}.{form}"
        if name not in finished:
            stream = pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, documents.schema) as writer:
                writer.write_table(documents)
            yield {"name": name, "documents": stream.getvalue().to_pybytes()}


def predict_shards(
    sources: Sequence[Source],
    open_predictor: OpenPredictor,
    output: Path,
    form: str,
    reserved: dict[str, float] | None,
    most: int | None = None,
) -> Iterator[int]:
    """Predict the shards without a file in a directory, and yield the number of documents of each.

    Args:
        sources: the documents, in a fixed order. Every node must see the files that they read, and `output`.
        open_predictor: opens the model, once in each actor.
        output: directory of the shards' files.
        form: ending of the files.
        reserved: what Ray reserves for an actor: CPU, GPU and memory in bytes; with None, this process predicts.
        most: largest number of actors; by default all that fit on the cluster.

    Raises:
        SettingsError: the cluster's nodes have no room for the actors, or PyTorch sees no GPU there.
        RuntimeError: a reader task or an actor failed.
    """
    for leftover in output.glob(".part-*"):  # of an actor that was killed
        leftover.unlink(missing_ok=True)
    # Listed once: a reader task that Ray retries must yield the same shards in the same order.
    finished = frozenset(path.name for path in output.glob("part-*"))
    if reserved is None:
        writer = ShardWriter(open_predictor, output)
        for number, source in enumerate(sources):
            for row in unfinished_shards(number, source, form, finished):
                yield writer(row)["rows"]
        return
    connect()
    import ray.data

    # Memory spreads the actors; a model that is larger than every node's share of it is not refused.
    processors = {kind: reserved[kind] for kind in ("CPU", "GPU") if reserved[kind]}
    reserved = {**reserved, "memory": reservable_memory(reserved["memory"], most or 1, processors)}
    needed = {kind: amount for kind, amount in reserved.items() if amount}
    if (fit := wait_for_room(most or 1, needed)) < (most or 1):
        raise SettingsError(
            f"{most or 1} predictors × {reserved['CPU']:g} CPUs and {reserved['GPU']:g} GPUs are required, but the "
            f"cluster's nodes have room for {fit}; lower resources.cpus_per_worker or resources.gpus_per_predictor, "
            "or of axml-ray predict --actors, --cpus-per-actor or --gpus-per-actor"
        )
    if reserved["GPU"]:
        from axml_ray.cluster.tasks import check_device

        check_device(reserved_device, reserved)  # of an actor that cannot start, Ray prints many tracebacks
    quiet_data()
    context = ray.data.DataContext.get_current().copy()
    context.target_max_block_size = BLOCK_BYTES
    numbers = [{"number": number} for number in range(len(sources))]
    with ray.data.DataContext.current(context):
        written = (
            ray.data.from_items(numbers, override_num_blocks=len(sources))
            .flat_map(
                lambda row: unfinished_shards(row["number"], sources[row["number"]], form, finished),
                num_cpus=0,  # the actors hold all CPUs
                # Each task is a process: enough to keep the actors busy, but not one for each of thousands of files.
                compute=ray.data.TaskPoolStrategy(size=min(len(sources), (most or fit) + 1)),
            )
            .map(
                ShardWriter,
                fn_constructor_args=(open_predictor, output, held_leases()),
                # Ray adds actors while shards wait and the cluster has room, which it may have later, too.
                compute=ray.data.ActorPoolStrategy(
                    min_size=1, max_size=most, initial_size=min(most or fit, len(sources))
                ),
                num_cpus=reserved["CPU"],
                num_gpus=reserved["GPU"] or None,
                memory=reserved["memory"],
            )
        )
    try:
        for row in written.iter_rows():
            yield int(row["rows"])
    except ray.exceptions.RayError as error:
        raise failure(error, f"{root_cause(error)}; run the same command again to continue from here") from error
