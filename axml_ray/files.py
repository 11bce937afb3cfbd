"""Files and directories that appear whole or not at all.

Everything is written to a temporary name beside its place and renamed when complete, so that a reader, or a
restarted job, never takes half a file for a finished one.
"""

import errno
import fcntl
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
"""Half a surrogate pair, as Python holds a byte of a name that isn't UTF-8."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path that takes the place of `path` when the block ends well, and is removed when it doesn't."""
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
    """The same for a directory; an older one at `path` stays until the new one is complete. Links are followed.

    What others left that were killed over it is removed.

    Raises:
        OSError: `path` is where a volume is mounted, which can't be renamed.
    """
    path = path.resolve()
    if path.is_mount():
        raise OSError(errno.EBUSY, "a volume is mounted here; choose a directory in it", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(path)
    with _held_directory(path) as temporary:
        try:
            yield temporary
            if path.exists():
                old = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.old")
                path.rename(old)
                temporary.rename(path)
            else:
                temporary.rename(path)
            for old in path.parent.glob(f"{_hidden(path)}.old"):  # and what a kill left of them
                shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _held_directory(path: Path) -> Iterator[Path]:
    """A new directory beside `path`, under a lock that ends with this process, however it ends."""
    while True:
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        temporary.mkdir()
        held = os.open(temporary, os.O_RDONLY)
        try:
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(held, fcntl.LOCK_EX)
            if temporary.exists():  # else it was taken for a leftover just before
                yield temporary
                return
        finally:
            os.close(held)


def clear_leftovers(path: Path) -> None:
    """Remove what `whole_directory` left of `path` where it was killed; one that still runs holds its lock."""
    path = path.resolve()
    for left in path.parent.glob(_hidden(path)):
        try:
            held = os.open(left, os.O_RDONLY)
        except OSError:
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            log.info("removing %s, which was left half-written", left)
            shutil.rmtree(left, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(held)


def _hidden(path: Path) -> str:
    """A pattern of the names that `path` has until it is whole."""
    return f".{glob.escape(path.name)}.{8 * '[0-9a-f]'}"


def save_tensors(tensors: Mapping[str, Any], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write PyTorch tensors to a safetensors file that whoever may read other new files may read.

    `save_file` of safetensors 0.8 makes files that only their owner may: a server of another user couldn't open them.
    """
    from safetensors.torch import save_file  # brings PyTorch, which most that write files have no need of

    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata)
    path.chmod(mode)


def write_json(path: Path, content: Any) -> None:
    """Write `content` to `path` as JSON, whole or not at all; a file's name in it need not be UTF-8."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    if HALF.search(text):
        text = json.dumps(content, indent=2)
    with whole_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        ValueError: the file isn't JSON; the message names it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error}); it was cut short or edited") from None
