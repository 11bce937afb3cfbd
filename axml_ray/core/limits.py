"""Limits of this process: its CPUs, its memory, and directories whose paths are short enough for the sockets of Ray.

A process may have less than its machine: `taskset`, a container, a batch system or systemd give it some of the CPUs, a
share of their time, or some of the memory.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from axml_ray.core.errors import SettingsError

GROUPS = Path("/sys/fs/cgroup")
"""Linux's control groups, which limit CPU time and memory."""
MEMBERSHIP = Path("/proc/self/cgroup")
"""The control groups of this process."""
LONGEST_SOCKET = (104 if sys.platform == "darwin" else 108) - 1
"""Bytes that the operating system allows in the path of a socket."""
PROCESS = "12345" if sys.platform == "darwin" else "1234567"
"""The longest process id."""
LONGEST_TEMPORARY = LONGEST_SOCKET - len(
    f"/axml-12345678/ray/session_2026-01-01_00-00-00_123456_{PROCESS}/sockets/dash_TaskEventsHead"
)
"""Bytes of the longest path of a temporary directory below which Ray can create all its sockets."""


def available_cpus(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the number of CPUs that this process may use, at least 1: that of all threads and processes to start.

    It is the least of the process's CPU affinity (`taskset`, cpusets), the quota of its control groups (containers,
    Kubernetes, systemd), rounded down, and the CPUs that SLURM allotted to it on this node. macOS has only a number of
    processors. `OMP_NUM_THREADS` limits the threads of one process, not the CPUs of all.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [float(usable)]
    for group in _control_groups("cpu", groups, membership):
        # Microseconds of CPU time in each period, and the period: in one file of version 2, in two of version 1.
        share = _numbers(group / "cpu.max")
        share = share or [*_numbers(group / "cpu.cfs_quota_us"), *_numbers(group / "cpu.cfs_period_us")]
        if len(share) == 2 and share[0] > 0:  # version 1 writes -1 for no limit
            limits.append(share[0] / share[1])
    allotted = os.environ.get("SLURM_CPUS_ON_NODE", "")
    if allotted.isdecimal():
        limits.append(float(allotted))
    return max(1, int(min(limits)))


def available_memory(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> float:
    """Return the memory that this process may use, in bytes: the least of the machine's and its control groups'."""
    limits = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    for group in _control_groups("memory", groups, membership):
        limits += _numbers(group / "memory.max") + _numbers(group / "memory.limit_in_bytes")
    return min(limits)


def _control_groups(controller: str, groups: Path, membership: Path) -> Iterator[Path]:
    """Yield the directories of this process's control groups and all above them, each of which limits it too.

    Args:
        controller: cpu or memory; version 1 has a hierarchy for each, version 2 one for all.
        groups: where the hierarchies are mounted.
        membership: the kernel's list of the process's groups.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups
        # A container may see the path that the group has on its host, though its own is mounted as the root.
        group = root / path.lstrip("/")
        yield from (parent for parent in (group, *group.parents) if parent.is_relative_to(root))


def _numbers(path: Path) -> list[float]:
    """Return the numbers in a control group's file; none if it does not exist or sets no limit ("max")."""
    try:
        return [float(word) for word in path.read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return []


def temporary_directory() -> Path:
    """Return the directory for Ray's temporary files: `RAY_TMPDIR`, else the system's, or /tmp if its path is too long.

    Ray's sockets are below it, and the paths of sockets are limited to about 100 bytes.

    Raises:
        SettingsError: it cannot be written, or its path is too long.
    """
    chosen = os.environ.get("RAY_TMPDIR")
    for candidate in (chosen,) if chosen else (tempfile.gettempdir(), "/tmp"):
        directory = Path(candidate).resolve()
        if len(os.fsencode(directory)) <= LONGEST_TEMPORARY and os.access(directory, os.W_OK):
            return directory
    raise SettingsError(
        f"RAY_TMPDIR: {directory} has more than {LONGEST_TEMPORARY} characters or cannot be written; set RAY_TMPDIR to "
        "a directory of yours with a shorter path, since Ray's sockets are below it"
    )
