"""Arrays in a safetensors file with a format, a version and a cache key, checked when it is opened.

A file may be of another version, cut short or edited, and one in a bundle may come from a stranger.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from scipy import sparse

from axml_ray.files import save_tensors, whole_file

KEY = "key"


def key_of(path: Path, about: Mapping[str, str]) -> str | None:
    """The cache key that a file was saved with; None where there is no complete file of this format.

    Args:
        path: of the file.
        about: its format and version.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return checked_metadata(file.metadata(), about).get(KEY)
    except (OSError, ValueError, SafetensorError):
        return None


def save_arrays(arrays: Mapping[str, np.ndarray], path: Path, about: Mapping[str, str], key: str) -> None:
    """Write arrays; a reader sees the old file or the new one.

    Args:
        arrays: by name.
        path: where to.
        about: the file's format and version, and further metadata.
        key: cache key of all that the arrays depend on.
    """
    with whole_file(path) as temporary:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        save_tensors(tensors, temporary, {**about, KEY: key})


def open_arrays(path: Path, about: Mapping[str, str]) -> tuple[dict[str, np.ndarray], Mapping[str, str]]:
    """The arrays of a file that `save_arrays` wrote, memory-mapped, and its metadata.

    Args:
        path: of the file.
        about: the expected format and version.

    Raises:
        FileNotFoundError: no such file.
        ValueError, SafetensorError: it has another format or version, or is broken.
    """
    with safe_open(path, framework="pt") as file:
        told = checked_metadata(file.metadata(), about)
        return {name: file.get_tensor(name).numpy() for name in sorted(file.keys())}, told


def checked_metadata(metadata: Mapping[str, str] | None, about: Mapping[str, str]) -> Mapping[str, str]:
    """Metadata that has the expected format and version.

    Raises:
        ValueError: it does not.
    """
    found = metadata or {}
    for key, expected in about.items():
        if found.get(key) != expected:
            raise ValueError(f"its {key} is {found.get(key)!r}, not {expected!r}")
    return found


def matrix(parts: Iterable[np.ndarray], shape: tuple[int, int], name: str) -> sparse.csr_matrix:
    """A float32 CSR matrix of `shape` from its values, columns and offsets, which share its memory.

    Raises:
        ValueError: they do not form one; the message starts with `name`.
    """
    values, columns, offsets = parts
    if (values.dtype, columns.dtype, offsets.dtype) != (np.float32, np.int32, np.int64):
        raise ValueError(f"{name} is of other types")
    if offsets.shape != (shape[0] + 1,) or offsets[0] or offsets[-1] != len(values) or (np.diff(offsets) < 0).any():
        raise ValueError(f"{name} does not have {shape[0]:,} rows")
    if columns.shape != values.shape or columns.min(initial=0) < 0 or columns.max(initial=-1) >= shape[1]:
        raise ValueError(f"{name} has columns beyond the {shape[1]:,} there are")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} has values that are not finite")
    return sparse.csr_matrix((values, columns, offsets), shape=shape)
