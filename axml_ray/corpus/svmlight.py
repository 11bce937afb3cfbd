"""Reads label features from a file of SVMlight lines, for labels or for documents.

- `label<TAB>feature:value feature:value …` gives the features of a label, written as in the corpus. Without a tab, the
  label ends at the first blank.
- `label,label feature:value …` is a document, as in the Extreme Classification Repository's bags of words, whose first
  line of three counts is skipped. The document's vector, scaled to length one, is added to each of its labels.

The lines of a label are summed. Feature numbers begin at 0 or 1, whichever the file's smallest number indicates. A
trained label without a line has no features. The lines of trained labels are held in memory, 8 bytes per number.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy import sparse

from axml_ray.corpus.composition import composed
from axml_ray.corpus.label_features import keep_strongest, label_ranges, normalize_rows
from axml_ray.corpus.line_blocks import Damage, read_line_blocks
from axml_ray.settings import SettingsError

BLOCK_BYTES = 1 << 22
MAX_FEATURE = 2**31 - 2


def convert_features(path: Path, labels: Path, max_terms: int | None, output: Path) -> None:
    """Convert a file of features to `label_features.npz`: CSR [trained labels, features], rows of length one.

    Args:
        path: file of SVMlight lines, plain or compressed.
        labels: `labels.parquet` of the corpus.
        max_terms: maximum number of features of a label; None for no limit.
        output: file to write.

    Raises:
        SettingsError: the file cannot be read, a line is invalid, or no line is of a trained label.
    """
    table = pq.read_table(labels, columns=["label", "count"])
    names = table["label"].filter(pc.greater(table["count"], 0)).to_pylist()
    lines = _LabelLines({name: number for number, name in enumerate(names)}, path)
    for number, line in _read_lines(path):
        lines.add(number, line)
    if not lines.labels:
        raise SettingsError(f"corpus.label_features: {path}: has none of the corpus' {len(names):,} labels")
    vectors = lines.matrix()
    label_of_pair, row_of_pair = np.frombuffer(lines.labels, np.int32), np.frombuffer(lines.rows, "q")
    order = np.argsort(label_of_pair, kind="stable")
    counts = np.bincount(label_of_pair, minlength=len(names))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    parts = []
    # Before they are cut, sums of documents have many terms, so labels are summed range by range.
    for begin, end in label_ranges(counts, vectors.nnz / vectors.shape[0]):
        rows = row_of_pair[order[offsets[begin] : offsets[end]]]
        shape = (end - begin, vectors.shape[0])
        assignments = sparse.csr_matrix(
            (np.ones(len(rows), np.float32), rows, offsets[begin : end + 1] - offsets[begin]), shape
        )
        parts.append(keep_strongest((assignments @ vectors).tocsr(), max_terms))
    sparse.save_npz(output, sparse.vstack(parts, format="csr"), compressed=False)


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines, numbered from 1, that are neither empty nor comments nor the header."""
    number = 0
    try:
        for content in read_line_blocks(path, BLOCK_BYTES):
            if isinstance(content, Damage):
                raise _invalid(path, number + 1, content.reason)
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError as error:
                line_number = number + 1 + content.count(b"\n", 0, error.start)
                raise _invalid(path, line_number, f"not UTF-8 ({error.reason})") from None
            # Not splitlines(): a label may contain other characters that Unicode counts as line ends.
            for line in text.removesuffix("\n").split("\n"):
                number += 1
                comment = line.lstrip().startswith("#") and "\t" not in line  # a label before a tab may begin with #
                if line.strip() and not comment and not (number == 1 and _is_header(line)):
                    yield number, line
    except OSError as error:
        raise SettingsError(f"corpus.label_features: {path} cannot be read: {error.strerror or error}") from None


def _is_header(line: str) -> bool:
    """Return whether a line is the Extreme Classification Repository's header: three numbers."""
    words = line.split(" ")
    return len(words) == 3 and all(word.strip().isdecimal() for word in words)


class _LabelLines:
    """Collects the lines that have a trained label.

    Args:
        id_of: ids of the trained labels.
        path: path of the file, for error messages.

    Attributes:
        labels, rows: a pair of label id and row of `matrix` for each trained label of each line.
    """

    def __init__(self, id_of: dict[str, int], path: Path):
        self.id_of, self.path = id_of, path
        self.labels, self.rows = array("i"), array("q")
        self._indices, self._values, self._ends = array("i"), array("f"), array("q", [0])

    def add(self, number: int, line: str) -> None:
        """Add a line if it has a trained label.

        Raises:
            SettingsError: the line is invalid.
        """
        has_tab = "\t" in line
        name, _, rest = line.partition("\t") if has_tab else line.partition(" ")
        indices, values = self._parse_features(number, rest)
        name = composed(name)
        names = [name.strip()] if has_tab or name in self.id_of else name.split(",")
        ids = {self.id_of[name] for name in names if name in self.id_of}
        if ids:
            self.labels.extend(sorted(ids))
            self.rows.extend([len(self._ends) - 1] * len(ids))
            self._indices.extend(indices)
            self._values.extend(values)
            self._ends.append(len(self._indices))

    def _parse_features(self, number: int, rest: str) -> tuple[list[int], list[float]]:
        pairs = [cell.rpartition(":") for cell in rest.partition("#")[0].split()]
        try:
            indices = [int(index) for index, _, _ in pairs]
            values = np.array([float(value) for _, _, value in pairs], dtype=np.float32)
        except ValueError:
            raise _invalid(self.path, number, "expected feature:value after the label") from None
        if min(indices, default=0) < 0 or max(indices, default=0) > MAX_FEATURE or not np.isfinite(values).all():
            raise _invalid(self.path, number, f"a feature isn't within 0 and {MAX_FEATURE:,}, or a value isn't finite")
        return indices, values.tolist()

    def matrix(self) -> sparse.csr_matrix:
        """Return the collected lines, float32 CSR, rows of length one."""
        indices, values = np.array(self._indices, np.int32), np.array(self._values, np.float32)
        indices -= min(int(indices.min(initial=1)), 1)
        shape = (len(self._ends) - 1, int(indices.max(initial=0)) + 1)
        matrix = sparse.csr_matrix((values, indices, np.frombuffer(self._ends, "q")), shape=shape)
        normalize_rows(matrix)
        return matrix


def _invalid(path: Path, line: int, reason: str) -> SettingsError:
    return SettingsError(f"corpus.label_features: {path}:{line}: {reason}")
