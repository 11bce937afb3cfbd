"""A bundle: a directory with everything that prediction needs, which can be copied to other machines.

    <bundle>/
      README.md                 the model card: labels, scores, settings, limitations, licence
      manifest.json             format, versions, members, combiner, and the size and SHA-256 of every other file
      settings.yaml             settings on which prediction depends
      tokenizer.json            the vocabulary
      labels.parquet            id, label, name, training documents
      calibration.json          scores to probabilities
      trees/0.safetensors, …    shapes of the label trees
      members/<name>/…          the files of each member
      combiner/…                the learned parameters of the combiner, if there are any
      features.safetensors      the featurizer, if a member reads TF-IDF features
      word_vectors.safetensors  the corpus's word vectors, if members share them

- A bundle may come from an untrusted source: each file is data (JSON, YAML read without tags, Parquet, safetensors),
  is checked before it is used, and is never executed. Kinds of members and combiners must be registered here.
- Weights are memory-mapped: processes on one machine that open the same bundle share its memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import ValidationError

from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json
from axml_ray.core.paths import absolute, is_url
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.corpus.text.tokenizer import Tokenizer
from axml_ray.ensemble.calibration import Calibration
from axml_ray.ensemble.combiner import Combiner, combiner_class
from axml_ray.ensemble.ensemble import Combination, Ensemble
from axml_ray.inference.bundle.manifest import (
    CALIBRATION,
    COMBINER,
    EXPORT_AGAIN,
    FEATURES,
    LABELS,
    SETTINGS,
    TOKENIZER,
    WORD_VECTORS,
    BundleError,
    Manifest,
    MemberEntry,
    check_files,
    first_problem,
    read_manifest,
    tree_file,
)
from axml_ray.members.featurizer import Featurizer
from axml_ray.members.member import LoadInputs, Member
from axml_ray.members.weight_files import load_weights
from axml_ray.settings import Positive, Precision, ReadingSettings
from axml_ray.settings.configuration import read_yaml
from axml_ray.settings.members import kinds
from axml_ray.tree.label_tree import LabelTree

VECTORS = "vectors"
"""Name of the only tensor in the file of word vectors."""

T = TypeVar("T")


class BundleSettings(ReadingSettings):
    """The content of `settings.yaml`: settings on which prediction depends, besides those of the members.

    Those of `ReadingSettings` are those of the training texts.
    """

    name: str
    """Name of the run."""
    max_tokens: Positive
    """Number of words after which texts are cut."""
    top_labels: Positive
    """Number of best labels of each member whose scores are combined."""
    precision: Precision
    """Number format of matrix products."""


@dataclass(frozen=True)
class Bundle:
    """An opened bundle. Its parts are read when they are first accessed."""

    directory: Path
    manifest: Manifest
    settings: BundleSettings

    @classmethod
    def open(cls, directory: str | Path, *, verify: bool = True, cache: Path | None = None) -> "Bundle":
        """Open a bundle after checking all of its files.

        Args:
            directory: directory of the bundle, or its URL.
            verify: whether to verify checksums; unnecessary if another process on this machine already has.
            cache: cache of downloads that the directory lies in, if any; see `manifest.check_files`.

        Raises:
            BundleError: there is no bundle, it has another version, a file is missing, changed or not in the manifest,
                or a path leads out of the directory.
        """
        directory = absolute(directory) if is_url(directory) else Path(directory).absolute()
        storage.fetch(directory)
        manifest = read_manifest(directory)
        check_files(directory, manifest, verify=verify, cache=cache)
        path = directory / SETTINGS
        try:
            settings = BundleSettings.model_validate(read_yaml(path))
        except ValidationError as error:
            raise BundleError(f"{path}: {first_problem(error)}; {EXPORT_AGAIN}") from None
        except SettingsError as error:
            raise BundleError(f"{error}; {EXPORT_AGAIN}") from None
        return cls(directory, manifest, settings)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary."""
        tokenizer = self._read(TOKENIZER, Tokenizer.load)
        if len(tokenizer) != self.manifest.words:
            raise self._wrong(TOKENIZER, f"{len(tokenizer):,} words, not {self.manifest.words:,}")
        return tokenizer

    @cached_property
    def labels(self) -> LabelIndex:
        """The labels that can be predicted."""
        labels = self._read(LABELS, LabelIndex.load)
        if len(labels) != self.manifest.labels:
            raise self._wrong(LABELS, f"{len(labels):,} labels, not {self.manifest.labels:,}")
        return labels

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration of scores to probabilities."""
        return self._read(CALIBRATION, lambda path: Calibration.from_json(read_json(path)))

    def label_tree(self, number: int) -> LabelTree:
        """Return a label tree (numbered from 0)."""
        sizes = self.manifest.level_sizes[number]
        tree = self._read(tree_file(number), LabelTree.load)
        if tree.level_sizes != sizes or sizes[-1] != self.manifest.labels:
            raise self._wrong(tree_file(number), f"levels of {tree.level_sizes} nodes, not {sizes}")
        return tree

    @cached_property
    def featurizer(self) -> Featurizer | None:
        """The featurizer that members share; None if no member reads features."""
        if FEATURES not in self.manifest.files:
            return None
        return self._read(FEATURES, lambda path: Featurizer.load(path, self.manifest.words))

    def member(
        self, entry: MemberEntry, precision: Precision | None = None, device: torch.device | None = None
    ) -> Member:
        """Load one of the members: with a number format of matrix products, by default that of the training, and a
        device of networks, by default the CPU.
        """
        implementation = kinds()[entry.kind].load()
        inputs = LoadInputs(
            labels=self.manifest.labels,
            words=self.manifest.words,
            tree=None if entry.tree is None else self.label_tree(entry.tree),
            featurizer=self.featurizer if implementation.uses_features else None,
            word_vectors=lambda: self.word_vectors,
            precision=precision or self.settings.precision,
            device=device or torch.device("cpu"),
        )

        def load(path: Path) -> Member:
            config = implementation.config_class.model_validate(entry.config)
            member: Member = implementation.load(path, config, inputs)
            return member

        return self._read(entry.path, load)

    def ensemble(
        self, precision: Precision | None = None, device: torch.device | None = None, names: Sequence[str] | None = None
    ) -> Ensemble:
        """Load the ensemble with the members in `names`, by default all; other arguments are those of `member`."""
        members = {
            entry.name: self.member(entry, precision, device)
            for entry in self.manifest.members
            if names is None or entry.name in names
        }
        return Ensemble(self.combination, members)

    @cached_property
    def combination(self) -> Combination:
        """The combination of the members' scores."""

        def load(path: Path) -> Combiner:
            return combiner_class(self.manifest.combiner).load(path, self.labels.counts)

        members = tuple(entry.info for entry in self.manifest.members)
        return Combination(members, self._read(COMBINER, load), self.settings.top_labels)

    @cached_property
    def word_vectors(self) -> torch.Tensor:
        """The corpus's word vectors, float [V, E], memory-mapped once for all members that share them.

        Raises:
            ValueError: the bundle has none.
        """
        if WORD_VECTORS not in self.manifest.files:
            raise ValueError(f"{WORD_VECTORS} is missing from the bundle")
        state = self._read(WORD_VECTORS, load_weights)
        if set(state) != {VECTORS}:
            raise self._wrong(WORD_VECTORS, "no word vectors")
        return state[VECTORS]

    def _read(self, name: str, read: Callable[[Path], T]) -> T:
        """Read a part of the bundle; any error becomes a BundleError that names the file."""
        # Libraries raise errors of many classes on damaged files, some of them plain Exception.
        try:
            return read(self.directory / name)
        except BundleError:
            raise
        except Exception as error:
            raise self._wrong(name, " ".join(str(error).split()) or type(error).__name__) from None

    def _wrong(self, name: str, reason: str) -> BundleError:
        return BundleError(f"{self.directory / name}: cannot be used ({reason}); {EXPORT_AGAIN}")
