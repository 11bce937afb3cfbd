"""Sources: places on disk or in a store become shards, each of which one task reads as a stream of documents.

`shards` tells the format by names and content; `corpus.source` overrides it. Readers by format:

| format | module |
|---|---|
| JSON lines, plain, gzip or zstd; the repository's `trn.json` | `json_lines` |
| Parquet, saved Hugging Face data sets and other Arrow files, CSV, TSV | `tables` |
| the Extreme Classification Repository's pairs of text files | `repository` |
| installed Python packages | `installed_packages` |

Merging equal texts and dropping rare labels need the whole corpus, so they are the work of `prepare.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from axml_ray.corpus.installed_packages import InstalledPackage, installed_package_shards
from axml_ray.corpus.json_lines import JsonLines, is_repository_json
from axml_ray.corpus.places import Place, files_of, format_suffix, is_url
from axml_ray.corpus.records import Document, Fields, Rejection, Shard, name_of
from axml_ray.corpus.repository import TEXT_SUFFIXES, TextPairs, labels_beside
from axml_ray.corpus.tables import STATE, ArrowRows, ParquetRows, SeparatedValues, saved_dataset
from axml_ray.settings import CorpusSettings

__all__ = ["Document", "InstalledPackage", "Rejection", "Shard", "installed_package_shards", "shards"]

_JSON = tuple(f".{kind}{zipped}" for kind in ("jsonl", "json") for zipped in ("", ".gz", ".zst"))
_CSV = tuple(f".{kind}{zipped}" for kind in ("csv", "tsv", "tab") for zipped in ("", ".gz", ".zst"))
SUFFIXES = {
    "json_lines": _JSON,
    "parquet": (".parquet",),
    "datasets": (".arrow",),
    "csv": _CSV,
    "text_pairs": TEXT_SUFFIXES,
    "auto": (*_JSON, ".parquet", ".arrow", *_CSV, *TEXT_SUFFIXES),
}


def shards(patterns: Sequence[str | Path], settings: CorpusSettings, *, labelled: bool = True) -> list[Shard]:
    """The shards of what the patterns name, sorted by path, each file once.

    Args:
        patterns: files, directories, globs or URLs; see `places.files_of`. A directory that Hugging Face `datasets`
            saved stands for its files.
        settings: the format (`source`) and the fields of a record.
        labelled: False takes records without labels too; a record's labels may then be empty.

    Raises:
        FileNotFoundError: a pattern matches no file; the message names it.
        ValueError: a directory has no file of the format, or a file's name doesn't fit it.
        OSError: a file cannot be opened.
    """
    if settings.source == "installed_packages":
        return list(installed_package_shards())
    fields = Fields(
        text=settings.text_field,
        title=settings.title_field,
        labels=settings.labels_field,
        id=settings.id_field,
        labelled=labelled,
    )
    found: dict[str, Shard] = {}
    for pattern in patterns:
        saved = _saved(pattern)
        if saved is not None and settings.source in ("auto", "datasets"):
            found |= {str(shard.path): shard for shard in saved_dataset(saved, fields)}
            continue
        for place in files_of(pattern, SUFFIXES[settings.source]):
            found[str(place)] = _shard(place, settings, fields)
    return [shard for _, shard in sorted(found.items())]


def _saved(pattern: str | Path) -> Path | None:
    """The directory of a saved data set."""
    if is_url(pattern):
        return None
    place = Path(pattern).expanduser().absolute()
    if (place / "dataset_dict.json").is_file():
        raise ValueError(f"{place}: holds a data set of several splits; name the directory of one, e.g. {place}/train")
    return place if (place / STATE).is_file() else None


def _shard(place: Place, settings: CorpusSettings, fields: Fields) -> Shard:
    form: str = settings.source
    if form == "auto":
        suffix, name = format_suffix(place), name_of(place)
        kinds = {".parquet": "parquet", ".arrow": "datasets", ".csv": "csv", ".tsv": "csv", ".tab": "csv"}
        form = "text_pairs" if name.endswith(TEXT_SUFFIXES) else kinds.get(suffix, "json_lines")
    if form == "parquet":
        return ParquetRows(place, fields)
    if form == "datasets":
        return ArrowRows(place, fields)
    if form == "csv":
        return SeparatedValues(place, replace(fields, separator=settings.label_separator), settings.csv_delimiter)
    if form == "text_pairs":
        return TextPairs(place, labels_beside(place), fields)
    if settings.source == "auto" and fields == Fields(labelled=fields.labelled) and is_repository_json(place):
        repository = Fields(
            title="title", text="content", labels="target_ind", id="uid", numbers=True, labelled=fields.labelled
        )
        return JsonLines(place, repository)
    return JsonLines(place, fields)
