"""What a file of safetensors says, checked before it is used: it may be of another version, cut short or edited."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from scipy import sparse

from axml_ray.ragged import Ragged

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


def is_ragged(rows: Ragged) -> bool:
    """Whether these are rows of numbers from 0 on."""
    values, offsets = rows.values, rows.offsets
    if (values.dtype, offsets.dtype, values.ndim, offsets.ndim) != (np.int32, np.int64, 1, 1) or not len(offsets):
        return False
    ends = not offsets[0] and offsets[-1] == len(values) and not (rows.lengths < 0).any()
    return bool(ends and values.min(initial=0) >= 0)


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
