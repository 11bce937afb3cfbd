"""A level on disk: its weights when it is finished, its whole state while it trains, what it found in the corpus.

Each is a directory with a manifest that is written last and names every file with its size; the directory appears
under its name whole or not at all. Replicated tensors lie in one file, the rows of the label table in one a worker
(worker r of W has the rows r, r + W, ...), and are read again by any number of workers.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from axml_ray.files import read_json, save_tensors, write_json
from axml_ray.network.level_network import TABLE, LevelNetwork
from axml_ray.network.sharding import Shard
from axml_ray.training.workers import Workers

VERSION = 2
LEVEL, LEVEL_MANIFEST = "axml-ray level", "level.json"
MODEL, ROWS = "model.safetensors", "rows-{}.safetensors"


@contextmanager
def written_together(directory: Path, workers: Workers, manifest: str, about: dict[str, Any]) -> Iterator[Path]:
    """A directory that all workers write into and that then takes the place of `directory`.

    Args:
        directory: its name, on a file system that the workers share.
        workers: who writes.
        manifest: name of the file that the first worker adds, with the other files' sizes.
        about: what else it says.
    """
    work, old = _beside(directory)
    if workers.first:
        shutil.rmtree(work, ignore_errors=True)  # a killed worker's
        work.mkdir(parents=True)
    workers.barrier()
    yield work
    workers.barrier()
    if workers.first:
        files = sorted(path for path in work.iterdir() if path.is_file())
        for path in files:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sizes = {path.name: path.stat().st_size for path in files}
        write_json(work / manifest, {"version": VERSION, "workers": workers.count, "files": sizes, **about})
        shutil.rmtree(old, ignore_errors=True)
        if directory.exists():
            directory.rename(old)
        work.rename(directory)
        shutil.rmtree(old, ignore_errors=True)
    workers.barrier()


def _beside(directory: Path) -> tuple[Path, Path]:
    """Where a new directory is written, and where the old one is for a moment."""
    return directory.with_name(f".{directory.name}.writing"), directory.with_name(f".{directory.name}.old")


def put_back(directory: Path, workers: Workers) -> None:
    """The old directory under its name again, if a kill came before the new one had it."""
    _, old = _beside(directory)
    if workers.first and old.exists() and not directory.exists():
        old.rename(directory)
    workers.barrier()


def remove(directory: Path, workers: Workers) -> None:
    """Remove a directory, and what kills left of others in its place."""
    if workers.first:
        for path in (directory, *_beside(directory)):
            shutil.rmtree(path, ignore_errors=True)


def manifest_of(directory: Path, manifest: str, form: str, mark: str) -> dict[str, Any] | None:
    """The manifest, if the directory is whole and was made for the same settings; else None.

    Args:
        directory: as `written_together` made it.
        manifest: its file.
        form: `format` of the manifest.
        mark: `fingerprint` of the manifest.
    """
    try:
        found = read_json(directory / manifest)
        whole = (
            found["format"] == form
            and found["version"] == VERSION
            and found["fingerprint"] == mark
            and all((directory / name).stat().st_size == size for name, size in found["files"].items())
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if whole else None


def save_rows(work: Path, tables: dict[str, Tensor], shard: Shard) -> None:
    """Write a worker's rows of some tables."""
    save_tensors({name: table.detach().contiguous() for name, table in tables.items()}, work / ROWS.format(shard.rank))


def load_rows(directory: Path, name: str, into: Tensor, written_by: int, shard: Shard) -> None:
    """Fill a shard's table, [its rows, X], from the files of `written_by` workers."""
    for rank in [shard.rank] if written_by == shard.count else range(written_by):
        with safe_open(directory / ROWS.format(rank), "pt") as file:
            rows = file.get_tensor(name)
        if written_by == shard.count:
            into.copy_(rows)
            continue
        # row i here is row r + i·R of the level, which worker (r + i·R) mod W wrote
        ids = torch.arange(shard.rank, shard.rank + len(into) * shard.count, shard.count)
        mine = ids % written_by == rank
        into[mine] = rows[ids[mine] // written_by].to(into)


def finished(directory: Path, mark: str) -> bool:
    """Whether a level is saved whole, with this fingerprint."""
    return manifest_of(directory, LEVEL_MANIFEST, LEVEL, mark) is not None


def save_level(network: LevelNetwork, directory: Path, mark: str, about: dict[str, Any], workers: Workers) -> None:
    """Write a trained level's weights, each worker its rows."""
    about = {"format": LEVEL, "fingerprint": mark, **about}
    with written_together(directory, workers, LEVEL_MANIFEST, about) as work:
        state = network.state_dict()
        save_rows(work, {TABLE: state.pop(TABLE)}, workers.shard)
        if workers.first:
            save_tensors({name: value.contiguous() for name, value in state.items()}, work / MODEL)


def read_level(directory: Path) -> dict[str, Tensor]:
    """All weights of a saved level by name, mapped from its files; a table that several workers wrote is joined.

    Raises:
        OSError, ValueError, SafetensorError: a file is missing or not what it should be.
    """
    state = load_file(directory / MODEL)
    written_by = read_json(directory / LEVEL_MANIFEST)["workers"]
    parts = [load_file(directory / ROWS.format(rank))[TABLE] for rank in range(written_by)]
    if written_by == 1:
        return {**state, TABLE: parts[0]}
    joined = torch.empty(sum(map(len, parts)), parts[0].shape[1], dtype=parts[0].dtype)
    for rank, rows in enumerate(parts):
        joined[rank::written_by] = rows
    return {**state, TABLE: joined}


@torch.no_grad()
def load_level(network: LevelNetwork, directory: Path) -> None:
    """Fill a network, or a shard of it, with a saved level's weights."""
    state = load_file(directory / MODEL)
    network.load_state_dict(state, strict=False)
    missing = network.state_dict().keys() - state.keys() - {TABLE}
    if missing:
        raise ValueError(f"{directory / MODEL}: {', '.join(sorted(missing))} missing")
    written_by = read_json(directory / LEVEL_MANIFEST)["workers"]
    load_rows(directory, TABLE, network.attention.weight, written_by, network.shard)
