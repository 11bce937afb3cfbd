"""The directories of a level: trained weights, checkpoints and the beams of all documents.

Each directory has a manifest that is written last and lists every file with its size; the directory appears under its
name atomically. Replicated tensors are in one file. A checkpoint has the rows of the label table in one file per worker
(worker r of W has the rows r, r + W, ...), and any number of workers can read them. Trained weights have them in one
file and in their order, so that processes on one machine share its memory.
"""

import logging
import math
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from axml_ray.core import storage
from axml_ray.core.array_file import create_arrays
from axml_ray.core.errors import JobError
from axml_ray.core.files import (
    finish_replacement,
    read_json,
    save_tensors,
    temporary_directory,
    whole_directory,
    write_json,
)
from axml_ray.network.level_network import TABLE, LevelNetwork
from axml_ray.network.sharding import Shard
from axml_ray.training.distributed import DistributedContext

log = logging.getLogger(__name__)

VERSION = 2
LEVEL, LEVEL_MANIFEST = "axml-ray level", "level.json"
MODEL, ROWS = "model.safetensors", "rows-{}.safetensors"
JOINED_ROWS = 1 << 14
"""Rows that are copied at a time when the files of workers are joined."""


@contextmanager
def write_together(
    directory: Path, context: DistributedContext, manifest_name: str, content: dict[str, Any]
) -> Iterator[Path]:
    """Yield a temporary directory that all workers write into, and that then replaces `directory`.

    Args:
        directory: final path, at a URL or on a file system that the workers share.
        context: the distributed context.
        manifest_name: name of the manifest, which rank 0 adds with the sizes of the other files.
        content: further keys of the manifest.
    """
    suffix = f"{int(context.from_first(torch.tensor([secrets.randbits(32)]))):08x}"
    writer = (
        whole_directory(directory, suffix) if context.is_first else nullcontext(temporary_directory(directory, suffix))
    )
    with writer as work:
        context.barrier()
        is_mine = storage.join_directory(work)
        try:
            yield work
            context.barrier()
        finally:
            if is_mine:
                shutil.rmtree(work)
        if context.is_first:
            sizes = {name: file.size for name, file in storage.shared(work).items()}
            sizes |= {path.name: path.stat().st_size for path in sorted(work.iterdir()) if path.is_file()}
            write_manifest(work / manifest_name, context.world_size, sizes, content)
    context.barrier()


def write_manifest(path: Path, workers: int, sizes: dict[str, int], content: dict[str, Any]) -> None:
    """Write the manifest of the files of all workers, given their sizes in bytes by name, and its further keys."""
    write_json(path, {"version": VERSION, "workers": workers, "files": sizes, **content})


def read_manifest(directory: Path, name: str, form: str, key: str | None = None) -> dict[str, Any] | None:
    """Return the manifest of a directory that is complete and has this cache key; else None.

    Complete is a directory whose manifest lists the rows of all workers that wrote it, with all files as it lists them.

    Args:
        directory: as `write_together` made it.
        name: file name of the manifest.
        form: expected `format`.
        key: expected cache key, in the manifest as `fingerprint`; by default any.
    """
    try:
        storage.fetch(directory, [name])
        finish_replacement(directory)
        manifest = read_json(directory / name)
        key = manifest["fingerprint"] if key is None else key
        if (manifest["format"], manifest["version"], manifest["fingerprint"]) != (form, VERSION, key):
            return None
        sizes = dict.fromkeys(map(ROWS.format, range(manifest["workers"]))) | manifest["files"]
        stored = storage.sizes(directory)
    except storage.IncompleteError as error:
        log.warning("WARNING: %s; %s is not used", error, directory)
        return None
    except (OSError, ValueError, KeyError, TypeError):  # missing, damaged, or the manifest of something else
        return None
    for file, size in sizes.items():
        if stored.get(file, -1) != size:  # of rows that the manifest lacks, no size is known
            log.warning("WARNING: %s is missing or has another size; %s is not used", directory / file, directory)
            return None
    # Each worker fetches its rows alone.
    storage.fetch(directory, [file for file in sizes if not file.startswith(ROWS.partition("{")[0])])
    return manifest


def save_rows(work: Path, tables: dict[str, Tensor], shard: Shard) -> None:
    """Write this worker's rows of some tables, each [rows of the shard, X], by name."""
    path = work / ROWS.format(shard.rank)
    try:
        save_tensors({name: table.detach().contiguous() for name, table in tables.items()}, path)
    except BaseException:
        path.unlink(missing_ok=True)  # the space on a full disk must not wait for rank 0, which waits for this worker
        raise


def row_sizes(work: Path, context: DistributedContext) -> list[int]:
    """Return the sizes of the files of all workers' rows, each measured by its worker; all workers call this."""
    return [int(size) for size in context.gather(torch.tensor([(work / ROWS.format(context.rank)).stat().st_size]))]


def check_rows(work: Path, context: DistributedContext) -> None:
    """Check on rank 0 that it sees the rows that each worker has written; all workers call this.

    Raises:
        JobError: rank 0 does not see the file of another worker, so its manifest would not list all rows.
    """
    storage.share(work / ROWS.format(context.rank))
    sizes = row_sizes(work, context)
    if not context.is_first:
        return
    stored = {name: file.size for name, file in storage.shared(work).items()} | storage.sizes(work)
    for rank, size in enumerate(sizes):
        path = work / ROWS.format(rank)
        if stored.get(path.name) != size:
            raise JobError(
                f"{path}: worker {rank} wrote {size:,} bytes, which rank 0 does not see; check that all nodes share "
                "the run's directory, and run the command again"
            )


def load_rows(directory: Path, name: str, into: Tensor, written_by: int, shard: Shard) -> None:
    """Fill the shard of a table from saved rows.

    Args:
        directory: as `write_together` made it.
        name: name of the table.
        into: the shard's rows, [rows of the shard, X], written in place.
        written_by: number of workers that wrote the table.
        shard: this worker's part of the rows.
    """
    # Row i of shard r of R is row n = r + i·R of the level, which worker n mod W wrote as its row n div W. So its rows
    # are in the files of every gcd(R, W)-th worker.
    step = math.gcd(shard.count, written_by)
    for rank in range(shard.rank % step, written_by, step):
        storage.fetch(directory, [ROWS.format(rank)])
        with safe_open(directory / ROWS.format(rank), "pt") as file:
            rows = file.get_tensor(name)
        if written_by == shard.count:
            into.copy_(rows)
            continue
        ids = torch.arange(shard.rank, shard.rank + len(into) * shard.count, shard.count)
        mine = ids % written_by == rank
        into[mine] = rows[ids[mine] // written_by].to(into)


def is_saved(directory: Path, key: str) -> bool:
    """Return whether a level's trained weights are saved completely, with this cache key."""
    return read_manifest(directory, LEVEL_MANIFEST, LEVEL, key) is not None


def save_level(
    network: LevelNetwork, directory: Path, key: str, about: dict[str, Any], context: DistributedContext
) -> None:
    """Write a trained level's weights; each worker writes its rows of the label table, and rank 0 joins them.

    Args:
        network: the level's network, or this worker's shard of it.
        directory: where to write.
        key: cache key of the level.
        about: further keys of the manifest, such as the validation score.
        context: the distributed context.
    """
    content = {"format": LEVEL, "fingerprint": key, **about, "workers": 1}
    with write_together(directory, context, LEVEL_MANIFEST, content) as work:
        state = network.state_dict()
        save_rows(work, {TABLE: state.pop(TABLE)}, context.shard)
        check_rows(work, context)  # a barrier, too
        if context.is_first:
            save_tensors({name: value.contiguous() for name, value in state.items()}, work / MODEL)
            if context.world_size > 1:
                storage.collect(work)
                _join_rows(work, context.world_size)


def _join_rows(work: Path, workers: int) -> None:
    """Replace the files of several workers' rows by one of the whole table, which openers can memory-map.

    The file is written in place: the table may be larger than the memory that is free.
    """
    shards = [load_file(work / ROWS.format(rank))[TABLE] for rank in range(workers)]
    rows, width = sum(map(len, shards)), shards[0].shape[1]
    path = work / "rows.joining"
    table = create_arrays({TABLE: (np.dtype(np.float32), (rows, width))}, path, {})[TABLE]
    if rows * width:
        for rank, shard in enumerate(shards):
            for start in range(0, len(shard), JOINED_ROWS):
                block = shard[start : start + JOINED_ROWS].numpy()
                # Row i of the shard of worker r is row r + i·W of the table.
                first = rank + start * workers
                table[first : first + len(block) * workers : workers] = block
    for rank in range(workers):
        (work / ROWS.format(rank)).unlink()
    path.rename(work / ROWS.format(0))


def read_level(directory: Path) -> dict[str, Tensor]:
    """Return all weights of a saved level by name, memory-mapped.

    Raises:
        OSError, SafetensorError: a file is missing or damaged.
    """
    storage.fetch(directory)
    return load_file(directory / MODEL) | load_file(directory / ROWS.format(0))


@torch.no_grad()
def load_level(network: LevelNetwork, directory: Path) -> None:
    """Fill a network, or a shard of it, with a saved level's weights.

    Raises:
        ValueError: the file lacks a parameter of the network.
    """
    storage.fetch(directory)
    state = load_file(directory / MODEL)
    network.load_state_dict(state, strict=False)
    missing = network.state_dict().keys() - state.keys() - {TABLE}
    if missing:
        raise ValueError(
            f"{directory / MODEL}: the weights {', '.join(sorted(missing))} are missing; remove {directory} and train "
            "the level again"
        )
    load_rows(directory, TABLE, network.attention.weight, 1, network.shard)
