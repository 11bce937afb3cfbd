"""Memory of a process: reuse of freed memory, and its peak. Needs only the standard library."""

import ctypes
import re
import sys
from pathlib import Path

ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
"""Environment variable of glibc with which freed memory is kept for all threads of a process.

glibc reads it when the process starts. Calling `keep_freed_memory` is too late in a process that has or had threads, as
Ray's have: each thread has its own arena, which later threads reuse, and such arenas return all large blocks.
"""

PROCESS_BYTES = 1 << 29
"""Memory of a Ray worker that has imported PyTorch, scikit-learn and Arrow, before it holds any data."""
PREDICTOR_BYTES = 1 << 30
"""Memory that a process with an open model needs besides the files of its weights: PyTorch, and a batch."""

# the numbers of these options in glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> None:
    """Let glibc keep and reuse large blocks of memory.

    By default it returns each freed block to the kernel and gets new, zeroed pages for the next one, which can take
    half of the time of a training step on a CPU. In a process that had threads before, this call needs `ONE_ARENA`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for option, value in ((_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, (1 << 31) - 1), (_ARENA_MAX, 1)):
            mallopt(option, value)


def release_freed_memory() -> None:
    """Return what was freed to the system, such as after reading large files, where glibc keeps it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def peak_gib() -> float:
    """Return the peak memory (resident set) of this process so far, in GiB."""
    status = Path("/proc/self/status")
    # On Linux, ru_maxrss includes the peak of the process that started this one; VmHWM does not.
    if status.is_file() and (match := re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.M)):
        return int(match[1]) / 2**20
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "linux" else 2**30)
