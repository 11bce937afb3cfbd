"""The manifest of a run, `run.json`: what identifies what the run was trained on, and where its project lies.

| key | value |
|---|---|
| `format`, `version` | a run of another version was trained with other keys or seeds, and is refused |
| `project` | the project's directory, in which the relative paths of `settings.yaml` start; and where it was then |
| `corpus`, `inputs` | fingerprint of the corpus, and key of its settings and inputs |
| `continues` | digest of each label tree, with its networks, that the run continues |
"""

import os
from pathlib import Path
from typing import Any

from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json, write_json
from axml_ray.core.paths import project_directory, url_of
from axml_ray.core.run_layout import RunLayout

FORMAT, VERSION = "axml-ray run", 2


def read_run_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a run.

    Raises:
        SettingsError: there is no run, its manifest is damaged, or it is of another version.
    """
    layout = RunLayout(directory)
    storage.fetch(directory, recursive=False)
    if not layout.settings.is_file():
        raise SettingsError(
            f"{directory}: not a run ({layout.settings.name} is missing); train one with axml-ray train"
        )
    try:
        manifest = read_json(layout.manifest)
        is_run = manifest["format"] == FORMAT and manifest["version"] == VERSION
    except FileNotFoundError:
        is_run = False
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{layout.manifest}: not the manifest of a run ({error}); train it under another --name"
        ) from None
    if not is_run:
        raise SettingsError(
            f"{directory}: a run of another version of axml-ray, whose label trees and networks had other seeds; use "
            "it with that version, or train it again under another --name"
        )
    return dict(manifest)


def write_run_manifest(directory: Path, **content: Any) -> None:
    """Write the manifest of a run with the project's present directory and further keys."""
    home = Path(os.path.normpath(project_directory()))
    inside = directory.is_relative_to(home) and url_of(directory) is None
    project = [os.path.relpath(home, directory) if inside else str(home), str(home)]
    directory.mkdir(parents=True, exist_ok=True)
    write_json(RunLayout(directory).manifest, {"format": FORMAT, "version": VERSION, "project": project, **content})


def project_of(directory: Path, corpus: Path) -> Path:
    """Return the project's directory of a run: where it is now, if it was moved or copied together with the run.

    Args:
        directory: absolute path of the directory of the run.
        corpus: directory of its corpus, relative if it lies in the project, which is recognised by it.
    """
    relative, absolute = read_run_manifest(directory)["project"]
    moved, before = Path(os.path.normpath(directory / relative)), Path(absolute)
    has_corpus = not corpus.is_absolute() and (moved / corpus).is_dir()
    return moved if has_corpus or not before.is_dir() else before
