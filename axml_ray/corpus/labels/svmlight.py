"""Reads label features from a file of SVMlight lines, for labels or for documents.

- `label<TAB>feature:value feature:value …` gives the features of a label, written as in the corpus. Without a tab, the
  label ends at the first blank.
- `label,label feature:value …` is a document, as in the Extreme Classification Repository's bags of words, whose first
  line of three counts is skipped. The document's vector, scaled to length one, is added to each of its labels.
- `feature:value …` below a first line of two counts, labels and features, gives in row i the features of label i, as in
  the repository's `lbl_X_Xf.txt`; labels are numbers from 0, or from 1 if the last row belongs to one. Below three
  counts, lines are read like this if the first of them begins with a feature.

The lines of a label are summed. Feature numbers begin at 0 or 1, whichever the file's smallest number indicates. A
trained label without a line has no features. The lines of trained labels are held in memory, 8 bytes per number.
"""

import re
from array import array
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy import sparse

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.labels.label_features import keep_strongest, label_ranges, normalize_rows
from axml_ray.corpus.labels.name_files import numbered_from
from axml_ray.corpus.readers.line_blocks import Damage, read_line_blocks
from axml_ray.corpus.text.composition import composed

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
    lines.read(_read_lines(path), set(table["label"].to_pylist()))
    if not lines.labels:
        raise SettingsError(
            f"corpus.label_features: {path}: has none of the corpus' {len(names):,} labels, such as {names[0]!r}; "
            "begin a line with its label, or give row i to the label i"
        )
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
    """Yield the lines, numbered from 1."""
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
                yield number, line
    except SettingsError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"corpus.label_features: {path} cannot be read: {reason}") from None


def _header(line: str) -> list[int]:
    """Return the two or three counts of the Extreme Classification Repository's header; empty if it is none."""
    words = line.split()
    return [int(word) for word in words] if len(words) in (2, 3) and all(map(str.isdecimal, words)) else []


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

    def read(self, content: Iterator[tuple[int, str]], labels: Collection[str]) -> None:
        """Add those of a file's lines that have a trained label.

        Args:
            content: the lines, numbered.
            labels: all labels of the corpus, by which it is known whether rows count from 0 or 1.

        Raises:
            SettingsError: a line is invalid, or there are more or fewer rows than the header says.
        """
        beginning = list(islice(content, 2))
        header = _header(beginning[0][1]) if beginning else []
        content = chain(beginning[1:] if header else beginning, content)
        if len(header) == 2 or (header and re.match(r"\d+:", beginning[-1][1])):
            self._read_rows(content, header[0], numbered_from(labels, header[0]))
            return
        for number, line in content:
            has_tab = "\t" in line
            if not line.strip() or (line.lstrip().startswith("#") and not has_tab):  # a label may begin with #
                continue
            name, _, rest = line.partition("\t") if has_tab else line.partition(" ")
            name = composed(name)
            self._add(number, [name.strip()] if has_tab or name in self.id_of else name.split(","), rest)

    def _read_rows(self, content: Iterator[tuple[int, str]], rows: int, first: int) -> None:
        """Add `rows` rows of features, of labels that are counted from `first`."""
        row = 0
        for row, (number, line) in enumerate(content, 1):
            if row <= rows:
                self._add(number, [str(first + row - 1)], line)
            elif line.strip():
                raise _invalid(self.path, number, f"is row {row:,}, but the first line says that there are {rows:,}")
        if row < rows - 1:  # the last row may be empty, without a line feed
            reason = f"has {row:,} rows, but its first line says that there are {rows:,}"
            raise SettingsError(f"corpus.label_features: {self.path} {reason}; it may be cut short")

    def _add(self, number: int, names: Iterable[str], features: str) -> None:
        """Add a line if one of its labels is trained."""
        indices, values = self._parse_features(number, features)
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
