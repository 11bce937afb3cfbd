"""Prepares a corpus: checks the settings and inputs, and builds the corpus (`build.py`) unless it is up to date."""

import json
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import clear_leftovers, read_json, whole_directory, write_json
from axml_ray.core.paths import portable, url_of
from axml_ray.corpus.labels.name_files import read_rows
from axml_ray.corpus.preparation.build import build_corpus
from axml_ray.corpus.preparation.input_changes import (
    Input,
    Inputs,
    describe_changes,
    read_inputs,
)
from axml_ray.corpus.preparation.tasks import Workspace
from axml_ray.corpus.readers import sources
from axml_ray.corpus.readers.source_files import SourceFile, local_path
from axml_ray.corpus.readers.tables import INFO, ArrowRows
from axml_ray.corpus.records.records import Reader
from axml_ray.corpus.store import FORMAT, MANIFEST, Corpus
from axml_ray.corpus.text.vector_files import dimension_of
from axml_ray.progress.heartbeat import Heartbeat, phase
from axml_ray.settings import SPLITS, CorpusSettings

log = logging.getLogger(__name__)


@phase("prepare")
def prepare(
    settings: CorpusSettings,
    directory: Path,
    *,
    check_inputs: Callable[[str], None] = lambda key: None,
    check: Callable[[Corpus], None] = lambda corpus: None,
) -> Corpus:
    """Prepare a corpus in `directory`, unless it was already prepared there from the same settings and inputs.

    Everything that can be checked without reading the texts is checked before Ray is started or joined, and a small
    corpus is prepared without Ray. An older corpus in `directory` stays as it is until the new one is complete.

    Args:
        settings: settings of the corpus.
        directory: directory of the corpus.
        check_inputs: called with the key of settings and inputs (`Inputs.key`) before anything is prepared.
        check: called with the finished corpus; if it raises, an older corpus in `directory` is kept.

    Raises:
        SettingsError: an input is missing or empty, has too many bad records, or a split has no labels.
    """
    readers = _readers(settings)
    clear_leftovers(directory)
    old = _existing(directory)
    continued = None if settings.continues is None else Corpus.open(settings.continues)
    inputs = _inputs(settings, readers, directory, [corpus for corpus in (old, continued) if corpus is not None])
    check_inputs(inputs.key)
    if old is not None:
        sources = [asdict(file) for file in inputs.files]
        if old.manifest["inputs"] == inputs.key:
            log.info("prepare: %s is up to date", directory)
            # Moved or touched inputs are not to be hashed again. At a URL, a published directory stays as it is.
            if old.manifest["sources"] != json.loads(json.dumps(sources)) and url_of(directory) is None:
                with suppress(OSError):
                    write_json(directory / MANIFEST, {**old.manifest, "sources": sources})
            check(old)
            return old
        known = {MANIFEST, *old.manifest["files"]}
        foreign = [name for name in storage.sizes(directory) if name not in known and not re.search(r"(^|/)\.", name)]
        if foreign:
            raise SettingsError(
                f"{directory}: {min(foreign)} is no part of the corpus, whose files preparation replaces; move it"
            )
        log.info("prepare: %s; preparing %s anew", describe_changes(old.manifest, inputs), directory)
    if continued is not None:
        # Of equal texts the first is kept if duplicates are dropped, and an old text must keep its labels.
        old_contents = {row["content"] for row in continued.manifest["sources"]}
        content_of = {file.path: file.content for file in inputs.files}
        readers.sort(key=lambda split_and_reader: content_of[portable(split_and_reader[1].path)] not in old_contents)
    directory.parent.mkdir(parents=True, exist_ok=True)  # before Ray starts: it may not be writable
    with whole_directory(directory) as work:
        build_corpus(Workspace(settings, work), readers, inputs)
        check_inputs(inputs.key)  # again: meanwhile a run may have begun with the corpus that this one replaces
        check(Corpus.open(work))
    return Corpus.open(directory)


def _readers(settings: CorpusSettings) -> list[tuple[str, Reader]]:
    """Return split and reader of each source, the split empty for installed packages.

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
        local = local_path(reader.path)
        path = reader.path if local is None else local.resolve()
        if (other := split_of_file.setdefault(str(path), split)) != split:
            raise SettingsError(f"corpus.{other} and corpus.{split} both name {reader.path}; leave it out of one")
    return list(
        zip([split for split, _ in readers], sources.name_apart([reader for _, reader in readers]), strict=True)
    )


def _inputs(
    settings: CorpusSettings, readers: list[tuple[str, Reader]], directory: Path, prepared: list[Corpus]
) -> Inputs:
    """Check the files that the settings name, and return the state of all inputs of a corpus in `directory`.

    Those of `prepared` corpora need not be hashed again; the one that this corpus continues is the last.
    """
    files: list[tuple[str, SourceFile]] = []
    for split, reader in readers:
        files += [(split, getattr(reader, name)) for name in ("path", "labels_path") if hasattr(reader, name)]
    # Names of class labels.
    saved = {(split, reader.path) for split, reader in readers if isinstance(reader, ArrowRows)}
    infos = {(split, path.with_name(INFO)) for split, path in saved if isinstance(path, Path)}
    files += sorted((split, path) for split, path in infos if path.is_file())
    vectors = settings.word_vectors_path
    for path in filter(None, (settings.label_names, settings.label_features, vectors)):
        storage.fetch(path)
    if settings.label_names:
        files.append(("label_names", settings.label_names))
        read_rows(settings.label_names)
    if settings.label_features:
        files.append(("label_features", settings.label_features))
    if vectors:
        dimension_of(vectors)  # which checks the beginning of the file
        files.append(("word_vectors", vectors))
        if vectors.suffix == ".npy":
            storage.fetch(vectors.with_name("vocab.txt"))
            files.append(("word_vectors", vectors.with_name("vocab.txt")))
    for use, file in files:
        local = local_path(file)
        if local is not None and local.resolve().is_relative_to(directory.resolve()):
            raise SettingsError(
                f"corpus.{use}: {file} is in {directory}, whose content preparation replaces; move it, or choose "
                "another corpus.name"
            )
    names = {reader.path: reader.fields.file for _, reader in readers if hasattr(reader, "fields")}
    rows = [row for corpus in prepared for row in corpus.manifest["sources"] if row["stamp"]]
    known = {tuple(row["stamp"]): row["content"] for row in rows}
    with Heartbeat("prepare: looking for changes in the inputs"):
        inputs = read_inputs(files, known, names)
    if settings.continues is not None:
        inputs.append(Input("continues", portable(settings.continues), "", prepared[-1].fingerprint, ()))
    return Inputs(settings, inputs)


def _existing(directory: Path) -> Corpus | None:
    """Return the corpus that was prepared in a directory before; None if there is none, or one that is incomplete.

    Raises:
        SettingsError: the directory contains something that is not a corpus, such as the user's raw data.
    """
    try:
        return Corpus.open(directory)
    except storage.IncompleteError:  # preparing it writes it again
        return None
    except SettingsError:
        if storage.is_empty(directory):
            return None
        with suppress(OSError, ValueError, KeyError, TypeError):
            if read_json(directory / MANIFEST)["format"] == FORMAT:
                return None
        raise SettingsError(
            f"{directory}: exists and is not a prepared corpus; choose another corpus.name or corpora, or remove it"
        ) from None
