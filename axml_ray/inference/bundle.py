"""A bundle: a directory with everything that prediction needs, which can be copied to other machines.

    <bundle>/
      manifest.json             format, versions, members, combiner, and the size and SHA-256 of every other file
      settings.yaml             settings on which prediction depends
      tokenizer.json            the vocabulary
      labels.parquet            id, label, name, training documents
      calibration.json          scores to probabilities
      trees/0.safetensors, …    shapes of the label trees
      members/<name>/…          the files of each member
      combiner/…                the learned parameters of the combiner, if there are any
      features.safetensors      the featurizer, if a member reads TF-IDF features
      translation.safetensors   the dictionary, if the corpus has one
      word_vectors.safetensors  the corpus's word vectors, if members share them

- A bundle may come from an untrusted source: each file is data (JSON, YAML read without tags, Parquet, safetensors),
  is checked before it is used, and is never executed. Kinds of members and combiners must be registered here.
- Weights are memory-mapped: processes on one machine that open the same bundle share its memory.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field, ValidationError

from axml_ray.combine.combiner import COMBINERS, Combiner, combiner_class
from axml_ray.configuration import read_yaml
from axml_ray.corpus.label_index import LabelIndex
from axml_ray.corpus.store import TRANSLATION
from axml_ray.corpus.tokenizer import Tokenizer
from axml_ray.corpus.translation import Translation
from axml_ray.ensemble import Combination, Ensemble
from axml_ray.files import read_json
from axml_ray.inference.calibration import Calibration
from axml_ray.members.featurizer import Featurizer
from axml_ray.members.member import LoadInputs, Member, MemberInfo
from axml_ray.members.weight_files import Weights, load_weights
from axml_ray.settings import Name, Positive, Precision, Settings, SettingsError
from axml_ray.settings.members import PLUGINS_VARIABLE, kinds
from axml_ray.tree.label_tree import LabelTree

FORMAT, VERSION = "axml-ray bundle", 2
MANIFEST, SETTINGS, TOKENIZER = "manifest.json", "settings.yaml", "tokenizer.json"
LABELS, CALIBRATION, WORD_VECTORS = "labels.parquet", "calibration.json", "word_vectors.safetensors"
FEATURES, COMBINER = "features.safetensors", "combiner"
VECTORS = "vectors"
"""Name of the only tensor in the file of word vectors."""
EXPORT_AGAIN = "copy or export it again (jobs/export_bundle.py)"

T = TypeVar("T")


class BundleError(SettingsError):
    """A bundle is unusable; the message names the file and how to fix it."""


class FileEntry(Settings):
    """A file in the manifest."""

    bytes: int
    """Size in bytes."""
    sha256: str
    """SHA-256 of the content, in hexadecimal."""


class MemberEntry(Settings):
    """A member in the manifest."""

    name: Name
    """Unique name; the member's files are below `members/<name>`."""
    kind: str
    """Kind in the registry."""
    tree: Annotated[int, Field(ge=0)] | None
    """Number of its label tree, from 0; null for a member of the whole run."""
    weight: Annotated[float, Field(gt=0)]
    """Weight in the ensemble's scores."""
    config: dict[str, Any]
    """Settings of the member, validated by its kind."""

    @property
    def path(self) -> str:
        """The member's directory in the bundle."""
        return f"members/{self.name}"

    @property
    def info(self) -> MemberInfo:
        """Name, kind, tree and weight of the member."""
        return MemberInfo(self.name, self.kind, self.tree, self.weight)


class Manifest(Settings):
    """The content of `manifest.json`."""

    format: str
    """Always "axml-ray bundle"."""
    version: int
    """Version of the layout."""
    axml_ray: str
    """Version of axml-ray that wrote the bundle."""
    weights: Weights
    """Number format of large matrices."""
    labels: Positive
    """Number of labels that can be predicted."""
    words: Positive
    """Number of words of the vocabulary."""
    level_sizes: tuple[tuple[Positive, ...], ...]
    """Number of nodes of each level of each label tree."""
    members: Annotated[tuple[MemberEntry, ...], Field(min_length=1)]
    """Members of the ensemble, in order."""
    combiner: str
    """Kind of the combiner."""
    files: dict[str, FileEntry]
    """All other files, by their paths below the bundle."""

    @property
    def required_files(self) -> set[str]:
        """The paths of the files that every bundle with these trees has."""
        return {SETTINGS, TOKENIZER, LABELS, CALIBRATION, *map(tree_file, range(len(self.level_sizes)))}

    def is_known(self, name: str) -> bool:
        """Return whether a bundle may contain a file with this path."""
        below = (f"{COMBINER}/", *(f"{member.path}/" for member in self.members))
        return name in self.required_files | {FEATURES, TRANSLATION, WORD_VECTORS} or name.startswith(below)


class BundleSettings(Settings):
    """The content of `settings.yaml`: settings on which prediction depends, besides those of the members."""

    name: str
    """Name of the run."""
    max_tokens: Positive
    """Number of words after which texts are cut."""
    top_labels: Positive
    """Number of best labels of each member whose scores are combined."""
    precision: Precision
    """Number format of matrix products."""
    text_field: str = "text"
    """Field of the training records with the text, or the body."""
    title_field: str | None = None
    """Field of the training records with the title, if there was one."""
    id_field: str = "id"
    """Field of the training records with the id."""


def tree_file(number: int) -> str:
    """Return the path of a label tree (from 0) in the bundle."""
    return f"trees/{number}.safetensors"


@dataclass(frozen=True)
class Bundle:
    """An opened bundle. Its parts are read when they are first accessed.

    Attributes:
        directory: absolute path of the bundle.
        manifest: content of its manifest.
        settings: settings on which prediction depends.
    """

    directory: Path
    manifest: Manifest
    settings: BundleSettings

    @classmethod
    def open(cls, directory: str | Path, *, verify: bool = True) -> "Bundle":
        """Open a bundle after checking all of its files.

        Args:
            directory: directory of the bundle.
            verify: whether to verify checksums, which reads every file; unnecessary if another process on this machine
                already has.

        Raises:
            BundleError: there is no bundle, it has another version, a file is missing, changed or not in the manifest,
                or a path leads out of the directory.
        """
        directory = Path(directory).absolute()
        manifest = read_manifest(directory)
        check_files(directory, manifest, verify=verify)
        path = directory / SETTINGS
        try:
            settings = BundleSettings.model_validate(read_yaml(path))
        except ValidationError as error:
            raise BundleError(f"{path}: {_first(error)}; {EXPORT_AGAIN}") from None
        except SettingsError as error:
            raise BundleError(f"{error}; {EXPORT_AGAIN}") from None
        return cls(directory, manifest, settings)

    @property
    def trees(self) -> int:
        """The number of label trees."""
        return len(self.manifest.level_sizes)

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
    def translation(self) -> Translation | None:
        """The translation of the corpus; None if it has no dictionary."""
        if TRANSLATION not in self.manifest.files:
            return None
        return self._read(TRANSLATION, lambda path: Translation.load(path, self.manifest.words))

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
        return self._read(FEATURES, lambda path: Featurizer.load(path, self.manifest.words, self.translation))

    def member(
        self, entry: MemberEntry, precision: Precision | None = None, device: torch.device | None = None
    ) -> Member:
        """Load one of the members; a server may hold each in another process and combine their scores.

        Args:
            entry: the member's entry in the manifest.
            precision: number format of matrix products; by default that of the training.
            device: device of networks; by default the CPU.
        """
        implementation = kinds()[entry.kind].load()
        inputs = LoadInputs(
            labels=self.manifest.labels,
            words=self.manifest.words,
            tree=None if entry.tree is None else self.label_tree(entry.tree),
            featurizer=self.featurizer if implementation.uses_features else None,
            translation=self.translation,
            word_vectors=lambda: self.word_vectors,
            precision=precision or self.settings.precision,
            device=device or torch.device("cpu"),
        )

        def load(path: Path) -> Member:
            config = implementation.config_class.model_validate(entry.config)
            member: Member = implementation.load(path, config, inputs)
            return member

        return self._read(entry.path, load)

    def members(
        self, names: Sequence[str] | None = None, precision: Precision | None = None, device: torch.device | None = None
    ) -> dict[str, Member]:
        """Load the members in `names`, by default all, by name; other arguments are those of `member`."""
        return {
            entry.name: self.member(entry, precision, device)
            for entry in self.manifest.members
            if names is None or entry.name in names
        }

    def ensemble(
        self, precision: Precision | None = None, device: torch.device | None = None, names: Sequence[str] | None = None
    ) -> Ensemble:
        """Load the ensemble with the members in `names`, by default all; other arguments are those of `member`."""
        return Ensemble(self.combination, self.members(names, precision, device), self.translation)

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


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a bundle.

    Raises:
        BundleError: there is no bundle, its manifest is damaged, or it has another version.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise BundleError(f"{directory}: no bundle ({MANIFEST} is missing); make one with jobs/export_bundle.py")
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise BundleError(f"{error}; {EXPORT_AGAIN}") from None
    except RecursionError:
        raise BundleError(f"{path}: not a manifest (nested too deeply); {EXPORT_AGAIN}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BundleError(f"{path}: not the manifest of a bundle; make one with jobs/export_bundle.py")
    if content.get("version") != VERSION:
        raise BundleError(
            f"{path}: a bundle of version {content.get('version')!r}, written by axml-ray "
            f"{content.get('axml_ray', 'of unknown version')}; this program reads version {VERSION}: export the run "
            "again, or use that axml-ray"
        )
    try:
        return Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise BundleError(f"{path}: {_first(error)}; {EXPORT_AGAIN}") from None


def check_files(directory: Path, manifest: Manifest, *, verify: bool = True) -> None:
    """Check that a bundle's files are exactly those of its manifest.

    Args:
        directory: directory of the bundle.
        manifest: its manifest.
        verify: whether to verify checksums in addition to sizes.

    Raises:
        BundleError: a file is missing, changed or unexpected, or a path leads out of the directory.
    """
    listed, inside = set(manifest.files), directory.resolve()
    for name in sorted(listed):
        parts = PurePosixPath(name)
        climbs = parts.is_absolute() or ".." in parts.parts or "\\" in name or "\0" in name
        if climbs or not (directory / name).resolve().is_relative_to(inside):
            raise BundleError(f"{directory / MANIFEST}: {name!r} leads out of the bundle; do not trust it")
    for name in sorted(manifest.required_files - listed):
        raise BundleError(f"{directory / MANIFEST}: {name!r} is missing from its files; {EXPORT_AGAIN}")
    for name in sorted(name for name in listed if not manifest.is_known(name)):
        raise BundleError(f"{directory / MANIFEST}: {name!r} is no file of a bundle; {EXPORT_AGAIN}")
    check_members(directory, manifest)
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}
    extra = sorted(found - listed - {MANIFEST})
    if extra:
        raise BundleError(f"{directory / extra[0]}: not in {MANIFEST}; remove it")
    for name, entry in manifest.files.items():
        path = directory / name
        if not path.is_file():
            raise BundleError(f"{path}: missing; {EXPORT_AGAIN}")
        size = path.stat().st_size
        if size != entry.bytes:
            raise BundleError(f"{path}: {size:,} bytes, not {entry.bytes:,} as {MANIFEST} says; {EXPORT_AGAIN}")
        if verify and sha256(path) != entry.sha256:
            raise BundleError(
                f"{path}: its checksum isn't that of {MANIFEST}, it was changed or damaged; {EXPORT_AGAIN}"
            )


def check_members(directory: Path, manifest: Manifest) -> None:
    """Check that this program knows the kinds of a bundle's members and combiner.

    Raises:
        BundleError: it does not, or a name is used twice, or a label tree is missing.
    """
    path, names = directory / MANIFEST, [entry.name for entry in manifest.members]
    if len(set(names)) != len(names):
        raise BundleError(f"{path}: two members have the same name; {EXPORT_AGAIN}")
    for entry in manifest.members:
        if entry.kind not in kinds():
            raise BundleError(
                f"{path}: member {entry.name!r} is of the unknown kind {entry.kind!r}; name the module that registers "
                f"it in {PLUGINS_VARIABLE}"
            )
        if entry.tree is not None and entry.tree >= len(manifest.level_sizes):
            raise BundleError(f"{path}: member {entry.name!r} has no label tree {entry.tree}; {EXPORT_AGAIN}")
    if manifest.combiner not in COMBINERS:
        raise BundleError(f"{path}: unknown combiner {manifest.combiner!r}; known are {', '.join(COMBINERS)}")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entries(directory: Path) -> Iterator[tuple[str, FileEntry]]:
    """Yield the manifest entry of each file below a directory, with its path."""
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        name = path.relative_to(directory).as_posix()
        yield name, FileEntry(bytes=path.stat().st_size, sha256=sha256(path))


def _first(error: ValidationError) -> str:
    """Return the first problem of a pydantic error, with its key."""
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
