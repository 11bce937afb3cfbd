"""Finds processes that a process started, directly or through others."""

from pathlib import Path


def descendants(ancestor: int, title: bytes) -> list[int]:
    """The ids of the processes below `ancestor` whose command line contains `title`."""
    parents, titled = {}, []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                if title in (process / "cmdline").read_bytes():
                    titled.append(int(process.name))
            except OSError:
                continue  # it has just ended

    def is_below(pid: int) -> bool:
        while pid in parents and pid != ancestor:
            pid = parents[pid]
        return pid == ancestor

    return [pid for pid in titled if is_below(pid)]
