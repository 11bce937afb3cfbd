"""Paths of a project: relative ones start in its directory, and are stored as such. A URL is the path of its cache.

All code works on paths. A URL of an object store corresponds to one path below the node's cache, so each process can
tell the one from the other: `s3://bucket/runs/mine` is `<cache>/s3/bucket/runs/mine` (`storage.py` moves the files).
"""

import argparse
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from urllib.parse import quote

from axml_ray.core.errors import SettingsError

HOME_VARIABLE = "AXML_RAY_HOME"
CACHE_VARIABLE = "AXML_RAY_CACHE"
STORES = ("s3", "gs")
"""Schemes of the URLs of object stores."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//?)(.*)", re.DOTALL)
_home: ContextVar[Path | None] = ContextVar("home", default=None)


class UrlError(SettingsError, argparse.ArgumentTypeError):
    """A URL that cannot be used; as the `type` of a flag, argparse prints its message."""


def project_directory() -> Path:
    """Return the directory where relative paths start: `$AXML_RAY_HOME`, else the current directory."""
    return _home.get() or Path(os.environ.get(HOME_VARIABLE) or ".").expanduser().absolute()


@contextmanager
def paths_below(directory: Path) -> Iterator[None]:
    """Let relative paths start at `directory` within the block, as when the settings of a run elsewhere are read."""
    token = _home.set(directory)
    try:
        yield
    finally:
        _home.reset(token)


def cache() -> Path:
    """Return the directory of the files of URLs: `$AXML_RAY_CACHE`, else one of this user; the same on all nodes."""
    default = Path(tempfile.gettempdir()) / f"axml-ray-{os.getuid()}"
    return Path(os.environ.get(CACHE_VARIABLE) or default).resolve()


def absolute(path: str | Path) -> Path:
    """Return an absolute path, starting at the project's directory; globs are kept. A URL becomes a path of the cache.

    Raises:
        UrlError: a URL has an unknown scheme, no bucket, or options or credentials in it; or a user has no home.
    """
    if not is_url(path) or (match := _URL.fullmatch(str(path))) is None:
        try:
            return Path(os.path.normpath(project_directory() / Path(path).expanduser()))
        except RuntimeError:
            raise UrlError(f"{path}: there is no such user; give the path of the directory") from None
    scheme, rest = match[1].lower(), match[3]
    if scheme == "file":
        return Path(os.path.normpath(f"/{rest.removeprefix('localhost').lstrip('/')}"))
    if scheme not in STORES:
        known = ", ".join(f"{store}://BUCKET/…" for store in STORES)
        raise UrlError(f"{scheme}://…: state cannot be kept there; give {known}, file:///… or a path")
    check_no_secret(f"{scheme}://{rest}")
    parts = [part for part in rest.split("/") if part not in ("", ".")]
    if not parts or "?" in rest or "#" in rest:
        raise UrlError(f"{scheme}://{rest.partition('?')[0]}: give {scheme}://BUCKET/…, without options")
    if any(part.startswith(".") for part in parts):  # such objects are temporary, and never published
        raise UrlError(f"{scheme}://{rest}: no part of a URL may begin with a dot; choose another name")
    return cache().joinpath(scheme, *parts)


def is_url(path: str | Path) -> bool:
    """Return whether a path is a URL, even one of whose two slashes `Path` made one; never a directory called `s3:`."""
    match = _URL.fullmatch(str(path))
    return match is not None and (match[2] == "//" or match[1].lower() in (*STORES, "file"))


def check_no_secret(url: str) -> None:
    """Raise UrlError, without the secret, if a URL has a user or a password: it would be stored in files."""
    scheme, _, rest = url.partition("://")
    user, at, place = rest.partition("/")[0].rpartition("@")
    if at and (scheme in STORES or ":" in user):
        raise UrlError(f"{scheme}://…@{place}…: credentials in a URL would be stored; set them in the environment")


def url_of(path: str | Path) -> str | None:
    """Return the URL of a path of the cache; None for other paths."""
    path = Path(path)
    if not path.is_relative_to(cache()):
        return None
    scheme, *parts = path.relative_to(cache()).parts or ("",)
    return f"{scheme}://{'/'.join(parts)}" if scheme in STORES and parts else None


def uri_of(path: str | Path) -> str:
    """Return where a directory is as Ray and PyArrow read it: its path, or its URL with blanks and such escaped."""
    url = url_of(path)
    return str(path) if url is None else quote(url, safe=":/")


def with_urls(text: object) -> str:
    """Return a text in which paths of the cache are URLs, as people know them."""
    written = str(text)
    for scheme in STORES:
        written = written.replace(f"{cache()}/{scheme}/", f"{scheme}://")
    return written


def portable(place: str | Path) -> str:
    """Return a path as it is stored: a URL if it has one, relative if it lies in the project's directory."""
    home = os.path.normpath(project_directory())
    if isinstance(place, Path) and (url := url_of(place)):
        return url
    inside = isinstance(place, Path) and place.is_relative_to(home)
    return Path(place).relative_to(home).as_posix() if inside else str(place)


def absolute_place(place: str | Path) -> str | Path:
    """Return an absolute path or glob; a URL is returned unchanged.

    Raises:
        UrlError: the URL has credentials in it.
    """
    if "://" not in str(place):
        return absolute(place)
    check_no_secret(str(place))
    return place
