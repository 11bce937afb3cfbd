"""Prepares a corpus: checks the settings and inputs, and builds the corpus unless it is up to date.

The passes themselves are in `build.py`.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from axml_ray.corpus import sources
from axml_ray.corpus.build import build_corpus
from axml_ray.corpus.continued import continued_state, old_files_first
from axml_ray.corpus.dictionary import read_dictionary
from axml_ray.corpus.input_changes import describe_changes, input_files, input_state
from axml_ray.corpus.label_index import read_names
from axml_ray.corpus.manifest import Inputs
from axml_ray.corpus.records import Reader
from axml_ray.corpus.store import FORMAT, MANIFEST, VERSION, Corpus
from axml_ray.corpus.tasks import Workspace
from axml_ray.corpus.vector_files import check_vectors
from axml_ray.files import clear_leftovers, whole_directory
from axml_ray.heartbeat import Heartbeat, phase
from axml_ray.settings import SPLITS, CorpusSettings, SettingsError, fingerprint

log = logging.getLogger(__name__)


@phase("prepare")
def prepare(settings: CorpusSettings, directory: Path, *, check: Callable[[Corpus], None] = lambda _: None) -> Corpus:
    """Prepare a corpus in `directory`, unless it was already prepared there from the same settings and inputs.

    Everything that can be checked without reading the texts is checked before Ray is started or joined, and a small
    corpus is prepared without Ray. An older corpus in `directory` stays as it is until the new one is complete.

    Args:
        settings: settings of the corpus.
        directory: directory of the corpus.
        check: called with the finished corpus; if it raises, an older corpus in `directory` is kept.

    Raises:
        SettingsError: an input is missing or empty, has too many bad records, or a split has no labels.
    """
    readers = _readers(settings)
    if settings.continues is not None:
        readers = old_files_first(readers, settings.continues)
    inputs = _inputs(settings, readers)
    clear_leftovers(directory)
    try:
        corpus = Corpus.open(directory)
    except SettingsError:
        _check_replaceable(directory)
    else:
        if corpus.manifest["inputs"] == inputs.key:
            log.info("prepare: %s is up to date", directory)
            check(corpus)
            return corpus
        changes = describe_changes(corpus.manifest, settings, inputs.files)
        log.info("prepare: %s; preparing %s anew", changes, directory)
    entries = read_dictionary(settings.dictionary, settings.segmentation) if settings.dictionary else None
    directory.parent.mkdir(parents=True, exist_ok=True)  # before Ray starts: it may not be writable
    with whole_directory(directory) as work:
        build_corpus(Workspace(settings, work), readers, inputs, entries)
        check(Corpus.open(work))
    return Corpus.open(directory)


def _readers(settings: CorpusSettings) -> list[tuple[str, Reader]]:
    """Return split and reader of each source; the split of installed packages is empty.

    Raises:
        SettingsError: a file is missing, or two splits contain the same file.
    """
    if settings.source == "installed_packages":
        try:
            return [("", reader) for reader in sources.installed_package_readers()]
        except (OSError, ValueError) as error:
            raise SettingsError(f"corpus.source: {error}") from None
    readers: list[tuple[str, Reader]] = []
    for split in SPLITS:
        try:
            readers += [(split, reader) for reader in sources.open_readers(getattr(settings, split), settings)]
        except (OSError, ValueError) as error:
            raise SettingsError(f"corpus.{split}: {error}") from None
    split_of_file: dict[str, str] = {}
    for split, reader in readers:
        path = reader.path.resolve() if isinstance(reader.path, Path) else reader.path
        if (other := split_of_file.setdefault(str(path), split)) != split:
            raise SettingsError(f"corpus.{other} and corpus.{split} both name {reader.path}; leave it out of one")
    return readers


def _inputs(settings: CorpusSettings, readers: list[tuple[str, Reader]]) -> Inputs:
    """Check the files that the settings name, and return the state of all inputs.

    Raises:
        SettingsError: a file cannot be read, or has the wrong format.
    """
    files = [(split, file) for split, reader in readers for file in input_files(reader)]
    files += [("", path) for path in (settings.label_names, settings.label_features, settings.dictionary) if path]
    if settings.label_names:
        read_names(settings.label_names)
    if vectors := settings.word_vectors_path:
        check_vectors(vectors)
        files.append(("", vectors))
        if vectors.suffix == ".npy":
            files.append(("", vectors.with_name("vocab.txt")))
    states: list[list[Any]] = []
    with Heartbeat("prepare: looking for changes in the inputs"):
        for split, file in files:
            try:
                states.append([split, str(file), *input_state(file)])
            except OSError as error:  # that of a remote store has no strerror
                raise SettingsError(f"corpus: {file} cannot be read: {error.strerror or error}") from None
    if settings.continues is not None:
        states.append(["", str(settings.continues), *continued_state(settings.continues)])
    return Inputs(fingerprint(settings, states, FORMAT, VERSION), states)


def _check_replaceable(directory: Path) -> None:
    """Raise a SettingsError if `directory` contains something that is not a corpus, such as the user's raw data."""
    if directory.exists() and not (directory / MANIFEST).is_file():
        if directory.is_dir() and not any(directory.iterdir()):
            return
        raise SettingsError(
            f"{directory}: exists and is not a prepared corpus; choose another corpus.name or corpora, or remove it"
        )
