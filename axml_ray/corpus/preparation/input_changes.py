"""Identifies the inputs of a corpus by their content, and says what changed since it was prepared.

A project may be moved or copied, and a file touched or downloaded again. Hashing reads a whole file, so as long as
size, times and inode of a file are the same, its hash is taken from the manifest of the corpus.
"""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from axml_ray.core.errors import SettingsError
from axml_ray.core.paths import portable
from axml_ray.core.storage import sha256
from axml_ray.corpus.readers.source_files import SourceFile, format_suffix, local_path, stored_version
from axml_ray.corpus.records.records import file_name
from axml_ray.settings import SPLITS, CorpusSettings, fingerprint

Stamp = tuple[int, ...]
"""Size in bytes, the times of the last change of content and of status (ns), and the inode. That of a package has the
total size, the last times, and the number of source files."""


@dataclass(frozen=True)
class Input:
    """An input of a corpus.

    Attributes:
        use: its split, if it has documents, else the setting that names it.
        path: where it is, relative if it lies in the project's directory; or its URL.
        name: its name in the ids of its documents, if it has some, else its file name.
        content: digest of its content; for a file in a store, its version there.
        stamp: its stamp; empty for a file in a store.
    """

    use: str
    path: str
    name: str
    content: str
    stamp: Stamp

    @property
    def identity(self) -> list[str]:
        """Return what the corpus depends on: of a path only the name that is in the ids of documents.

        Of a file about labels, the suffix decides how it is read.
        """
        suffix = format_suffix(self.path) if self.use.startswith("label_") else ""
        return [self.use, self.name if self.use in ("", *SPLITS) else suffix, self.content]


@dataclass(frozen=True)
class Inputs:
    """The settings and inputs of a corpus."""

    settings: CorpusSettings
    files: list[Input]

    @property
    def key(self) -> str:
        """Return the fingerprint of settings and contents; a corpus with the same key is up to date."""
        return fingerprint(self.settings.identity, [file.identity for file in self.files])


def read_inputs(
    files: Sequence[tuple[str, SourceFile]], known: Mapping[Stamp, str], names: Mapping[SourceFile, str]
) -> list[Input]:
    """Return the state of inputs, given the use and path of each; contents in `known`, by stamp, are not read again.

    `names` are those in the ids of documents, where they are not those of the files.

    Raises:
        SettingsError: a file cannot be read.
    """

    def read(use_and_file: tuple[str, SourceFile]) -> Input:
        use, file = use_and_file
        try:
            stamp = stamp_of(file)
            content = known.get(stamp) or content_of(file)
        except OSError as error:  # that of a remote store has no strerror
            key = f"corpus.{use}" if use else "corpus"
            raise SettingsError(f"{key}: {file} cannot be read: {error.strerror or error}") from None
        return Input(use, portable(file), names.get(file) or file_name(file), content, stamp)

    with ThreadPoolExecutor() as threads:  # hashing releases the lock of the interpreter
        return list(threads.map(read, files))


def stamp_of(file: SourceFile) -> Stamp:
    """Return the stamp of a local file, or of the source files of a Python package; () for a file in a store."""
    path = local_path(file)
    if path is None:
        return ()
    states = [source.stat() for source in (_sources(path) if path.is_dir() else [path])]
    changed = (max((getattr(state, name) for state in states), default=0) for name in ("st_mtime_ns", "st_ctime_ns"))
    return sum(state.st_size for state in states), *changed, (len(states) if path.is_dir() else states[0].st_ino)


def content_of(file: SourceFile) -> str:
    """Return a digest of a local file or of the source files of a package; for a file in a store, its version there.

    Raises:
        OSError: the file cannot be read.
    """
    path = local_path(file)
    if path is None:
        return stored_version(str(file))
    if not path.is_dir():
        return sha256(path)
    digest = hashlib.sha256()
    for source in _sources(path):
        digest.update(f"{source.relative_to(path).as_posix()}\0{sha256(source)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _sources(package: Path) -> list[Path]:
    """Return the source files of a package: importing it may write byte code, which is no change."""
    return sorted(source for source in package.rglob("*.py") if source.is_file())


def describe_changes(manifest: Mapping[str, Any], inputs: Inputs) -> str:
    """Describe for a log line why a corpus is out of date: other settings, else other inputs."""
    if keys := changed_settings(manifest, inputs.settings):
        return "made with other settings (" + ", ".join(f"corpus.{key}" for key in keys) + ")"
    before = {(row["use"], row["path"]): row["content"] for row in manifest["sources"]}
    now = {(file.use, file.path): file.content for file in inputs.files}
    names = sorted({path for use, path in before.items() ^ now.items() for path in [use[1]]})
    if not names:  # what the key consists of differs
        return "made by another version of axml-ray"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"made from other inputs ({', '.join(names[:3])}{more})"


def changed_settings(manifest: Mapping[str, Any], settings: CorpusSettings) -> list[str]:
    """Return the settings with which a corpus was prepared differently, apart from the paths of its inputs."""
    now = settings.identity
    before = manifest.get("identity", now)
    return sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
