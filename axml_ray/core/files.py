"""Atomic writes of files and directories.

Content is written under a temporary name in the same directory and renamed when it is complete, so that a reader, or a
restarted job, never takes an incomplete file for a finished one. A write that fails leaves nothing, and one that fails
on a full disk says which path needs how much. Nothing is published in a directory that another job has taken over
(`lease.py`). What has a URL is uploaded before it is renamed (`storage.py`).
"""

import errno
import glob
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from axml_ray.core import storage
from axml_ray.core.limits import available_cpus
from axml_ray.core.paths import url_of

log = logging.getLogger(__name__)

HALF = re.compile("[\ud800-\udfff]")
"""Half a surrogate pair: Python represents a byte of a file name that isn't UTF-8 in this way."""


FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_MESSAGES = (f"(os error {errno.ENOSPC})", f"(os error {errno.EDQUOT})", "Not enough free space", "requested and")
"""Messages of safetensors and NumPy, whose errors of a full disk have no number."""
LEFTOVER = re.compile(r"\.(.+)\.([0-9a-f]{8})(\.old)?")
"""Name of the temporary file or directory of a path: its name, and random digits."""


class Fence(Protocol):
    """The check whether this process may still write in a directory, such as a lease."""

    def check(self) -> None:
        """Raise an error if it may not."""


fences: dict[Path, Fence] = {}
"""The fences of this process, by the directory that they protect."""


def check_fences(path: Path) -> None:
    """Raise LeaseLostError if another job has taken over a directory above `path`."""
    for directory, fence in list(fences.items()):
        if path.is_relative_to(directory):
            fence.check()


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` when the block ends, and is removed if it raises.

    Raises:
        OSError: the disk is full; the message names `path` and the space that is left.
        LeaseLostError: another job has taken over the directory.
    """
    check_fences(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    if url_of(path) is not None:  # the directory may have been made on another node
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _full_disk_named(path):
            yield temporary
            _flush(temporary)
            check_fences(path)
            storage.publish(temporary, path)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_directory(path: Path, suffix: str | None = None) -> Iterator[Path]:
    """Yield a temporary directory, which replaces `path` when the block ends, and is removed if it raises.

    Links are followed. Temporary directories that killed processes left are removed, and if the replacement itself was
    interrupted, it is finished.

    Args:
        path: directory to write or replace.
        suffix: eight hexadecimal digits that make the temporary name unique, if other processes must know it
            (`temporary_directory`); by default random ones.

    Raises:
        OSError: `path` is a mount point, which can't be renamed; or the disk is full.
        LeaseLostError: another job has taken over the directory.
    """
    check_fences(path)
    named, path = path, path.resolve()
    if path.is_mount():
        raise OSError(errno.EBUSY, "a volume is mounted here; choose a directory in it", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(path)
    with _locked_directory(path, suffix) as temporary:
        try:
            with _full_disk_named(path):
                yield temporary
                for file in temporary.rglob("*"):
                    if file.is_file():
                        _flush(file)
            check_fences(named)
            storage.publish(temporary, path, suffix, lambda: check_fences(named))
            # A directory that is not empty cannot be replaced by one rename; `_settle` repairs a stop between the two.
            if path.exists():
                path.rename(_set_aside(temporary))
            temporary.rename(path)
        finally:
            _settle(temporary, path)


@contextmanager
def scratch_directory(name: str) -> Iterator[Path]:
    """Yield a new directory on the local disk, which only this user can read, and remove it at the end of the block.

    Those that killed processes left under the same name are removed.

    Raises:
        OSError: the disk is full; the message names the directory.
    """
    path = Path(tempfile.gettempdir()) / name
    clear_leftovers(path)
    with _locked_directory(path, None) as directory:
        try:
            with _full_disk_named(directory):
                directory.chmod(0o700)
                yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def copy_files(source: Path, to: Path) -> None:
    """Copy the files of a directory into another one; each appears when it is complete."""
    to.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        with whole_file(to / file.name) as temporary:
            shutil.copyfile(file, temporary)


def temporary_directory(path: Path, suffix: str) -> Path:
    """Return the temporary directory of `whole_directory`."""
    path = path.resolve()
    return path.with_name(f".{path.name}.{suffix}")


def _set_aside(temporary: Path) -> Path:
    """Return the path of the older directory while a temporary one takes its name."""
    return temporary.with_name(f"{temporary.name}.old")


def _settle(temporary: Path, path: Path) -> None:
    """Finish the replacement of `path` if it was interrupted, and remove what is left of it."""
    old = _set_aside(temporary)
    # The older directory is set aside only when the new one is complete.
    if old.exists() and not path.exists():
        (temporary if temporary.exists() else old).rename(path)
    for left in (temporary, old):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked_directory(path: Path, suffix: str | None) -> Iterator[Path]:
    """Yield a new directory next to `path`, locked until this process ends, even if it is killed."""
    while True:
        temporary = temporary_directory(path, suffix or uuid.uuid4().hex[:8])
        temporary.mkdir()
        lock = os.open(temporary, os.O_RDONLY)
        try:
            with suppress(OSError):  # not every file system has locks
                _lock(lock, wait=True)
            if temporary.exists():  # else another process removed it as a leftover before it was locked
                yield temporary
                return
        finally:
            os.close(lock)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Let one process at a time work in a directory, if the file system has locks."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            _lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> None:
    """Lock an open file or directory until it is closed.

    Raises:
        OSError: the file system has no locks or, without `wait`, another process has locked it.
    """
    import fcntl  # Windows has no such module, and must be able to import this one to be refused in plain words

    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def clear_leftovers(path: Path) -> None:
    """Finish or remove what killed processes left of the replacement of the directory `path`.

    Temporary directories of running processes are locked, and stay.
    """
    path = path.resolve()
    pattern = f".{glob.escape(path.name)}.{8 * '[0-9a-f]'}"
    left = {*path.parent.glob(pattern), *(old.with_suffix("") for old in path.parent.glob(f"{pattern}.old"))}
    for temporary in sorted(left):
        is_interrupted = _set_aside(temporary).exists() and not path.exists()
        with ExitStack() as stack:
            try:
                if temporary.exists():
                    lock = os.open(temporary, os.O_RDONLY)
                    stack.callback(os.close, lock)
                    _lock(lock, wait=False)
            except (BlockingIOError, FileNotFoundError):  # in use, or removed by another process just now
                continue
            except OSError:  # without locks, another process may still be writing a copy that is not whole
                if not is_interrupted:
                    continue
            what = "finishing the interrupted replacement of" if is_interrupted else "removing a half-written copy of"
            log.info("%s %s", what, path)
            _settle(temporary, path)


def remove_leftovers(directory: Path) -> None:
    """Finish or remove what all writers left below a directory, locked or not: only for the owner of the directory."""
    for left in sorted(directory.rglob(".*")):
        match = LEFTOVER.fullmatch(left.name)
        if match is None or not left.exists():
            continue
        path, temporary = left.with_name(match[1]), left.with_name(f".{match[1]}.{match[2]}")
        if _set_aside(temporary).exists() and not path.exists():
            _settle(temporary, path)
        elif left.is_dir():
            # By one rename, after which a writer that still runs cannot publish the directory, not even in part.
            with suppress(FileNotFoundError):
                shutil.rmtree(left.rename(left.with_name(f".{match[1]}.{uuid.uuid4().hex[:8]}")), ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def finish_replacement(path: Path) -> None:
    """Finish the replacement of a directory that a kill interrupted, if it is missing, so that it can be opened."""
    if not path.exists():
        with suppress(OSError):  # a reader may not be allowed to write here
            clear_leftovers(path)


@contextmanager
def _full_disk_named(path: Path) -> Iterator[None]:
    """Turn any error of a full disk into an OSError with the path that was to be written and the space that is left."""
    try:
        yield
    except Exception as error:
        if getattr(error, "errno", None) not in FULL and not any(text in str(error) for text in FULL_MESSAGES):
            raise
        free = shutil.disk_usage(path.parent).free / 2**20
        reason = f"the disk is full, or a quota used up ({free:,.1f} MiB are free); make room and run the command again"
        raise OSError(errno.ENOSPC, reason, str(path)) from error


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def reserve_space(path: Path) -> None:
    """Allocate all blocks of a file: where they are missing on a full disk, writing to a memory map kills the process.

    Raises:
        OSError: the disk is full.
    """
    size = path.stat().st_size
    if size and hasattr(os, "posix_fallocate"):  # macOS has none
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)


def save_tensors(tensors: Mapping[str, Any], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write PyTorch tensors to a safetensors file with the permissions of other new files.

    `save_file` of safetensors 0.8 makes files that only their owner can read, so a server of another user
    couldn't open them.
    """
    from safetensors.torch import save_file  # imports PyTorch, which most callers of this module don't need

    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata)
    path.chmod(mode)


def content_digest(directory: Path, files: Sequence[Path]) -> str:
    """Return a digest of the names and contents of files, twelve hexadecimal digits.

    Args:
        directory: directory from which the names are taken.
        files: paths of files below it, in a fixed order.
    """
    digest = hashlib.sha256()
    with ThreadPoolExecutor(available_cpus()) as threads:
        for path, content in zip(files, threads.map(storage.sha256, files), strict=True):
            digest.update(f"{path.relative_to(directory).as_posix()}\0".encode())
            digest.update(bytes.fromhex(content))
    return digest.hexdigest()[:12]


def file_bytes(directory: Path) -> int:
    """Return the total size in bytes of the files below a directory, also of those that this node has not fetched."""
    return sum(storage.sizes(directory).values())


def remove_directory(directory: Path) -> None:
    """Remove a directory and what killed processes left of its replacement, also from the store of its URL."""
    check_fences(directory)
    clear_leftovers(directory)
    storage.remove(directory)


def write_json(path: Path, content: Any) -> None:
    """Write `content` to `path` as JSON, atomically. File names in it need not be UTF-8."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    if HALF.search(text):
        text = json.dumps(content, indent=2)
    with whole_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def write_json_once(path: Path, content: Any) -> Any:
    """Write `content` to `path` as JSON unless the file exists; return what it contains.

    Of several processes, on one machine or a shared file system, the first decides for all; at a URL, the last of
    those that write it at the same moment.
    """
    storage.fetch(path)
    if url_of(path) is not None:
        if not path.exists():
            write_json(path, content)
            storage.fetch(path)
    elif not path.exists():
        mine = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        write_json(mine, content)
        try:
            os.link(mine, path)  # fails if another process was first, as a rename does not
        except OSError:
            if not path.exists():  # the file system has no hard links
                mine.replace(path)
        mine.unlink(missing_ok=True)
    return read_json(path)


def whole_records(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the records of a journal of JSON lines, without those that a killed process or a full disk cut."""
    for line in content.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        yield record


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        ValueError: the file isn't JSON; the message names it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error}); it was cut short or edited") from None
