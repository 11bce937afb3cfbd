"""Opens a prepared corpus: checks its manifest, and loads its parts.

The manifest, `corpus.json`, is written last and lists every file with its size. A directory without it, or with a file
of another size, is not a valid corpus. The Parquet files of `train/`, `valid/` and `test/` have the columns `id:
string, tokens: list<int32>, labels: list<int32>, text: string`.

The first process that opens a split writes its integers into one file below `.splits/`, which all processes of a node
memory-map.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy import sparse

from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import finish_replacement, locked, read_json, whole_file
from axml_ray.core.ragged import Ragged, RaggedView
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.corpus.text.tokenizer import Tokenizer

FORMAT, VERSION = "axml-ray corpus", 2
MANIFEST = "corpus.json"
GIVEN_FEATURES = "given_label_features.npz"
SPLITS, ABOUT_SPLIT = ".splits", {"format": "axml-ray split", "version": "1"}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Split:
    """Documents as integers, one row per document: word ids, and sorted label ids."""

    tokens: Ragged
    labels: Ragged

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: np.ndarray) -> "Split":
        """Return the documents at `rows` (int [n]), in this order."""
        return Split(self.tokens.take(rows), self.labels.take(rows))

    def part(self, documents: int | None) -> "Split":
        """Return a random subset of at most `documents` documents, always the same; None returns all.

        The order is kept, and a smaller subset is contained in every larger one.
        """
        if documents is None or documents >= len(self):
            return self
        rows = rows_of_part(len(self), documents)
        return Split(RaggedView(self.tokens, rows), RaggedView(self.labels, rows))

    def followed_by(self, more: "Split") -> "Split":
        """Return these documents, followed by those of `more`."""
        return Split(Ragged.concatenate([self.tokens, more.tokens]), Ragged.concatenate([self.labels, more.labels]))

    def cut(self, width: int | None) -> "Split":
        """Return the documents cut to their first `width` words; unchanged if `width` is None."""
        if width is None or self.tokens.lengths.max(initial=0) <= width:
            return self
        return Split(RaggedView(self.tokens, np.arange(len(self)), width), self.labels)


def rows_of_part(documents: int, most: int) -> np.ndarray:
    """Return the numbers of the documents of a part (`Split.part`) of a number of documents, ascending int64."""
    # A fixed seed, so that trees with different seeds train on the same documents.
    return np.sort(np.random.default_rng(0).permutation(documents)[:most])


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus; its parts are loaded when they are first used. `manifest` is the content of `corpus.json`."""

    directory: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, directory: Path) -> "Corpus":
        """Open a prepared corpus and check that it is complete.

        Raises:
            SettingsError: there is no corpus, it has another version, or a file is missing or truncated.
        """
        fix = "prepare it with axml-ray prepare"
        path = directory / MANIFEST
        storage.fetch(directory)
        finish_replacement(directory)
        if not path.is_file():
            raise SettingsError(f"{directory}: no prepared corpus ({MANIFEST} is missing); {fix}")
        try:
            manifest = read_json(path)
        except ValueError as error:
            raise SettingsError(f"{error}; remove the directory, and {fix}") from None
        if not isinstance(manifest, dict):
            raise SettingsError(f"{path}: not the manifest of a corpus; {fix} again")
        if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
            actual = f"{manifest.get('format')!r} version {manifest.get('version')!r}"
            raise SettingsError(f"{path}: expected {FORMAT!r} version {VERSION}, found {actual}; {fix} again")
        for name, size in manifest["files"].items():
            file = directory / name
            if not file.is_file() or file.stat().st_size != size:
                raise SettingsError(f"{file}: missing or not {size} bytes long as {MANIFEST} says; {fix} again")
        return cls(directory, manifest)

    @property
    def fingerprint(self) -> str:
        """Digest of the content of the corpus; trees and levels record from which one they were built."""
        return str(self.manifest["fingerprint"])

    @property
    def trained(self) -> int:
        """Number of labels with training documents, over which trees and networks are built."""
        return int(self.manifest["counts"]["trained_labels"])

    @cached_property
    def labels(self) -> LabelIndex:
        """The labels of the corpus, including those without training documents."""
        return LabelIndex.load(self.directory / "labels.parquet")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, with the vocabulary."""
        return Tokenizer.load(self.directory / "tokenizer.json")

    def documents(self, split: str) -> int:
        """Return the number of documents of a split."""
        return int(self.manifest["counts"]["documents"][split])

    @property
    def mean_words(self) -> float:
        """Return the mean number of words of a training document."""
        return float(self.manifest["summary"]["words"]["train"] / self.documents("train"))

    def files(self, split: str) -> list[Path]:
        """Return the Parquet files of a split, in order."""
        return [self.directory / name for name in self.manifest["files"] if name.startswith(f"{split}/")]

    def table(self, split: str, columns: list[str]) -> pa.Table:
        """Read some columns of a split, in the order of its files."""
        return pa.concat_tables(pq.read_table(file, columns=columns) for file in self.files(split))

    def split(self, name: str) -> Split:
        """Open a split as integers, memory-mapped; in memory if this process may not write the file, or has no room."""
        try:
            return self._mapped_split(name)
        except OSError as error:
            log.warning("%s: %s is read into memory, as it cannot be mapped (%s)", self.directory, name, error)
            return Split(*(Ragged.concatenate(self._shards(name, column)) for column in ("tokens", "labels")))

    def _mapped_split(self, name: str) -> Split:
        """Open the file of a split, after writing it if there is none of this corpus."""
        from axml_ray.core.array_file import key_of, open_arrays  # imports PyTorch, which preparation need not

        path = self.directory / SPLITS / f"{name}.safetensors"
        if key_of(path, ABOUT_SPLIT) != self.fingerprint:
            path.parent.mkdir(exist_ok=True)
            with locked(path.parent):
                if key_of(path, ABOUT_SPLIT) != self.fingerprint:  # no other process was first
                    self._write_split(name, path)
        arrays, _ = open_arrays(path, ABOUT_SPLIT)
        return Split(*(Ragged(arrays[column], arrays[f"{column}.offsets"]) for column in ("tokens", "labels")))

    def _write_split(self, name: str, path: Path) -> None:
        """Write the integers of a split into one file, with one shard in memory at a time."""
        from axml_ray.core.array_file import KEY, create_arrays

        offsets = {
            column: np.cumsum(np.concatenate([[0], *(rows.lengths for rows in self._shards(name, column))]))
            for column in ("tokens", "labels")
        }
        shapes: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        for column, ends in offsets.items():
            shapes |= {column: (np.dtype(np.int32), (int(ends[-1]),)), f"{column}.offsets": (ends.dtype, ends.shape)}
        with whole_file(path) as temporary:
            arrays = create_arrays(shapes, temporary, {**ABOUT_SPLIT, KEY: self.fingerprint})
            for column, ends in offsets.items():
                arrays[f"{column}.offsets"][:] = ends
                begin = 0
                for rows in self._shards(name, column):
                    end = begin + len(rows.values)
                    arrays[column][begin:end] = rows.values
                    begin = end

    def has_words(self, split: str) -> np.ndarray:
        """Return for each document of a split whether its text has a word, bool [documents]."""
        columns = ["tokens", "text"]
        return np.concatenate([self.have_words(pq.read_table(file, columns=columns)) for file in self.files(split)])

    def have_words(self, documents: pa.Table) -> np.ndarray:
        """Return for each of some documents, with `tokens` and `text`, whether its text has a word, bool [documents].

        A text without a word is read as one unknown word, so only texts of one word are searched.
        """
        has_words = np.ones(len(documents), dtype=bool)
        for row in np.flatnonzero(pc.list_value_length(documents["tokens"]).to_numpy() == 1).tolist():
            has_words[row] = self.tokenizer.has_words(documents["text"][row].as_py())
        return has_words

    def _shards(self, split: str, column: str) -> Iterator[Ragged]:
        """Read a column of lists, file by file."""
        for file in self.files(split):
            yield Ragged.from_arrow(pq.read_table(file, columns=[column])[column])

    def word_vectors(self) -> np.ndarray:
        """Return the initial values of the embedding, float32 [words, dimension].

        They are memory-mapped, unless the file is a compact one, which has them in float16.
        """
        from safetensors.torch import load_file  # imports PyTorch; that of NumPy would copy them

        return (
            load_file(self.directory / "word_vectors.safetensors")["word_vectors"]
            .numpy()
            .astype(np.float32, copy=False)
        )

    def label_features(self) -> sparse.csr_matrix:
        """Load the TF-IDF centroids of the labels, float32 CSR [trained labels, words]."""
        return sparse.load_npz(self.directory / "label_features.npz")

    def clustering_features(self) -> sparse.csr_matrix:
        """Load what label trees are clustered by: given features or TF-IDF, float32 CSR [trained labels, features]."""
        path = self.directory / GIVEN_FEATURES
        return sparse.load_npz(path) if path.is_file() else self.label_features()
