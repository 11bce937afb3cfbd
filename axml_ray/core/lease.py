"""The lease of a directory: at most one job at a time writes below it, also where several machines share the disk.

A job that owns a directory has a file of its own in `<directory>/.lease`, whose random name is its fencing token:

- The owner touches its file every `HEARTBEAT_SECONDS`. Others watch whether the time of the file changes, so the clocks
  of machines need not agree.
- A start that finds a file that changes is refused, at once or after a given wait. One that does not change for the
  lease's time belongs to a dead or stopped owner. The start adds a file of its own, removes that one, and the
  directory is taken over.
- Before anything is published below the directory, the owner and its workers check that their file is still there
  (`files.fences`). What they were writing has been removed at the takeover, so a rename after the check fails, too.

Files are only created, touched, listed and removed, which network file systems and object stores do alike; locks are
not needed. At a URL they are objects of the store. As these cannot be touched, the owner writes its heartbeat into a
second one, `<token>.beat`: a stopped owner that goes on cannot bring back the first, which is the one that it checks.
An upload that such an owner had begun may still arrive, but not the manifest of a directory.

Every job that writes below a run, a sweep or an output owns it: train, tune, evaluate, predict, and compare while it
predicts. Its workers get the lease (`held_leases`). An export only reads its run.
"""

import errno
import json
import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from axml_ray.core import storage
from axml_ray.core.errors import JobError, SettingsError
from axml_ray.core.files import fences, remove_leftovers
from axml_ray.core.paths import url_of, with_urls

log = logging.getLogger(__name__)

LEASE_SECONDS = float(os.environ.get("AXML_RAY_LEASE_SECONDS", "60"))
"""After this time without a heartbeat, another job may take over: longer than a file server takes to fail over. The
variable is for tests; it is stored in the lease, so that other jobs wait as long."""
HEARTBEAT_SECONDS = LEASE_SECONDS / 30
"""Time between two heartbeats, and thus about how long a second job takes to be refused."""
GONE = (errno.ENOENT, errno.ESTALE)
"""Numbers of the errors of a file that another machine has removed."""
BEAT = ".beat"
"""Suffix of the object of the heartbeats of a lease at a URL."""


class DirectoryInUseError(SettingsError):
    """Another job owns the directory."""


class LeaseLostError(JobError):
    """Another job has taken over the directory, so this one may not write there any more."""


@dataclass(frozen=True)
class Lease:
    """The right of one job, and of its workers in other processes, to write below a directory.

    Attributes:
        directory: absolute path of the directory.
        token: name of the lease's file.
    """

    directory: Path
    token: str

    @property
    def file(self) -> Path:
        """Return the file that exists while the lease is held."""
        return self.directory / ".lease" / self.token

    @property
    def beat(self) -> Path:
        """Return the file of the heartbeats at a URL."""
        return self.file.with_suffix(BEAT)

    def check(self) -> None:
        """Raise LeaseLostError if another job has taken over the directory, or the lease was released."""
        try:
            # Opening asks the server, while a network file system may answer a stat from its cache.
            storage.read(self.file)
        except OSError as error:
            if error.errno not in GONE:
                raise
            raise LeaseLostError(
                f"{self.directory}: another job took over while this one did not answer, or the job of this process "
                "has ended; nothing more is written"
            ) from None

    def enforce(self) -> None:
        """Have this process check the lease whenever it publishes anything below the directory."""
        fences[self.directory] = self

    def _keep(self, stop: threading.Event) -> None:
        """Touch the file until `stop` is set, or another job has removed it."""
        while not stop.wait(HEARTBEAT_SECONDS):
            try:
                if url_of(self.file) is None:
                    os.utime(self.file)
                else:
                    storage.read(self.file)
                    storage.write(self.beat, str(time.time_ns()).encode())
            except storage.StoreError as error:  # the next one may arrive
                log.warning("WARNING: %s", error)
            except OSError as error:
                if error.errno in GONE:
                    return


def lease_of(directory: Path) -> Lease | None:
    """Return the lease that this process has for a directory, to be handed to workers; None if it has none."""
    lease = fences.get(directory)
    return lease if isinstance(lease, Lease) else None


def held_leases() -> list[Lease]:
    """Return all leases of this process, to be handed to workers."""
    return [lease for lease in fences.values() if isinstance(lease, Lease)]


@contextmanager
def own(directory: Path, wait: float = 0) -> Iterator[Lease]:
    """Hold the lease of a directory within the block; when it ends, what failed writers left there is removed.

    Args:
        directory: absolute path; it is created, and removed again if nothing is written.
        wait: seconds to wait for the end of another job that owns the directory.

    Raises:
        DirectoryInUseError: another job owns the directory.
        LeaseLostError: another job took over while this process did not answer.
    """
    lease, stop = _acquire(directory, time.monotonic() + wait), threading.Event()
    storage.fetch(directory, recursive=False)
    heartbeat = threading.Thread(target=lease._keep, args=(stop,), name=f"lease of {directory}", daemon=True)
    heartbeat.start()
    try:
        lease.enforce()
        remove_leftovers(directory)  # of the last owner, which cannot publish them any more
        yield lease
    except Exception:
        lease.check()  # the error may only follow from the loss
        raise
    finally:
        stop.set()
        heartbeat.join()
        with suppress(LeaseLostError):
            lease.check()
            remove_leftovers(directory)
            for path in (lease.file, lease.beat):
                storage.remove(path)
            del fences[directory]  # after a loss it stays, as does every write that was about to happen
            for path in (lease.file.parent, directory):
                with suppress(OSError):  # not empty
                    path.rmdir()


@contextmanager
def held(directory: Path) -> Iterator[Lease]:
    """Hold the lease of a directory within the block, that which this process has, or else a new one; see `own`."""
    with nullcontext(lease) if (lease := lease_of(directory)) else own(directory) as holder:
        yield holder


def _acquire(directory: Path, until: float) -> Lease:
    """Create the lease of a directory when no other job has one, by `until` of the monotonic clock; see `own`."""
    lease = Lease(directory, uuid.uuid4().hex)
    leases = lease.file.parent
    content = {"machine": _machine(), "host": socket.gethostname(), "pid": os.getpid(), "seconds": LEASE_SECONDS}
    while True:
        leases.mkdir(parents=True, exist_ok=True)
        dead = _tokens(leases)
        if owner := next(filter(None, map(_living_owner, sorted(dead))), None):
            if time.monotonic() < until:
                time.sleep(HEARTBEAT_SECONDS)
                continue
            raise DirectoryInUseError(
                f"{with_urls(directory)}: another job is working on it (process {owner.get('pid')} on "
                f"{owner.get('host')}); "
                "wait for its end or stop it, or choose another name"
            )
        # Each start adds its file before it lists the others, so of two starts at least one finds the other and yields.
        with suppress(FileNotFoundError):  # a start that was refused has just removed the empty directory
            storage.write(lease.file, json.dumps(content).encode())
            if _tokens(leases) - {lease.file} <= dead:
                for path in dead:
                    log.info("%s: taking over from a job that ended without notice", with_urls(directory))
                    storage.remove(path)
                    storage.remove(path.with_suffix(BEAT))
                return lease
            storage.remove(lease.file)
        time.sleep(random.uniform(0, HEARTBEAT_SECONDS))


def _living_owner(path: Path) -> dict[str, Any] | None:
    """Return the content of a lease's file, which names its owner; None if it is gone, or silent for its time."""
    first, began, is_told = None, time.monotonic(), False
    while True:
        try:
            text, beat = storage.read(path), _last_beat(path)
        except OSError as error:
            if error.errno in GONE:
                return None
            raise
        try:
            owner: dict[str, Any] = json.loads(text)
        except ValueError:  # it is just being written
            owner = {}
        if owner.get("machine") == _machine() and not _is_running(owner["pid"]):
            return None
        first = first or (text, beat)
        if (text, beat) != first:
            return owner
        limit, silent = float(owner.get("seconds", LEASE_SECONDS)), time.monotonic() - began
        if silent > limit:
            return None
        if not is_told and silent > 3 * limit / 30:
            log.info("%s: its owner does not answer; waiting up to %.0f s", with_urls(path.parent.parent), limit)
            is_told = True
        time.sleep(limit / 300)


def _tokens(leases: Path) -> set[Path]:
    """Return the files of the leases in a directory."""
    return {path for path in storage.children(leases) if path.suffix != BEAT}


def _last_beat(path: Path) -> object:
    """Return what changes with each heartbeat of a lease."""
    if url_of(path) is None:
        return path.stat().st_mtime_ns
    with suppress(FileNotFoundError):
        return storage.read(path.with_suffix(BEAT))
    return None


def _machine() -> str:
    """Return what tells apart the machines, and the containers on one, whose process ids differ."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # not Linux
        return socket.gethostname()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return True
