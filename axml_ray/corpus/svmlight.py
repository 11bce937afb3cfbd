"""Label features from a file of SVMlight lines, for labels or for documents.

- `label<TAB>feature:value feature:value …` gives a label its features; before the tab stands the label as the corpus
  writes it. Without a tab it is what stands before the first blank.
- `label,label feature:value …` is a document, as in the Extreme Classification Repository's bags of words, whose first
  line, of three counts, is passed over. It is added, scaled to length one, to each of its labels.

A label of several lines has the sum of them. Features are counted from 0 or 1, as the smallest that occurs says. A
trained label without a line has no features. What the lines of trained labels hold is held, 8 bytes a number.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy import sparse

from axml_ray.corpus.label_features import label_ranges, strongest, to_length_one
from axml_ray.corpus.places import Damage, line_blocks
from axml_ray.settings import SettingsError

BLOCK_BYTES = 1 << 22
LARGEST = 2**31 - 2


def read_features(path: Path, labels: Path, max_terms: int | None, written: Path) -> None:
    """Write the features of the trained labels of `labels.parquet` as `label_features.npz`, rows of length one.

    Args:
        path: of the lines, plain or compressed.
        labels: `labels.parquet`.
        max_terms: strongest terms that a label keeps; None for all.
        written: where to.

    Raises:
        SettingsError: the file cannot be read, a line is no such line, or no label has one.
    """
    table = pq.read_table(labels, columns=["label", "count"])
    names = table["label"].filter(pc.greater(table["count"], 0)).to_pylist()
    found = _Lines({name: number for number, name in enumerate(names)}, path)
    for number, line in _lines(path):
        found.add(number, line)
    if not found.labels:
        raise SettingsError(f"corpus.label_features: {path}: has none of the corpus' {len(names):,} labels")
    vectors, of_label, of_line = found.matrix(), np.frombuffer(found.labels, np.int32), np.frombuffer(found.rows, "q")
    order = np.argsort(of_label, kind="stable")
    counts = np.bincount(of_label, minlength=len(names))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    parts = []
    # Sums of documents are long before they are cut, so a range of labels is summed at a time.
    for begin, end in label_ranges(counts, vectors.nnz / vectors.shape[0]):
        lines = of_line[order[offsets[begin] : offsets[end]]]
        shape = (end - begin, vectors.shape[0])
        given = sparse.csr_matrix(
            (np.ones(len(lines), np.float32), lines, offsets[begin : end + 1] - offsets[begin]), shape
        )
        parts.append(strongest((given @ vectors).tocsr(), max_terms))
    sparse.save_npz(written, sparse.vstack(parts, format="csr"), compressed=False)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that say something, numbered from 1."""
    number = 0
    try:
        for content in line_blocks(path, BLOCK_BYTES):
            if isinstance(content, Damage):
                raise _wrong(path, number + 1, content.reason)
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError as error:
                at = number + 1 + content.count(b"\n", 0, error.start)
                raise _wrong(path, at, f"not UTF-8 ({error.reason})") from None
            # Only these end a line: a label may hold what Unicode also takes for one.
            for line in text.removesuffix("\n").split("\n"):
                number += 1
                comment = line.lstrip().startswith("#") and "\t" not in line  # a label before a tab may begin so
                if line.strip() and not comment and not (number == 1 and _is_header(line)):
                    yield number, line
    except OSError as error:
        raise SettingsError(f"corpus.label_features: {path} cannot be read: {error.strerror or error}") from None


def _is_header(line: str) -> bool:
    """The repository's: how many documents, features and labels."""
    words = line.split(" ")
    return len(words) == 3 and all(word.strip().isdecimal() for word in words)


class _Lines:
    """The features of the lines that name a trained label.

    Args:
        id_of: trained labels and their ids.
        path: for messages.
    """

    def __init__(self, id_of: dict[str, int], path: Path):
        self.id_of, self.path = id_of, path
        self.labels, self.rows = array("i"), array("q")  # a pair for each label of each line that is kept
        self._indices, self._values, self._ends = array("i"), array("f"), array("q", [0])

    def add(self, number: int, line: str) -> None:
        """Keep a line.

        Raises:
            SettingsError: it is no such line.
        """
        alone = "\t" in line
        name, _, rest = line.partition("\t") if alone else line.partition(" ")
        indices, values = self._pairs(number, rest)
        found = [name.strip()] if alone or name in self.id_of else name.split(",")
        known = {self.id_of[one] for one in found if one in self.id_of}
        if known:
            self.labels.extend(sorted(known))
            self.rows.extend([len(self._ends) - 1] * len(known))
            self._indices.extend(indices)
            self._values.extend(values)
            self._ends.append(len(self._indices))

    def _pairs(self, number: int, rest: str) -> tuple[list[int], list[float]]:
        pairs = [cell.rpartition(":") for cell in rest.partition("#")[0].split()]
        try:
            indices = [int(index) for index, _, _ in pairs]
            values = np.array([float(value) for _, _, value in pairs], dtype=np.float32)
        except ValueError:
            raise _wrong(self.path, number, "expected feature:value after the label") from None
        if min(indices, default=0) < 0 or max(indices, default=0) > LARGEST or not np.isfinite(values).all():
            raise _wrong(self.path, number, f"a feature isn't within 0 and {LARGEST:,}, or a value isn't finite")
        return indices, values.tolist()

    def matrix(self) -> sparse.csr_matrix:
        """The kept lines, float32 CSR of length one each."""
        indices, values = np.array(self._indices, np.int32), np.array(self._values, np.float32)
        indices -= min(int(indices.min(initial=1)), 1)
        shape = (len(self._ends) - 1, int(indices.max(initial=0)) + 1)
        matrix = sparse.csr_matrix((values, indices, np.frombuffer(self._ends, "q")), shape=shape)
        to_length_one(matrix)
        return matrix


def _wrong(path: Path, line: int, reason: str) -> SettingsError:
    return SettingsError(f"corpus.label_features: {path}:{line}: {reason}")
