"""The node's cache of files at URLs (`storage.py`): its users, its locks, and how it is trimmed."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TextIO

from axml_ray.core.errors import SettingsError
from axml_ray.core.paths import CACHE_VARIABLE, STORES, cache

LOCKS = ".locks"
KEPT = {"wandb", "mlflow.db", "mlflow-artifacts"}
"""Files and directories of trackers in the cache, which are nowhere else."""


@lru_cache
def use_cache(root: Path) -> TextIO:
    """Make the cache, which only this user can read, and register this process as its user until it ends.

    If there is no other user, the cache is trimmed first: the files that were read longest ago are removed until the
    others take no more space than is free.

    Returns:
        The file whose lock says so; that the result of this function is kept keeps it open.

    Raises:
        SettingsError: the directory belongs to another user.
    """
    import fcntl  # Windows has none, see `files.py`

    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise SettingsError(f"{root}: belongs to another user; set {CACHE_VARIABLE} to a directory of yours")
    locks = root / LOCKS
    locks.mkdir(exist_ok=True)
    users = (locks / "users").open("w")
    with suppress(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The user may have named a directory that has files of other programs.
        copies = (path for scheme in STORES for path in (root / scheme).rglob("*"))
        cached = (path for path in copies if path.is_file() and not KEPT & {*path.relative_to(root).parts})
        files = sorted((path.stat().st_atime_ns, path.stat().st_size, path) for path in cached)
        total, free = sum(size for _, size, _ in files), shutil.disk_usage(root).free
        for _, size, path in files:
            if total <= free:
                break
            path.unlink(missing_ok=True)
            total, free = total - size, free + size
    fcntl.flock(users, fcntl.LOCK_SH)
    return users


@contextmanager
def lock_copy(path: Path) -> Iterator[None]:
    """Let one process of this node at a time change the copy of a path."""
    import fcntl  # Windows has none, see `files.py`

    locks = cache() / LOCKS
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / hashlib.sha256(os.fsencode(path)).hexdigest()).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
