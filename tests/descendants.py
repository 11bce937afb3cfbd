"""Processes that a job started, directly or through others, and what is left of them when the job is killed."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

SECONDS = 20
"""How long processes may take to notice that their cluster has ended."""


def job_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without the settings of its Ray, of which the token stays."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_") or name.startswith("RAY_AUTH_")
    }
    return {**kept, "RAY_USAGE_STATS_ENABLED": "0", **more}


def kill_driver(driver: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Kill a job, and wait until the workers of its cluster are gone: until then they go on writing.

    Workers of Ray notice the end when their parent is process 1. Below a service manager that adopts orphans it never
    is, so what is left after a while is killed. Ray's agents are killed at once: they write nothing of the job, and
    would wait a minute for a control store that has ended with it.
    """
    below = descendants(driver.pid, b"ray::")
    agents = descendants(driver.pid, b"ray::DashboardAgent") + descendants(driver.pid, b"ray::RuntimeEnvAgent")
    driver.kill()
    driver.wait()
    for pid in (*still_running(set(below) - set(agents)), *agents):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert still_running(below) == []


def still_running(pids: Iterable[int]) -> list[int]:
    """Wait until these processes have ended; return those that have not within `SECONDS`."""
    end = time.monotonic() + SECONDS
    while (left := [pid for pid in pids if _is_running(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


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
