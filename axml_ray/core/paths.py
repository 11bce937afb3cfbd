"""Paths of a project: relative ones start in its directory, and are stored as such."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

HOME_VARIABLE = "AXML_RAY_HOME"
_home: ContextVar[Path | None] = ContextVar("home", default=None)


def project_directory() -> Path:
    """Return the directory where relative paths start: `$AXML_RAY_HOME`, else the current directory."""
    return _home.get() or Path(os.environ.get(HOME_VARIABLE) or Path.cwd())


@contextmanager
def paths_below(directory: Path) -> Iterator[None]:
    """Let relative paths start at `directory` within the block, as when the settings of a run elsewhere are read."""
    token = _home.set(directory)
    try:
        yield
    finally:
        _home.reset(token)


def absolute(path: str | Path) -> Path:
    """Return an absolute path, starting at the project's directory; globs are kept."""
    return Path(os.path.normpath(project_directory() / Path(path).expanduser()))


def portable(place: str | Path) -> str:
    """Return a path as it is stored: relative if it lies in the project's directory; a URL is returned unchanged."""
    home = os.path.normpath(project_directory())
    inside = isinstance(place, Path) and place.is_relative_to(home)
    return Path(place).relative_to(home).as_posix() if inside else str(place)


def absolute_place(place: str | Path) -> str | Path:
    """Return an absolute path or glob; a URL is returned unchanged."""
    return place if "://" in str(place) else absolute(place)
