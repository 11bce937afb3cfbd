"""Detects whether the settings or input files of a corpus changed since it was prepared."""

from pathlib import Path
from typing import Any

from axml_ray.corpus.source_files import SourceFile, file_state
from axml_ray.settings import CorpusSettings


def input_files(reader: Any) -> list[SourceFile]:
    """Return the files that a reader reads."""
    return [reader.path, *([reader.labels_path] if hasattr(reader, "labels_path") else [])]


def input_state(file: SourceFile) -> tuple[int, int]:
    """Return two numbers that change when the content of an input changes.

    For a file, they are its size and modification time. For the directory of a Python package, they are the total size
    and the number of its source files, so that importing it, which may write byte code, is no change.

    Raises:
        OSError: the file cannot be read.
    """
    if isinstance(file, Path) and file.is_dir():
        sizes = [source.stat().st_size for source in file.rglob("*.py") if source.is_file()]
        return sum(sizes), len(sizes)
    return file_state(file)


def describe_changes(manifest: dict[str, Any], settings: CorpusSettings, inputs: list[list[Any]]) -> str:
    """Describe for a log line why a corpus is out of date: changed settings, else changed inputs, else another version.

    Args:
        manifest: manifest of the prepared corpus.
        settings: current settings.
        inputs: current inputs, each as split, file and the two numbers of `input_state`.
    """
    before, now = manifest.get("settings", {}), settings.model_dump(mode="json")
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if keys:
        return "made with other settings (" + ", ".join(f"corpus.{key}" for key in keys) + ")"
    states = {tuple(row[:2]): row[2:] for row in manifest.get("sources", [])}
    changed = [row[1] for row in inputs if states.get(tuple(row[:2])) != row[2:]]
    removed = sorted(path for split, path in states.keys() - {tuple(row[:2]) for row in inputs})
    names = [*changed, *removed]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"made from other inputs ({', '.join(names[:3])}{more})" if names else "made by another version"
