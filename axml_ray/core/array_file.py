"""Safetensors files of arrays with a format, a version and a cache key, which are checked when a file is opened.

A file may have another version, may be truncated or edited, and in a bundle it may come from an untrusted source.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from scipy import sparse

from axml_ray.core.files import reserve_space, save_tensors, whole_file

KEY = "key"
TYPE_NAMES = {np.dtype(np.float32): "F32", np.dtype(np.int32): "I32", np.dtype(np.int64): "I64"}
"""The names of dtypes in a safetensors file."""


def key_of(path: Path, about: Mapping[str, str]) -> str | None:
    """Return the cache key that a file was saved with; None if there is no complete file of this format.

    Args:
        path: file to read.
        about: expected format and version.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return checked_metadata(file.metadata(), about).get(KEY)
    except (OSError, ValueError, SafetensorError):
        return None


def save_arrays(arrays: Mapping[str, np.ndarray], path: Path, about: Mapping[str, str], key: str) -> None:
    """Write arrays, atomically.

    Args:
        arrays: arrays by name.
        path: file to write or replace.
        about: format and version of the file, and further metadata.
        key: cache key of everything that the arrays depend on.
    """
    with whole_file(path) as temporary:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        save_tensors(tensors, temporary, {**about, KEY: key})


def create_arrays(
    shapes: Mapping[str, tuple[np.dtype, tuple[int, ...]]], path: Path, metadata: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """Create a safetensors file of arrays to be filled, which may be larger than the memory that is free.

    Args:
        shapes: dtype and shape of each array by name: float32, int32 or int64.
        path: file to create.
        metadata: metadata of the file.

    Returns:
        The arrays by name, memory-mapped and writable.

    Raises:
        OSError: the disk is full.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in sorted(shapes.items(), key=lambda entry: -entry[1][0].itemsize):  # keeps all aligned
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": TYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format of safetensors: length of the header, header, values
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with path.open("r+b") as file:
        file.truncate(8 + len(text) + end)
    reserve_space(path)
    return {
        name: np.memmap(path, dtype, "r+", 8 + len(text) + header[name]["data_offsets"][0], shape)
        if math.prod(shape)
        else np.empty(shape, dtype)
        for name, (dtype, shape) in shapes.items()
    }


def open_arrays(path: Path, about: Mapping[str, str]) -> tuple[dict[str, np.ndarray], Mapping[str, str]]:
    """Open a file that `save_arrays` wrote; return its arrays, memory-mapped, and its metadata.

    Args:
        path: file to open.
        about: expected format and version.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError, SafetensorError: the file has another format or version, or is broken.
    """
    with safe_open(path, framework="pt") as file:
        metadata = checked_metadata(file.metadata(), about)
        return {name: file.get_tensor(name).numpy() for name in sorted(file.keys())}, metadata


def checked_metadata(metadata: Mapping[str, str] | None, about: Mapping[str, str]) -> Mapping[str, str]:
    """Return the metadata after checking its format and version.

    Raises:
        ValueError: the format or version is another one.
    """
    metadata = metadata or {}
    for key, expected in about.items():
        if metadata.get(key) != expected:
            raise ValueError(f"its {key} is {metadata.get(key)!r}, not {expected!r}")
    return metadata


def matrix(parts: Iterable[np.ndarray], shape: tuple[int, int], name: str, *, check: bool = True) -> sparse.csr_matrix:
    """Return a float32 CSR matrix of `shape` that shares the memory of its values, columns and offsets.

    Without `check`, values and columns are not read; the rows that are used must then pass `check_rows`.

    Raises:
        ValueError: they do not form such a matrix; the message starts with `name`.
    """
    values, columns, offsets = parts
    if (values.dtype, columns.dtype, offsets.dtype) != (np.float32, np.int32, np.int64):
        raise ValueError(f"{name} is of other types")
    if offsets.shape != (shape[0] + 1,) or offsets[0] or offsets[-1] != len(values) or (np.diff(offsets) < 0).any():
        raise ValueError(f"{name} does not have {shape[0]:,} rows")
    if columns.shape != values.shape:
        raise ValueError(f"{name} has {len(columns):,} columns for {len(values):,} values")
    rows = sparse.csr_matrix((values, columns, offsets), shape=shape)
    if check:
        check_rows(rows, name)
    return rows


def check_rows(rows: sparse.csr_matrix, name: str) -> None:
    """Check the columns and values of a matrix that `matrix` made, or of some of its rows.

    Raises:
        ValueError: a column is out of range, or a value not finite; the message starts with `name`.
    """
    columns = rows.indices
    if columns.min(initial=0) < 0 or columns.max(initial=-1) >= rows.shape[1]:
        raise ValueError(f"{name} has columns beyond the {rows.shape[1]:,} there are")
    if not np.isfinite(rows.data).all():
        raise ValueError(f"{name} has values that are not finite")
