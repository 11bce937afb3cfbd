"""Everything that a server needs in one directory that can be copied anywhere: written, checked, opened.

    <bundle>/
      manifest.json             format, versions, sizes of trees, and of every other file its bytes and SHA-256
      settings.yaml             what prediction depends on
      tokenizer.json            the vocabulary
      labels.parquet            id, label, name, training documents
      calibration.json          scores to probabilities
      word_vectors.safetensors  only if all networks share them, as where training froze them
      tree-0/tree.safetensors, tree-0/level-1/model.safetensors, ...
      tree-0/linear.safetensors only of a run with linear classifiers
      neighbours.safetensors    only of a run whose training texts vote beside them: their strongest words, and labels
      translation.safetensors   only of a corpus with a dictionary: what words are in the other language
      name_matches.safetensors  only of a run whose labels' names do: the names, and what they are worth
      learned_join.safetensors  only of a run that learned what networks and classifiers are worth together

- A bundle may come from a stranger: each file is data (JSON, YAML read without tags, Parquet, safetensors), checked
  before it is used, and nothing in it is ever run.
- Weights are mapped, not read: processes of one machine that open the same bundle share its memory.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field, ValidationError

from axml_ray.configuration import read_yaml
from axml_ray.corpus.label_index import LabelIndex
from axml_ray.corpus.store import TRANSLATION
from axml_ray.corpus.tokenizer import Tokenizer
from axml_ray.corpus.translation import Translation
from axml_ray.files import read_json
from axml_ray.inference.beam import TreePredictor
from axml_ray.inference.calibration import Calibration
from axml_ray.inference.combining import Votes
from axml_ray.inference.ensemble import LEARNED_JOIN, Ensemble
from axml_ray.inference.frequency import Coefficients, FrequencyCorrection
from axml_ray.inference.frozen import WORDS, frozen
from axml_ray.inference.joining import Join
from axml_ray.inference.learned_join import LearnedJoin
from axml_ray.inference.weights import Weights, load_weights
from axml_ray.linear.classifiers import LinearTree
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings, Positive, Precision, Settings, SettingsError
from axml_ray.training.tree import NAME_MATCHES, NEIGHBOURS
from axml_ray.tree.label_tree import LabelTree

FORMAT, VERSION = "axml-ray bundle", 1
MANIFEST, SETTINGS, TOKENIZER = "manifest.json", "settings.yaml", "tokenizer.json"
LABELS, CALIBRATION, SHARED_WORDS = "labels.parquet", "calibration.json", "word_vectors.safetensors"
MEND = "copy or export it again (jobs/export_bundle.py)"

T = TypeVar("T")


class BundleError(SettingsError):
    """A bundle can't be used; the message names the file and the mend."""


class FileEntry(Settings):
    """What the manifest says of a file."""

    bytes: int
    """Its size."""
    sha256: str
    """Of its content."""


class Manifest(Settings):
    """`manifest.json`."""

    format: str
    """Always "axml-ray bundle"."""
    version: int
    """Of this layout."""
    axml_ray: str
    """Version of the program that wrote it."""
    weights: Weights
    """Number format of the files' matrices."""
    labels: Positive
    """Labels that can be predicted."""
    words: Positive
    """Of the vocabulary."""
    level_sizes: tuple[tuple[Positive, ...], ...]
    """Nodes of the levels of each tree."""
    files: dict[str, FileEntry]
    """Every other file, by its path below the bundle."""

    @property
    def expected_files(self) -> set[str]:
        """The files that such a bundle has, without the optional ones."""
        named = {SETTINGS, TOKENIZER, LABELS, CALIBRATION}
        for number, sizes in enumerate(self.level_sizes):
            named |= {tree_file(number), *(level_file(number, level) for level in range(1, len(sizes) + 1))}
        return named


class BundleSettings(Settings):
    """`settings.yaml`: what prediction depends on."""

    name: str
    """Of the run."""
    max_tokens: Positive
    """Texts are cut after that many words."""
    beam: Positive
    """C: nodes of a level whose children are scored."""
    top_labels: Positive
    """Best labels of each tree whose scores are summed."""
    precision: Precision
    """Of matrix products."""
    network: NetworkSettings
    """Kind and sizes of every level's network."""
    linear_weight: Annotated[float, Field(ge=0, lt=1, exclude_if=lambda value: not value)] = 0.0
    """Share of linear classifiers in a tree's scores; 0 where it has none."""
    neighbours: Annotated[int, Field(ge=0, exclude_if=lambda value: not value)] = 0
    """Training texts whose labels vote beside them; 0 where none do."""
    neighbours_weight: Annotated[float, Field(ge=0, le=1, exclude_if=lambda value: not value)] = 0.0
    """Share of these votes in the classifiers' scores."""
    name_matches_weight: Annotated[float, Field(ge=0, le=1, exclude_if=lambda value: not value)] = 0.0
    """Share in them of labels whose names stand in the text; 0 where they don't vote."""
    learned_join: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether what networks and classifiers are worth together was learned."""
    frequency: Annotated[Coefficients | None, Field(exclude_if=lambda value: value is None)] = None
    """What corrects the summed scores by how frequent a label is, if anything does."""
    text_field: Annotated[str, Field(exclude_if=lambda value: value == "text")] = "text"
    """Field of a record that held the text, or the body, in training."""
    title_field: Annotated[str | None, Field(exclude_if=lambda value: value is None)] = None
    """Field that held the title, where there was one."""
    id_field: Annotated[str, Field(exclude_if=lambda value: value == "id")] = "id"
    """Field that held the id."""


def tree_file(number: int) -> str:
    """Path of a tree's shape in the bundle."""
    return f"tree-{number}/tree.safetensors"


def linear_file(number: int) -> str:
    """Path of a tree's linear classifiers in the bundle."""
    return f"tree-{number}/linear.safetensors"


def level_file(number: int, level: int) -> str:
    """Path of a level's weights in the bundle."""
    return f"tree-{number}/level-{level}/model.safetensors"


@dataclass(frozen=True)
class Bundle:
    """An opened bundle. Its parts are read when they are asked for, and are then kept.

    Attributes:
        directory: where it lies.
        manifest: what it says of itself.
        settings: what prediction depends on.
    """

    directory: Path
    manifest: Manifest
    settings: BundleSettings

    @classmethod
    def open(cls, directory: str | Path, *, verify: bool = True) -> "Bundle":
        """Open a bundle after checking all of it.

        Args:
            directory: of the bundle.
            verify: compare checksums. False spares reading every file, where another process of this machine has.

        Raises:
            BundleError: there is none, it is of another version, a file is missing, changed, or too much, or a path
                leads out of the directory.
        """
        directory = Path(directory).absolute()
        manifest = read_manifest(directory)
        check_files(directory, manifest, verify=verify)
        path = directory / SETTINGS
        try:
            settings = BundleSettings.model_validate(read_yaml(path))
        except ValidationError as error:
            raise BundleError(f"{path}: {_first(error)}; {MEND}") from None
        except SettingsError as error:
            raise BundleError(f"{error}; {MEND}") from None
        return cls(directory, manifest, settings)

    @property
    def trees(self) -> int:
        """How many trees it has."""
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
        """What words are in the other language, where its texts are in two."""
        if TRANSLATION not in self.manifest.files:
            return None
        return self._read(TRANSLATION, lambda path: Translation.load(path, self.manifest.words))

    @cached_property
    def calibration(self) -> Calibration:
        """Scores to probabilities."""
        return self._read(CALIBRATION, lambda path: Calibration.from_json(read_json(path)))

    def tree(self, number: int, precision: Precision | None = None) -> TreePredictor:
        """One of the trees; a server may hold each in a process of its own, and join what they find by `votes`.

        Args:
            number: from 0.
            precision: of matrix products; by default as the run was trained.
        """
        sizes = self.manifest.level_sizes[number]
        tree = self._read(tree_file(number), LabelTree.load)
        if tree.level_sizes != sizes or sizes[-1] != self.manifest.labels:
            raise self._wrong(tree_file(number), f"levels of {tree.level_sizes} nodes, not {sizes}")
        precision = precision or self.settings.precision

        def network(level: int) -> Callable[[Path], Any]:
            def read(path: Path) -> Any:
                state = load_weights(path)
                if WORDS not in state:
                    state[WORDS] = self.shared_words
                if len(state[WORDS]) != self.manifest.words:
                    raise ValueError(f"vectors of {len(state[WORDS]):,} words, not {self.manifest.words:,}")
                return frozen(Level.from_tree(tree, level), state, self.settings.network, precision)

            return read

        networks = [
            self._read(level_file(number, level), network(level)) for level in range(1, len(tree.level_sizes) + 1)
        ]
        linear = None
        if share := self.settings.linear_weight:
            if linear_file(number) not in self.manifest.files:
                raise self._wrong(linear_file(number), "it is missing")
            join = Join(share)
            own = self._read(linear_file(number), lambda path: LinearTree.load(path, sizes[-1], self.translation))
            if (words := len(own.features.beginnings)) != self.manifest.words:
                raise self._wrong(linear_file(number), f"of {words:,} words")
            if count := self.settings.neighbours:
                if NEIGHBOURS not in self.manifest.files:
                    raise self._wrong(NEIGHBOURS, "it is missing")
                alone, weight = own, self.settings.neighbours_weight
                own = self._read(NEIGHBOURS, lambda path: alone.beside(path, count, weight))
            if names := self.settings.name_matches_weight:
                if NAME_MATCHES not in self.manifest.files:
                    raise self._wrong(NAME_MATCHES, "it is missing")
                nameless = own
                own = self._read(NAME_MATCHES, lambda path: nameless.beside_names(path, names))
            linear = own, join
        reads = self.settings.network.max_tokens or self.settings.max_tokens, self.translation
        return TreePredictor(tree, networks, self.settings.beam, precision, linear, *reads)

    def ensemble(self, precision: Precision | None = None) -> Ensemble:
        """All trees."""
        trees = [self.tree(number, precision) for number in range(self.trees)]
        return Ensemble(trees, self.votes)

    @cached_property
    def votes(self) -> Votes:
        """How its trees are joined."""
        coefficients = self.settings.frequency
        correction = None if coefficients is None else FrequencyCorrection(coefficients, self.labels.counts)
        learned = None
        if self.settings.learned_join:
            if LEARNED_JOIN not in self.manifest.files:
                raise self._wrong(LEARNED_JOIN, "it is missing")
            learned = self._read(LEARNED_JOIN, lambda path: LearnedJoin.load(path, self.labels.counts))
        return Votes(self.settings.top_labels, correction, learned)

    @cached_property
    def shared_words(self) -> torch.Tensor:
        """The word vectors of all networks, mapped once."""
        if SHARED_WORDS not in self.manifest.files:
            raise ValueError("it holds no word vectors")
        state = self._read(SHARED_WORDS, load_weights)
        if set(state) != {WORDS}:
            raise self._wrong(SHARED_WORDS, "no word vectors")
        return state[WORDS]

    def _read(self, name: str, read: Callable[[Path], T]) -> T:
        # Parsers of other libraries raise what they like, some plain Exception.
        try:
            return read(self.directory / name)
        except BundleError:
            raise
        except Exception as error:
            raise self._wrong(name, " ".join(str(error).split()) or type(error).__name__) from None

    def _wrong(self, name: str, what: str) -> BundleError:
        return BundleError(f"{self.directory / name}: cannot be used ({what}); {MEND}")


def read_manifest(directory: Path) -> Manifest:
    """What a bundle says of itself.

    Raises:
        BundleError: there is no bundle, or one of another version.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise BundleError(f"{directory}: no bundle ({MANIFEST} is missing); make one with jobs/export_bundle.py")
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise BundleError(f"{error}; {MEND}") from None
    except RecursionError:
        raise BundleError(f"{path}: not a manifest (nested too deeply); {MEND}") from None
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
        raise BundleError(f"{path}: {_first(error)}; {MEND}") from None


def check_files(directory: Path, manifest: Manifest, *, verify: bool = True) -> None:
    """Check that a bundle's files are those of its manifest, no more and no less.

    Raises:
        BundleError: they aren't.
    """
    listed, inside = set(manifest.files), directory.resolve()
    for name in sorted(listed):
        parts = PurePosixPath(name)
        climbs = parts.is_absolute() or ".." in parts.parts or "\\" in name or "\0" in name
        if climbs or not (directory / name).resolve().is_relative_to(inside):
            raise BundleError(f"{directory / MANIFEST}: {name!r} leads out of the bundle; don't trust its maker")
    optional = {
        SHARED_WORDS,
        TRANSLATION,
        NEIGHBOURS,
        NAME_MATCHES,
        LEARNED_JOIN,
        *map(linear_file, range(len(manifest.level_sizes))),
    }
    if listed - optional != manifest.expected_files:
        wrong = sorted((listed - optional) ^ manifest.expected_files)[0]
        known = "is missing from its files" if wrong not in listed else "is no file of a bundle"
        raise BundleError(f"{directory / MANIFEST}: {wrong!r} {known}; {MEND}")
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}
    extra = sorted(found - listed - {MANIFEST})
    if extra:
        raise BundleError(f"{directory / extra[0]}: not in {MANIFEST}; remove it")
    for name, entry in manifest.files.items():
        path = directory / name
        if not path.is_file():
            raise BundleError(f"{path}: missing; {MEND}")
        size = path.stat().st_size
        if size != entry.bytes:
            raise BundleError(f"{path}: {size:,} bytes, not {entry.bytes:,} as {MANIFEST} says; {MEND}")
        if verify and sha256(path) != entry.sha256:
            raise BundleError(f"{path}: its checksum isn't that of {MANIFEST}, it was changed or damaged; {MEND}")


def sha256(path: Path) -> str:
    """The checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entries(directory: Path) -> Iterator[tuple[str, FileEntry]]:
    """What a manifest says of the files in a directory."""
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        name = path.relative_to(directory).as_posix()
        yield name, FileEntry(bytes=path.stat().st_size, sha256=sha256(path))


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
