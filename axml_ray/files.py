"""Atomic writes of files and directories.

Content is written under a temporary name in the same directory and renamed when it is complete, so that a reader, or a
restarted job, never takes an incomplete file for a finished one.
"""

import errno
import glob
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

HALF = re.compile("[\ud800-\udfff]")
"""Half a surrogate pair: Python represents a byte of a file name that isn't UTF-8 in this way."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` when the block ends, and is removed if it raises."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory, which replaces `path` when the block ends, and is removed if it raises.

    Links are followed. Temporary directories that killed processes left are removed.

    Raises:
        OSError: `path` is a mount point, which can't be renamed.
    """
    path = path.resolve()
    if path.is_mount():
        raise OSError(errno.EBUSY, "a volume is mounted here; choose a directory in it", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(path)
    with _locked_directory(path) as temporary:
        try:
            yield temporary
            if path.exists():
                old = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.old")
                path.rename(old)
                temporary.rename(path)
            else:
                temporary.rename(path)
            for old in path.parent.glob(f"{_hidden(path)}.old"):  # including those that killed processes left
                shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _locked_directory(path: Path) -> Iterator[Path]:
    """Yield a new directory next to `path`, locked until this process ends, even if it is killed."""
    while True:
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
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


def _lock(descriptor: int, *, wait: bool) -> None:
    """Lock an open file or directory until it is closed.

    Raises:
        OSError: the file system has no locks or, without `wait`, another process has locked it.
    """
    import fcntl  # Windows has no such module, and must be able to import this one to be refused in plain words

    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def clear_leftovers(path: Path) -> None:
    """Remove the temporary directories of `path` that killed processes left; those of running ones are locked."""
    path = path.resolve()
    for left in path.parent.glob(_hidden(path)):
        try:
            lock = os.open(left, os.O_RDONLY)
        except OSError:
            continue
        try:
            _lock(lock, wait=False)
            log.info("removing %s, which was left half-written", left)
            shutil.rmtree(left, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(lock)


def _hidden(path: Path) -> str:
    """Return a glob pattern of the temporary names of `path`."""
    return f".{glob.escape(path.name)}.{8 * '[0-9a-f]'}"


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


def write_json(path: Path, content: Any) -> None:
    """Write `content` to `path` as JSON, atomically. File names in it need not be UTF-8."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    if HALF.search(text):
        text = json.dumps(content, indent=2)
    with whole_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        ValueError: the file isn't JSON; the message names it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error}); it was cut short or edited") from None
