"""The manifest of a bundle: its schema, and checks that the files that are read are exactly those that it lists."""

import json
from collections.abc import Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import Field, ValidationError

from axml_ray.core.errors import SettingsError
from axml_ray.core.files import finish_replacement, read_json
from axml_ray.core.limits import available_cpus
from axml_ray.core.storage import sha256
from axml_ray.ensemble.combiner import COMBINERS
from axml_ray.members.member import MemberInfo
from axml_ray.members.weight_files import Weights
from axml_ray.settings import Name, Positive, Settings
from axml_ray.settings.members import PLUGINS_VARIABLE, kinds

FORMAT, VERSION = "axml-ray bundle", 2
MANIFEST, SETTINGS, TOKENIZER = "manifest.json", "settings.yaml", "tokenizer.json"
LABELS, CALIBRATION, WORD_VECTORS = "labels.parquet", "calibration.json", "word_vectors.safetensors"
FEATURES, COMBINER, CARD = "features.safetensors", "combiner", "README.md"
EXPORT_AGAIN = "copy or export it again (axml-ray export)"


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
        return name in self.required_files | {FEATURES, WORD_VECTORS, CARD} or name.startswith(below)


def is_of_bundles(name: str) -> bool:
    """Return whether a path is one that only bundles have, such as `trees/2.safetensors`."""
    return name in (FEATURES, WORD_VECTORS) or name.startswith(("trees/", "members/", f"{COMBINER}/"))


def tree_file(number: int) -> str:
    """Return the path of a label tree (from 0) in the bundle."""
    return f"trees/{number}.safetensors"


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a bundle.

    Raises:
        BundleError: there is no bundle, its manifest is damaged, or it has another version.
    """
    path = directory / MANIFEST
    finish_replacement(directory)
    if not path.is_file():
        raise BundleError(f"{directory}: no bundle ({MANIFEST} is missing); make one with axml-ray export")
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise BundleError(f"{error}; {EXPORT_AGAIN}") from None
    except RecursionError:
        raise BundleError(f"{path}: not a manifest (nested too deeply); {EXPORT_AGAIN}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BundleError(f"{path}: not the manifest of a bundle; make one with axml-ray export")
    if content.get("version") != VERSION:
        raise BundleError(
            f"{path}: a bundle of version {content.get('version')!r}, written by axml-ray "
            f"{content.get('axml_ray', 'of unknown version')}; this program reads version {VERSION}: export the run "
            "again, or use that axml-ray"
        )
    try:
        return Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise BundleError(f"{path}: {first_problem(error)}; {EXPORT_AGAIN}") from None


def check_files(directory: Path, manifest: Manifest, *, verify: bool = True, cache: Path | None = None) -> None:
    """Check that the files that a bundle is read from are exactly those of its manifest, and its kinds known.

    Others may be there, such as a licence, or what a download from the Hub adds; nothing reads them.

    Args:
        directory: directory of the bundle.
        manifest: its manifest.
        verify: whether to verify checksums in addition to sizes.
        cache: cache of downloads that the directory lies in, if any. Links may lead anywhere in it, and other files of
            the download are ignored.

    Raises:
        BundleError: a file is missing, changed or unexpected, a path leads out of the directory, this program does not
            know the kind of a member or combiner, a name is used twice, or a label tree is missing.
    """
    path, listed, inside = directory / MANIFEST, set(manifest.files), (cache or directory).resolve()
    for name in sorted(listed):
        relative = PurePosixPath(name)
        climbs = relative.is_absolute() or ".." in relative.parts or "\\" in name or "\0" in name
        if climbs or not (directory / name).resolve().is_relative_to(inside):
            raise BundleError(f"{path}: {name!r} leads out of the bundle; do not trust it")
    for name in sorted(manifest.required_files - listed):
        raise BundleError(f"{path}: {name!r} is missing from its files; {EXPORT_AGAIN}")
    for name in sorted(name for name in listed if not manifest.is_known(name)):
        raise BundleError(f"{path}: {name!r} is no file of a bundle; {EXPORT_AGAIN}")
    if len({entry.name for entry in manifest.members}) != len(manifest.members):
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
    files = {file.relative_to(directory).as_posix() for file in directory.rglob("*") if not file.is_dir()}
    extra = sorted(filter(is_of_bundles, files - listed))
    if extra and cache is None:
        raise BundleError(f"{directory / extra[0]}: not in {MANIFEST}; remove it")
    check_contents(directory, manifest, verify=verify)


def check_contents(directory: Path, manifest: Manifest, *, verify: bool = True) -> None:
    """Check that each file of a manifest is there and unchanged, except for the model card, which people may edit.

    Raises:
        BundleError: a file is missing or changed.
    """
    files = {name: entry for name, entry in manifest.files.items() if name != CARD}
    for name, entry in files.items():
        path = directory / name
        if not path.is_file():
            raise BundleError(f"{path}: missing; {EXPORT_AGAIN}")
        size = path.stat().st_size
        if size != entry.bytes:
            raise BundleError(f"{path}: {size:,} bytes, not {entry.bytes:,} as {MANIFEST} says; {EXPORT_AGAIN}")
    if verify:
        check_checksums(directory, manifest, files.keys())


def check_checksums(directory: Path, manifest: Manifest, names: Set[str]) -> None:
    """Check that files are unchanged, except for the model card.

    Raises:
        BundleError: a file was changed.
    """
    files = {name: entry for name, entry in manifest.files.items() if name in names - {CARD}}
    # Opening a large bundle is mostly this; Python's lock is released while a file is read. The largest one first.
    largest_first = sorted(files, key=lambda name: -files[name].bytes)
    with ThreadPoolExecutor(available_cpus()) as threads:
        digests = dict(
            zip(largest_first, threads.map(lambda name: sha256(directory / name), largest_first), strict=True)
        )
    for name, entry in files.items():
        if digests[name] != entry.sha256:
            problem = f"its checksum isn't that of {MANIFEST}, it was changed or damaged"
            raise BundleError(f"{directory / name}: {problem}; {EXPORT_AGAIN}")


def entries(directory: Path) -> Iterator[tuple[str, FileEntry]]:
    """Yield the manifest entry of each file below a directory, with its path."""
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        name = path.relative_to(directory).as_posix()
        yield name, FileEntry(bytes=path.stat().st_size, sha256=sha256(path))


def first_problem(error: ValidationError) -> str:
    """Return the first problem of a pydantic error, with its key."""
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
