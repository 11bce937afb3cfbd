"""Label features from a file: lines of SVMlight, `label<TAB>feature:value feature:value …`.

The label is written as the corpus writes it; before the tab, or without a tab before the first blank. Features are
counted from 0 or 1, as the smallest that occurs says. A trained label without a line has no features.
"""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy import sparse

from axml_ray.corpus.places import Damage, line_blocks
from axml_ray.settings import SettingsError


def read_features(path: Path, labels: Path, written: Path) -> None:
    """Write the features of the trained labels of `labels.parquet` as `label_features.npz`, rows of length one.

    Raises:
        SettingsError: the file cannot be read, a line is no such line, or no label has one.
    """
    table = pq.read_table(labels, columns=["label", "count"])
    names = table["label"].filter(pc.greater(table["count"], 0)).to_pylist()
    id_of = {name: number for number, name in enumerate(names)}
    rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    line = 0
    try:
        for content in line_blocks(path, 1 << 22):
            if isinstance(content, Damage):
                raise _wrong(path, line + 1, content.reason)
            for given in content.decode("utf-8").splitlines():
                line += 1
                if not given.strip() or given.lstrip().startswith("#"):
                    continue
                name, found = _line(path, line, given)
                if name in id_of:
                    rows[id_of[name]] = found
    except OSError as error:
        raise SettingsError(f"corpus.label_features: {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"corpus.label_features: {path}: not UTF-8 ({error.reason})") from None
    if not rows:
        raise SettingsError(f"corpus.label_features: {path}: has none of the corpus' {len(names):,} labels")
    least = min((int(indices.min()) for indices, _ in rows.values() if len(indices)), default=0)
    first = min(least, 1)
    empty = np.empty(0, np.int64), np.empty(0, np.float32)
    parts = [rows.get(number, empty) for number in range(len(names))]
    offsets = np.concatenate([[0], np.cumsum([len(indices) for indices, _ in parts])])
    indices = np.concatenate([indices for indices, _ in parts]) - first
    data = np.concatenate([values for _, values in parts]).astype(np.float32)
    matrix = sparse.csr_matrix((data, indices, offsets), shape=(len(names), int(indices.max(initial=0)) + 1))
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    lengths[lengths == 0] = 1
    matrix = (sparse.diags(1 / lengths) @ matrix).tocsr().astype(np.float32)
    matrix.sort_indices()
    sparse.save_npz(written, matrix, compressed=False)


def _line(path: Path, number: int, line: str) -> tuple[str, tuple[np.ndarray, np.ndarray]]:
    name, _, rest = line.partition("\t") if "\t" in line else line.partition(" ")
    pairs = [cell.rpartition(":") for cell in rest.partition("#")[0].split()]
    try:
        indices = np.array([int(index) for index, _, _ in pairs], dtype=np.int64)
        values = np.array([float(value) for _, _, value in pairs], dtype=np.float32)
    except ValueError:
        raise _wrong(path, number, "expected feature:value after the label") from None
    if (indices < 0).any() or not np.isfinite(values).all():
        raise _wrong(path, number, "a feature is below 0, or a value isn't finite")
    return name.strip(), (indices, values)


def _wrong(path: Path, line: int, reason: str) -> SettingsError:
    return SettingsError(f"corpus.label_features: {path}:{line}: {reason}")
