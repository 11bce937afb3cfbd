"""Measures what the processes below a process cost: their number, their memory, and how often they wake up."""

import time
from collections.abc import Iterator
from pathlib import Path

SWITCHES, MEMORY = "voluntary_ctxt_switches:", "Pss:"
PRIVATE = "Private_Dirty:"


def costs_of_descendants(ancestor: int, seconds: float) -> dict[str, float]:
    """Measure the processes that a process has started, directly or through others, for some seconds. Linux only.

    Args:
        ancestor: id of the process.
        seconds: length of the measurement.

    Returns:
        `processes`, their number; `memory_mib`, the sum of their proportional set sizes in MiB; `wakeups_per_s`, how
        often their threads gave up a core to wait for something.
    """
    processes = list(descendants(ancestor))
    memory = sum(map(proportional_bytes, processes)) / 2**20
    before = {process: _switches(process) for process in processes}
    time.sleep(seconds)
    # A process that has ended since counts as one that did not wake up.
    switches = sum(max(0, _switches(process) - count) for process, count in before.items())
    return {"processes": len(processes), "memory_mib": memory, "wakeups_per_s": switches / seconds}


def descendants(ancestor: int) -> Iterator[int]:
    """Yield the ids of all processes below a process."""
    parents: dict[int, int] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(directory.name)] = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
    for process in parents:
        above = parents[process]
        while above in parents and above != ancestor:
            above = parents[above]
        if above == ancestor:
            yield process


def proportional_bytes(process: int | str) -> int:
    """Return the proportional set size of a process in bytes; 0 if it has ended."""
    return _sum_of(f"/proc/{process}/smaps_rollup", MEMORY) << 10


def private_bytes(process: int | str) -> int:
    """Return the bytes of memory that only this process has, such as its copies, but no mapped files."""
    return _sum_of(f"/proc/{process}/smaps_rollup", PRIVATE) << 10


def process_name(process: int) -> str:
    """Return the name of a process, at most 15 characters of it, such as `ray::train_memb`; empty if it has ended."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def _switches(process: int) -> int:
    """Return how often the threads of a process have waited so far."""
    return sum(_sum_of(f"{thread}/status", SWITCHES) for thread in Path(f"/proc/{process}/task").glob("[0-9]*"))


def _sum_of(path: str, name: str) -> int:
    """Return the number after a name at the beginning of a line in a file of the kernel; 0 if the process has ended."""
    try:
        return sum(int(line.split()[1]) for line in Path(path).read_text().splitlines() if line.startswith(name))
    except OSError:
        return 0
