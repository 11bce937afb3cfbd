"""Opens sources: each file, local or in a store, gets a reader, which one task runs as a stream of documents.

`open_readers` determines the format by file names and content, unless `corpus.source` sets it. `text_streams`
decompresses and decodes all formats of text.
"""

import glob
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyarrow import fs

from axml_ray.corpus.readers.installed_packages import InstalledPackage, installed_package_readers
from axml_ray.corpus.readers.json_lines import JsonLines, is_repository_json
from axml_ray.corpus.readers.json_objects import JsonObjects, is_json_document
from axml_ray.corpus.readers.line_blocks import Damage, read_lines
from axml_ray.corpus.readers.separated_values import SeparatedValues
from axml_ray.corpus.readers.source_files import SourceFile, is_url, list_files, local_path, without_compression
from axml_ray.corpus.readers.tables import STATE, ArrowRows, ParquetRows, saved_dataset_readers
from axml_ray.corpus.readers.text_lines import TEXT_SUFFIXES, PlainText, TextPairs, labels_file_of
from axml_ray.corpus.records.records import Document, Fields, Reader, Rejection, file_name
from axml_ray.corpus.records.values import storable
from axml_ray.settings import ReadingSettings

__all__ = ["Document", "InstalledPackage", "Reader", "Rejection", "installed_package_readers", "open_readers"]

_JSON = (".jsonl", ".json", ".ndjson")


@dataclass(frozen=True)
class Format:
    """A format of files: the suffixes of its files, besides that of a compression, and a function that opens one."""

    suffixes: tuple[str, ...]
    open: Callable[[SourceFile, Fields, ReadingSettings], Reader]


def _open_json(file: SourceFile, fields: Fields, settings: ReadingSettings) -> Reader:
    if is_json_document(file):
        return JsonObjects(file, fields)
    unnamed = Fields(separator=fields.separator, labelled=fields.labelled)
    if settings.source == "auto" and fields == unnamed and is_repository_json(file, labelled=fields.labelled):
        return JsonLines(file, replace(fields, title="title", text="content", labels="target_ind", id="uid"))
    return JsonLines(file, fields)


def _open_plain_text(file: SourceFile, fields: Fields, _: ReadingSettings) -> Reader:
    if fields.labelled:
        raise ValueError(
            f"{file}: reads like plain text, which has no labels; give JSON lines, CSV or Parquet, or set "
            "corpus.source to its format"
        )
    return PlainText(file, fields)


FORMATS = {
    "json_lines": Format(_JSON, _open_json),
    "parquet": Format((".parquet",), lambda file, fields, _: ParquetRows(file, fields)),
    "datasets": Format((".arrow",), lambda file, fields, _: ArrowRows(file, fields)),
    "csv": Format(
        (".csv", ".tsv", ".tab"), lambda file, fields, settings: SeparatedValues(file, fields, settings.csv_delimiter)
    ),
    "text_pairs": Format(TEXT_SUFFIXES, lambda file, fields, _: TextPairs(file, labels_file_of(file), fields)),
    "plain_text": Format((".txt",), _open_plain_text),
}
"""The formats by the value of `corpus.source`."""
_RECOGNISED = tuple(suffix for name, form in FORMATS.items() if name != "plain_text" for suffix in form.suffixes)
"""Suffixes of the files that are taken from a directory with source `auto`."""


def open_readers(
    patterns: Sequence[str | Path], settings: ReadingSettings, *, labelled: bool = True, otherwise: str = "plain_text"
) -> list[Reader]:
    """Return the readers of all files that the patterns name, sorted by path, each file once, also if links lead to it.

    Args:
        patterns: files, directories, globs or URLs; see `source_files.list_files`. The directory of a data set saved by
            Hugging Face `datasets` gives the files of the data set.
        settings: the format (`source`) and the fields of a record.
        labelled: if False, records without labels are accepted; a record's labels may then be empty.
        otherwise: format of a file that neither its name nor its first line tells, with source `auto`.

    Raises:
        OSError, ValueError: a pattern matches no file, a file cannot be opened, or its name does not fit the format.
    """
    labels = settings.labels_field
    fields = Fields(
        text=settings.text_field,
        title=settings.title_field,
        labels=labels[0] if isinstance(labels, tuple) and len(labels) == 1 else labels,
        id=settings.id_field,
        separator=settings.label_separator,
        labelled=labelled,
    )
    readers: dict[str, Reader] = {}
    files: list[SourceFile] = []
    for pattern in patterns:
        suffixes = _RECOGNISED if settings.source == "auto" else FORMATS[settings.source].suffixes
        if settings.source == "auto" and not labelled:
            suffixes = (*suffixes, *FORMATS["plain_text"].suffixes)
        # At a URL the listing is first, as it says what is wrong with the URL or its store.
        listed = list_files(pattern, suffixes) if is_url(pattern) else None
        directory = None if listed == [pattern] else _saved_dataset(pattern)
        if directory is not None and settings.source in ("auto", "datasets"):
            readers |= {str(reader.path): reader for reader in saved_dataset_readers(directory, fields)}
            continue
        files += list_files(pattern, suffixes) if listed is None else listed
    text_files: dict[SourceFile, SourceFile] = {}  # by their files of labels, which would be plain text
    for file in files:
        if _format_of(file, settings) == "text_pairs":
            labels_file = labels_file_of(file)
            other = text_files.setdefault(labels_file, file)
            if other != file:
                raise ValueError(f"{other} and {file} are the same texts, of {labels_file}; name one")
    readers |= {str(file): _reader(file, settings, fields, otherwise) for file in files if file not in text_files}
    once: dict[tuple[SourceFile, ...], Reader] = {}
    for _, reader in sorted(readers.items()):
        its_files = [getattr(reader, name) for name in ("path", "labels_path") if hasattr(reader, name)]
        once.setdefault(tuple(path.resolve() if (path := local_path(file)) else file for file in its_files), reader)
    return name_apart(list(once.values()))


def name_apart(readers: Sequence[Reader]) -> list[Reader]:
    """Return readers with distinct names of their files in ids: those of one name get the directories that differ.

    Example: `a/x/part.jsonl` and `b/x/part.jsonl` are named like that, and `x/part.jsonl` if it is the only one, is
    `part.jsonl`. What all of them have in common is left out, so that ids stay the same when a project is moved.
    """
    paths = [str(reader.path) for reader in readers]
    parts = [(path.partition("?")[0] if is_url(path) else path).split("/") for path in paths]
    groups: dict[str, list[int]] = {}
    for i, path in enumerate(parts):
        groups.setdefault(path[-1], []).append(i)
    named: list[Any] = list(readers)
    for same in groups.values():
        longest = max(len(parts[i]) for i in same)
        length = next((n for n in range(1, longest) if len({tuple(parts[i][-n:]) for i in same}) == len(same)), longest)
        for i in same if length > 1 else ():
            named[i] = replace(named[i], fields=replace(named[i].fields, file=storable("/".join(parts[i][-length:]))))
    return named


DATASET_DICT = "dataset_dict.json"
"""File of a Hugging Face data set of several splits, with their names."""


def _saved_dataset(pattern: str | Path) -> Path | None:
    """Return the directory that a pattern names if it holds a saved Hugging Face data set, else None."""
    if not is_url(pattern):
        path = Path(pattern).expanduser().absolute()
    elif glob.has_magic(str(pattern).partition("?")[0]):
        return None
    elif (local := local_path(pattern)) is not None:
        path = local
    else:
        store, place = fs.FileSystem.from_uri(str(pattern))
        if any(info.is_file for info in store.get_file_info([f"{place}/{name}" for name in (STATE, DATASET_DICT)])):
            raise ValueError(f"{pattern}: holds a saved data set; name its files, …/data-*.arrow")
        return None
    if (path / DATASET_DICT).is_file():
        raise ValueError(f"{path}: holds a data set of several splits; name the directory of one, e.g. {path}/train")
    return path if (path / STATE).is_file() else None


def _format_of(file: SourceFile, settings: ReadingSettings) -> str:
    """Return the format of a file by `corpus.source` or its name; `plain_text` if neither tells it."""
    if settings.source != "auto":
        return settings.source
    plain = without_compression(file_name(file))
    return next((name for name, form in FORMATS.items() if plain.endswith(form.suffixes)), "plain_text")


def _reader(file: SourceFile, settings: ReadingSettings, fields: Fields, otherwise: str) -> Reader:
    name = _format_of(file, settings)
    if name == "plain_text" and settings.source == "auto":  # its first line tells
        name = "json_lines" if _begins_like_json(file) else otherwise
    return FORMATS[name].open(file, fields, settings)


def _begins_like_json(file: SourceFile) -> bool:
    """Return whether a file is empty, or its first line that is not blank begins like an object or a list of JSON."""
    try:
        lines = (line for _, line in read_lines(file) if isinstance(line, Damage) or line.strip())
        first = next(lines, b"{")
    except (OSError, ValueError):
        return True  # the reader will report the error
    return isinstance(first, Damage) or re.match(rb'\s*(\{\s*("|\}|$)|\[\s*([\[{"\]]|$))', first) is not None
