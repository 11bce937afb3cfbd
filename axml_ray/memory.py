"""What a process does with the memory that it has. Needs the standard library alone."""

import ctypes
import re
import resource
import sys
from pathlib import Path

ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
"""Environment in which freed memory is kept for every thread of a process.

glibc reads it when the process starts. Later is too late for one that has or had threads, as Ray's do: those have
arenas of their own, which later ones get too, and which give back all large pieces, whatever `keep_freed_memory` says.
"""

# glibc's numbers of these options, malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> None:
    """Let glibc keep and reuse large pieces of memory.

    It gives each back as soon as it is free, and gets it again page by page, zeroed: half of a training step's time on
    a CPU, and of clustering some thousand labels. Where a process had threads before, this is sure under
    `ONE_ARENA` alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for option, value in ((_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, (1 << 31) - 1), (_ARENA_MAX, 1)):
            mallopt(option, value)


def peak_gib() -> float:
    """The most main memory that this process has held so far, GiB."""
    status = Path("/proc/self/status")
    # The other's count begins, on Linux, at the peak of the process that started this one.
    if status.is_file() and (found := re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.M)):
        return int(found[1]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "linux" else 2**30)
