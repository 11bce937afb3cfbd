"""Files at URLs: what is below the node's cache (`paths.py`) is published to an object store, and fetched from it.

The store is the truth, and each node's cache a copy of those parts that the node has used.

- A file is one object, which appears at once.
- A directory that is written atomically has a manifest, `.axml-ray.json`, which is uploaded last and lists object, size
  and SHA-256 of each file. Its replacement is uploaded below a hidden prefix of its own, so that a reader gets either.
- A copy has the modification time of its object, with the beginning of its SHA-256, if that is known, as fraction of a
  second. With another time or size, it is fetched again.
- A process that finds no other user of the cache removes copies that were not used for long (`node_cache.py`).

Paths that are not below the cache, and hidden ones such as temporary files, have no URL: nothing is done for them.
Credentials, region and endpoint come from the environment of each node (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, …).
"""

import errno
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from axml_ray.core.errors import SettingsError
from axml_ray.core.node_cache import lock_copy, use_cache
from axml_ray.core.paths import CACHE_VARIABLE, cache, url_of

MANIFEST = ".axml-ray.json"
"""Name of the object that lists the files of a published directory."""
RACY_NS = 2_000_000_000
"""Objects that are as new as this, in nanoseconds, may change again without another time, which has whole seconds."""
LEFT_NS = 24 * 3600 * 1_000_000_000
"""Objects of an unfinished upload that are older than this, in nanoseconds, are removed."""
THREADS, ATTEMPTS = 8, 5
_WORK = re.compile(r"\.(.+)\.([0-9a-f]{8})")
_ELSEWHERE = ".elsewhere"
"""File that marks the part of a temporary directory that is on another node than the first worker's."""


class StoreError(SettingsError):
    """An object store cannot be used, or lacks a part of what it lists."""


class IncompleteError(StoreError):
    """A directory of a store lacks an object that its manifest lists."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a store: the path of its object, its size in bytes, its time, and its SHA-256 if a manifest has it."""

    key: str
    size: int
    mtime_ns: int
    sha256: str | None = None


def publish(content: Path, path: Path, suffix: str | None = None, check: Callable[[], None] = lambda: None) -> None:
    """Upload a finished file or directory under the URL of `path`, the name that it is about to get.

    Args:
        content: the file or directory.
        path: its final path; without a URL, nothing is done.
        suffix: hexadecimal digits that other workers use to `share` files of the same directory.
        check: called before the manifest is written; it raises if this process may not write any more.

    Raises:
        StoreError: the store cannot be used.
    """
    if not has_url(path):
        return
    store, key = _locate(path)
    with _explained(path):
        if content.is_file():
            _copy(content, store, key)
            _stamp(content, _mtime_ns(store.get_file_info(key)))
            return
        is_new = not _listed(store, key)
        replaced = {} if is_new else _entries(store, f"{key}/{MANIFEST}")
        prefix = "" if is_new and suffix is None else f".{suffix or uuid.uuid4().hex[:8]}/"
        names = sorted(file.relative_to(content).as_posix() for file in _visible(content))
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda name: _copy(content / name, store, f"{key}/{prefix}{name}"), names))
            digests = list(threads.map(lambda name: sha256(content / name), names))
        infos = {info.path.removeprefix(f"{key}/"): info for info in _listed(store, key)}
        entries = {}
        for name, info in infos.items():  # of other workers: .<suffix>/<SHA-256>/<name>
            if suffix and (match := re.fullmatch(rf"\.{suffix}/([0-9a-f]{{64}})/(.+)", name)):
                entries[match[2]] = {"object": name, "bytes": info.size, "sha256": match[1]}
        for name, digest in zip(names, digests, strict=True):
            size = (content / name).stat().st_size
            if prefix + name not in infos or infos[prefix + name].size != size:
                raise StoreError(f"{url_of(path)}/{name}: has not arrived whole; run the command again")
            entries[name] = {"object": prefix + name, "bytes": size, "sha256": digest}
            _stamp(content / name, _mtime_ns(infos[prefix + name], digest))
        check()
        _write(store, f"{key}/{MANIFEST}", json.dumps({"files": entries}, indent=2).encode())
        old = {entry["object"] for entry in replaced.values()}
        for name, info in infos.items():
            # Of writers that were killed; without a lease, a new one may be of a living one.
            is_left = suffix is not None or time.time_ns() - info.mtime_ns > LEFT_NS
            if re.match(r"\.[0-9a-f]{8}/", name) and is_left:
                old.add(name)
        for name in infos.keys() & old - {entry["object"] for entry in entries.values()}:
            with suppress(FileNotFoundError):
                store.delete_file(f"{key}/{name}")


def fetch(path: Path, names: Collection[str] | None = None, *, recursive: bool = True) -> None:
    """Make the node's copy of a file or directory what the store has: fetch what is new, remove what is gone.

    Args:
        path: the file or directory; without a URL, nothing is done.
        names: files below it that are needed; by default all.
        recursive: whether files in directories below are needed, too.

    Raises:
        StoreError: the store cannot be used, or a file is not what its manifest says.
    """
    for attempt in range(ATTEMPTS if has_url(path) else 0):
        try:
            return _fetch(path, names, recursive)
        except FileNotFoundError as error:  # it is just being replaced
            if attempt == ATTEMPTS - 1:
                raise IncompleteError(
                    f"{url_of(path)}: is incomplete ({error}); remove it, and write it again"
                ) from None
            time.sleep(0.2 * 2**attempt)


def _fetch(path: Path, names: Collection[str] | None, recursive: bool) -> None:
    # Listed before the store: what another process on this node publishes meanwhile must not seem to be gone.
    local_files = [path] if path.is_file() else list(_visible(path, recursive))
    stored = {path / name: file for name, file in _index(path, recursive).items()}
    gone = [file for file in local_files if file not in stored]
    needed = {file: entry for file, entry in stored.items() if names is None or str(file.relative_to(path)) in names}
    if not gone and all(_is_current(file, entry) for file, entry in needed.items()):
        return
    with lock_copy(path):
        for file in gone:
            file.unlink(missing_ok=True)
            if file.parent != path:
                with suppress(OSError):  # it is not empty
                    file.parent.rmdir()
        stale = [(file, entry) for file, entry in needed.items() if not _is_current(file, entry)]
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda one: _download(*one), stale))


def _download(path: Path, stored: StoredFile) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with _explained(path):
            _copy(stored.key, _locate(path)[0], temporary)
        if temporary.stat().st_size != stored.size or stored.sha256 not in (None, sha256(temporary)):
            raise FileNotFoundError(f"{path.name} was changed or damaged since it was written")
        is_settled = stored.sha256 is not None or time.time_ns() - stored.mtime_ns > RACY_NS
        _stamp(temporary, stored.mtime_ns if is_settled else 0)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def is_empty(path: Path) -> bool:
    """Return whether there is no file at a path or below it, at a URL none in the store: a copy may have remains."""
    if has_url(path):
        return not sizes(path)
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def sizes(directory: Path) -> dict[str, int]:
    """Return the sizes in bytes of the files below a directory by their relative paths, at a URL those of the store."""
    if has_url(directory):
        return {name: file.size for name, file in _index(directory, recursive=True).items()}
    files = (file for file in directory.rglob("*") if file.is_file())
    return {file.relative_to(directory).as_posix(): file.stat().st_size for file in files}


def remove(path: Path) -> None:
    """Remove a file or directory, if it exists, also from the store."""
    if url_of(path) is not None:
        store, key = _locate(path)
        with _explained(path):
            with suppress(FileNotFoundError):
                store.delete_file(f"{key}/{MANIFEST}")  # first, so that it is never there in part
            for info in [*_listed(store, key), store.get_file_info(key)]:
                if info.is_file:
                    with suppress(FileNotFoundError):
                        store.delete_file(info.path)
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# Directories that several workers write together (training/level_files.py)


def join_directory(work: Path) -> bool:
    """Make this worker's part of a temporary directory, if the first worker has made it on another node.

    Returns:
        Whether this worker has made it, and must remove it.
    """
    if url_of(work) is None or work.is_dir():
        return False
    try:
        work.mkdir(parents=True)
    except FileExistsError:  # another worker of this node was first
        return False
    (work / _ELSEWHERE).touch()
    return True


def share(file: Path) -> None:
    """Upload a file of a temporary directory, unless the first worker, who publishes it, is on this node."""
    match = _WORK.fullmatch(file.parent.name)
    if match and (file.parent / _ELSEWHERE).exists():
        store, key = _locate(file.parent.with_name(match[1]))
        with _explained(file):
            _copy(file, store, f"{key}/.{match[2]}/{sha256(file)}/{file.name}")


def shared(work: Path) -> dict[str, StoredFile]:
    """Return the files that workers on other nodes have shared of a temporary directory."""
    match = _WORK.fullmatch(work.name)
    if match is None or not has_url(work.with_name(match[1])):
        return {}
    store, key = _locate(work.with_name(match[1]))
    with _explained(work):
        infos = _listed(store, f"{key}/.{match[2]}")
    parts = [(info, info.path.split("/")[-2]) for info in infos]
    return {info.base_name: StoredFile(info.path, info.size, _mtime_ns(info), sha) for info, sha in parts}


def collect(work: Path) -> None:
    """Move the files that other nodes have shared into the temporary directory on this node."""
    for name, stored in shared(work).items():
        try:
            _download(work / name, stored)
        except FileNotFoundError as error:
            raise IncompleteError(f"{url_of(work)}: {error}; run the command again") from None
        _locate(work)[0].delete_file(stored.key)


# Single small files, such as those of a lease, which are never cached


def read(path: Path) -> bytes:
    """Return the content of a small file; raise FileNotFoundError if there is none."""
    if url_of(path) is None:
        return path.read_bytes()
    store, key = _locate(path)
    with _explained(path), store.open_input_file(key) as stream:
        content: bytes = stream.read()
        return content


def write(path: Path, content: bytes) -> None:
    """Write a small file, at a URL at once."""
    if url_of(path) is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    else:
        store, key = _locate(path)
        with _explained(path):
            _write(store, key, content)


def children(directory: Path) -> set[Path]:
    """Return the files and directories in a directory, hidden ones too; none if it does not exist."""
    entries = set(directory.iterdir()) if directory.is_dir() else set()
    if url_of(directory) is not None:
        from pyarrow import fs

        store, key = _locate(directory)
        with _explained(directory):
            listed = store.get_file_info(fs.FileSelector(key, allow_not_found=True))
        entries |= {directory / info.base_name for info in listed}
    return entries


# The store


def has_url(path: Path) -> bool:
    """Return whether a path has a URL and is not hidden, so that it is published."""
    url = url_of(path)
    return url is not None and not any(part.startswith(".") for part in url.split("/")[3:])


@lru_cache
def _file_system(scheme: str, bucket: str) -> Any:
    """Return the file system of a bucket, after making the node's cache."""
    from pyarrow import fs

    use_cache(cache())
    # By default, pyarrow tries a store of Google for a quarter of an hour.
    limits = "?retry_limit_seconds=30" if scheme == "gs" else ""
    store = fs.FileSystem.from_uri(f"{scheme}://{bucket}{limits}")[0]
    if store.get_file_info(bucket).type == fs.FileType.NotFound:
        raise OSError("there is no such bucket")
    return store


def _locate(path: Path) -> tuple[Any, str]:
    """Return the file system of a path's URL, and the path of its object there."""
    scheme, bucket, *_ = path.relative_to(cache()).parts
    with _explained(path):
        return _file_system(scheme, bucket), path.relative_to(cache() / scheme).as_posix()


def _listed(store: Any, key: str) -> list[Any]:
    from pyarrow import fs

    listed = store.get_file_info(fs.FileSelector(key, recursive=True, allow_not_found=True))
    return [info for info in listed if info.is_file]


def _index(path: Path, recursive: bool) -> dict[str, StoredFile]:
    """Return the files of the store below a path, or the file itself as `.`, without hidden ones.

    Raises:
        FileNotFoundError: an object of a manifest is missing, or not the one that it lists.
    """
    from pyarrow import fs

    store, key = _locate(path)
    with _explained(path):
        info = store.get_file_info(key)
        if info.is_file:
            return {".": StoredFile(key, info.size, _mtime_ns(info))}
        listed = store.get_file_info(fs.FileSelector(key, recursive=recursive, allow_not_found=True))
        infos = {info.path.removeprefix(f"{key}/"): info for info in listed if info.is_file}
        manifests = {}
        for name in infos:
            if name.rpartition("/")[2] == MANIFEST:
                manifests[name.removesuffix(MANIFEST)] = _entries(store, f"{key}/{name}")
    files = {}
    for name, info in infos.items():
        is_hidden = any(part.startswith(".") for part in name.split("/"))
        if not is_hidden and not any(name.startswith(unit) for unit in manifests):
            files[name] = StoredFile(info.path, info.size, _mtime_ns(info))
    for unit, entries in manifests.items():
        for name, entry in entries.items():
            info = infos.get(unit + entry["object"])
            if info is None and not recursive:  # it is not among those that were listed
                continue
            if info is None or info.size != entry["bytes"]:
                raise FileNotFoundError(f"{unit}{name} is missing or not {entry['bytes']} bytes long")
            mtime_ns = _mtime_ns(info, entry["sha256"])
            files[unit + name] = StoredFile(info.path, info.size, mtime_ns, entry["sha256"])
    return files


def _entries(store: Any, key: str) -> dict[str, dict[str, Any]]:
    """Return the files that a manifest lists, by name; none if there is no manifest."""
    with suppress(FileNotFoundError), store.open_input_file(key) as stream:
        return dict(json.loads(stream.read())["files"])
    return {}


def _copy(source: Any, store: Any, target: Any) -> None:
    """Upload a local path, or download an object to a local path.

    Not by a stream in Python, which would publish half of a file when an exception closes it.
    """
    from pyarrow import fs

    local = fs.LocalFileSystem()
    if isinstance(source, Path):
        fs.copy_files(str(source), target, source_filesystem=local, destination_filesystem=store)
    else:
        fs.copy_files(source, str(target), source_filesystem=store, destination_filesystem=local)


def _write(store: Any, key: str, content: bytes) -> None:
    with store.open_output_stream(key) as stream:
        stream.write(content)


def _visible(directory: Path, recursive: bool = True) -> Iterator[Path]:
    for file in directory.rglob("*") if recursive else directory.glob("*"):
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(directory).parts):
            yield file


def _is_current(path: Path, stored: StoredFile) -> bool:
    with suppress(FileNotFoundError):
        local = path.stat()
        return (local.st_size, local.st_mtime_ns) == (stored.size, stored.mtime_ns)
    return False


def _mtime_ns(info: Any, sha256: str = "0") -> int:
    """Return the modification time that a copy of an object gets; lists of S3 have whole seconds only."""
    return int(info.mtime_ns // 1_000_000_000 * 1_000_000_000 + int(sha256[:7], 16))


def _stamp(path: Path, mtime_ns: int) -> None:
    os.utime(path, ns=(time.time_ns(), mtime_ns))


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an error of the store, of several classes, into a StoreError of one line; what is missing stays missing."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # pyarrow's are of both
        if isinstance(error, SettingsError):
            raise
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(
                f"{cache()}: no space left to copy {url_of(path)}; free some, or set {CACHE_VARIABLE}"
            ) from None
        reason = " ".join(str(error).split())[:400]
        raise StoreError(
            f"{url_of(path)}: {reason}; check the bucket, and region and credentials in the environment of all nodes"
        ) from None
