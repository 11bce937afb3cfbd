"""What a file of safetensors says, checked before it is used: it may be of another version, cut short or edited."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from scipy import sparse

from axml_ray.files import save_tensors, whole_file

FINGERPRINT = "fingerprint"


def fingerprint_of(path: Path, about: Mapping[str, str]) -> str | None:
    """The fingerprint that a file was saved with; None where no whole file of this format lies.

    Args:
        path: of the file.
        about: its format and version.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return checked_metadata(file.metadata(), about).get(FINGERPRINT)
    except (OSError, ValueError, SafetensorError):
        return None


def save_arrays(arrays: Mapping[str, np.ndarray], path: Path, about: Mapping[str, str], fingerprint: str) -> None:
    """Write arrays; a reader sees the old file or the whole new one.

    Args:
        arrays: by name.
        path: where to.
        about: the file's format and version, and what else it says of itself.
        fingerprint: of what they depend on.
    """
    with whole_file(path) as temporary:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        save_tensors(tensors, temporary, {**about, FINGERPRINT: fingerprint})


def open_arrays(path: Path, about: Mapping[str, str]) -> tuple[dict[str, np.ndarray], Mapping[str, str]]:
    """The arrays of a file that `save_arrays` wrote, mapped, and what it says of itself.

    Args:
        path: of the file.
        about: the format and version that it should be of.

    Raises:
        FileNotFoundError: no such file.
        ValueError, SafetensorError: it isn't of these, or no whole file.
    """
    with safe_open(path, framework="pt") as file:
        told = checked_metadata(file.metadata(), about)
        return {name: file.get_tensor(name).numpy() for name in sorted(file.keys())}, told


def checked_metadata(metadata: Mapping[str, str] | None, about: Mapping[str, str]) -> Mapping[str, str]:
    """What a file says of itself.

    Raises:
        ValueError: it is of another format or version.
    """
    found = metadata or {}
    for key, expected in about.items():
        if found.get(key) != expected:
            raise ValueError(f"its {key} is {found.get(key)!r}, not {expected!r}")
    return found


def matrix(parts: Iterable[np.ndarray], shape: tuple[int, int], name: str) -> sparse.csr_matrix:
    """A float32 CSR matrix of `shape` from its values, columns and offsets, which share its memory.

    Raises:
        ValueError: they aren't one; the message calls it by `name`.
    """
    values, columns, offsets = parts
    if (values.dtype, columns.dtype, offsets.dtype) != (np.float32, np.int32, np.int64):
        raise ValueError(f"{name} is of other types")
    if offsets.shape != (shape[0] + 1,) or offsets[0] or offsets[-1] != len(values) or (np.diff(offsets) < 0).any():
        raise ValueError(f"{name} hasn't {shape[0]:,} rows")
    if columns.shape != values.shape or columns.min(initial=0) < 0 or columns.max(initial=-1) >= shape[1]:
        raise ValueError(f"{name} has columns beyond the {shape[1]:,} there are")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} has values that aren't finite")
    return sparse.csr_matrix((values, columns, offsets), shape=shape)
