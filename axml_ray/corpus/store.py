"""A prepared corpus on disk: its manifest, its checks, and how its parts are opened.

`corpus.json` is written last and lists every file with its size, so a directory without it, or with a file that
isn't as listed, is no corpus. Rows of `train/`, `valid/` and `test/`: `id: string, tokens: list<int32>,
labels: list<int32>, text: string`; readers take the columns they need.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file
from scipy import sparse

from axml_ray.corpus.label_index import LabelIndex
from axml_ray.corpus.tokenizer import Tokenizer
from axml_ray.corpus.translation import Translation
from axml_ray.files import read_json
from axml_ray.ragged import Ragged
from axml_ray.settings import SettingsError

FORMAT, VERSION = "axml-ray corpus", 1
MANIFEST = "corpus.json"
TRANSLATION = "translation.safetensors"


@dataclass(frozen=True)
class Split:
    """Documents as integers.

    Attributes:
        tokens: word ids, one row a document.
        labels: label ids, sorted, one row a document.
    """

    tokens: Ragged
    labels: Ragged

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: np.ndarray) -> "Split":
        """The documents at `rows` (int [n]), in that order."""
        return Split(self.tokens.take(rows), self.labels.take(rows))

    def part(self, documents: int | None) -> "Split":
        """At most `documents` of these documents, drawn at random but always alike; all for None.

        They stay in order, and a smaller part is in every larger one.
        """
        if documents is None or documents >= len(self):
            return self
        # The seed is not the experiment's: trees of other seeds train on the same part.
        return self.take(np.sort(np.random.default_rng(0).permutation(len(self))[:documents]))

    def and_also(self, more: "Split") -> "Split":
        """These documents, and then those of `more`."""
        return Split(Ragged.concatenate([self.tokens, more.tokens]), Ragged.concatenate([self.labels, more.labels]))

    def translated(self, translation: Translation | None) -> "Split":
        """The documents as networks read them: in words of the second language, where there is a dictionary."""
        return self if translation is None else Split(translation.translated(self.tokens), self.labels)

    def cut(self, width: int | None) -> "Split":
        """The documents with at most `width` first words of each, or as they are for None."""
        return self if width is None else Split(self.tokens.cut(width), self.labels)


@dataclass(frozen=True)
class Corpus:
    """An opened corpus; its parts are read when they are asked for.

    Attributes:
        directory: where it lies.
        manifest: the content of `corpus.json`.
    """

    directory: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, directory: Path) -> "Corpus":
        """Open a prepared corpus, checking that all of it is there.

        Raises:
            SettingsError: there is no corpus, it is of another version, or a file is missing or cut short.
        """
        mend = "prepare it with jobs/prepare_corpus.py"
        path = directory / MANIFEST
        if not path.is_file():
            raise SettingsError(f"{directory}: no prepared corpus ({MANIFEST} is missing); {mend}")
        try:
            manifest = read_json(path)
        except ValueError as error:
            raise SettingsError(f"{error}; {mend}") from None
        if not isinstance(manifest, dict):
            raise SettingsError(f"{path}: not the manifest of a corpus; {mend} again")
        if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
            found = f"{manifest.get('format')!r} version {manifest.get('version')!r}"
            raise SettingsError(f"{path}: expected {FORMAT!r} version {VERSION}, found {found}; {mend} again")
        for name, size in manifest["files"].items():
            file = directory / name
            if not file.is_file() or file.stat().st_size != size:
                raise SettingsError(f"{file}: missing or not {size} bytes long as {MANIFEST} says; {mend} again")
        return cls(directory, manifest)

    @property
    def fingerprint(self) -> str:
        """Changes with the content of the corpus: what trees and levels were built from."""
        return str(self.manifest["fingerprint"])

    @property
    def trained(self) -> int:
        """Labels with training documents: what trees and networks are built over."""
        return int(self.manifest["counts"]["trained_labels"])

    @cached_property
    def labels(self) -> LabelIndex:
        """All labels."""
        return LabelIndex.load(self.directory / "labels.parquet")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary."""
        return Tokenizer.load(self.directory / "tokenizer.json")

    def documents(self, split: str) -> int:
        """Documents of a split."""
        return int(self.manifest["counts"]["documents"][split])

    def files(self, split: str) -> list[Path]:
        """The Parquet files of a split, in order."""
        return [self.directory / name for name in self.manifest["files"] if name.startswith(f"{split}/")]

    def table(self, split: str, columns: list[str]) -> pa.Table:
        """Some columns of a split, in the order of its files."""
        return pa.concat_tables(pq.read_table(file, columns=columns) for file in self.files(split))

    def split(self, name: str) -> Split:
        """A split in memory, as integers."""
        table = self.table(name, ["tokens", "labels"])
        return Split(Ragged.from_arrow(table["tokens"]), Ragged.from_arrow(table["labels"]))

    def word_vectors(self) -> np.ndarray:
        """First values of the embedding, float32 [words, dimension]."""
        return load_file(self.directory / "word_vectors.safetensors")["word_vectors"]

    @cached_property
    def translation(self) -> Translation | None:
        """What words are in the other language, where the corpus was given a dictionary."""
        if TRANSLATION not in self.manifest["files"]:
            return None
        return Translation.load(self.directory / TRANSLATION, self.manifest["counts"]["words"])

    def label_features(self) -> sparse.csr_matrix:
        """TF-IDF centroids, float32 CSR [trained labels, words]; with a dictionary, in words of its second language."""
        return sparse.load_npz(self.directory / "label_features.npz")
