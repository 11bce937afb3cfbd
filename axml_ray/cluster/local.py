"""A Ray head on this machine, for `ray job submit`, `serve deploy` and `serve run`: start it, and stop only it.

The head belongs to the directory that it was started from: its log and its record are in `runs/` there, and relative
paths of submitted jobs start there.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from axml_ray.cluster.authentication import MODE, TOKEN, authentication_is_on, ensure_token, read_token, token_file
from axml_ray.cluster.connection import RAY_VARIABLES
from axml_ray.core.errors import JobError, SettingsError
from axml_ray.core.files import read_json, write_json
from axml_ray.core.limits import temporary_directory
from axml_ray.core.memory import ONE_ARENA
from axml_ray.core.paths import CACHE_VARIABLE, cache

RECORD, LOG = Path("runs/cluster.json"), Path("runs/cluster.log")
START_S, END_S, KILL_S = 180, 15, 30
"""Time limits in seconds: for a head to answer, to end after SIGTERM, and to end after SIGKILL."""
PORTS = {
    "dashboard-port": (8265, "the dashboard and submitted jobs"),
    "port": (6379, "the head's own service"),
    "dashboard-agent-listen-port": (52365, "the dashboard's agent"),
    "ray-client-server-port": (10001, "Ray clients"),
}
"""Ports by the flag of `ray start`: the default, and a description of the service."""


class Process(NamedTuple):
    """A running process, as the operating system lists it."""

    parent: int
    session: int
    started: str
    """Start time in the system's own format; it distinguishes the process from a later one with the same id."""


def running_processes() -> dict[int, Process]:
    """Return all processes of this machine by their id, without zombies."""
    processes: dict[int, Process] = {}
    if Path("/proc/self/stat").exists():
        for directory in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has just ended
                # fields 3, 4, 6 and 22 of proc(5); the second is a name, which may have spaces and brackets
                fields = (directory / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    processes[int(directory.name)] = Process(int(fields[1]), int(fields[3]), fields[19])
        return processes
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,state=,lstart="], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        pid, parent, state, started = line.split(None, 3)
        if not state.startswith("Z"):
            with suppress(OSError):
                processes[int(pid)] = Process(int(parent), os.getsid(int(pid)), started)
    return processes


class Head(NamedTuple):
    """The record of a Ray head, with which it can be stopped and its files removed."""

    pid: int
    started: str
    """Start time, as in `Process`."""
    port: int
    """Port of the head's own service."""
    ray_directory: str
    """Directory of its sessions, which other heads may share."""
    first_session: str
    """Name of a session directory with the head's start time: later ones with its process id are its own."""
    temporary: str
    """Directory of the temporary files of its processes."""

    def processes(self, known: dict[int, str]) -> dict[int, str]:
        """Return the start times of its running processes by id.

        Args:
            known: an earlier result, with which children of a process that has ended since are still found.
        """
        running = running_processes()
        own = {pid for pid, started in known.items() if pid in running and running[pid].started == started}
        head = running.get(self.pid)
        # The system does not reuse the id of a session that still has processes.
        if head is None or head.started == self.started:
            own |= {pid for pid, process in running.items() if self.pid in (pid, process.session)}
        while more := {pid for pid, process in running.items() if process.parent in own} - own:
            own |= more
        return {pid: running[pid].started for pid in own}

    def stop(self) -> int:
        """Stop all its processes, wait until they have ended, and remove their files.

        Returns:
            The number of processes.

        Raises:
            JobError: a process doesn't end.
        """
        left = self.processes({})
        count = len(left)
        if self.pid in left:
            os.kill(self.pid, signal.SIGTERM)  # it ends the others
            end = time.monotonic() + END_S
            while left and time.monotonic() < end:
                time.sleep(0.1)
                left = self.processes(left)
        end = time.monotonic() + KILL_S
        while left and time.monotonic() < end:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
            left = self.processes(left)
        if left:
            raise JobError(f"processes {', '.join(map(str, sorted(left)))} of the Ray head don't end")
        self.remove_files()
        return count

    def sessions(self) -> list[Path]:
        """Return the directories of its sessions."""
        directories = Path(self.ray_directory).glob(f"session_*_{self.pid}")
        return [path for path in directories if path.name >= self.first_session]

    def remove_files(self) -> None:
        """Remove its sessions, the links to them, and its address, which `serve run` would try to reach for minutes."""
        directory = Path(self.ray_directory)
        sessions = self.sessions()
        for link in directory.glob("*"):
            if link.is_symlink() and any(link.readlink().is_relative_to(session) for session in sessions):
                link.unlink()
        address = directory / "ray_current_cluster"
        with suppress(FileNotFoundError):
            if address.read_text().strip().endswith(f":{self.port}"):
                address.unlink()
        for path in [*sessions, Path(self.temporary)]:
            shutil.rmtree(path, ignore_errors=True)


def recorded() -> Head | None:
    """Return the head that was started from this directory and hasn't been stopped, or None."""
    try:
        return Head(**read_json(RECORD))
    except FileNotFoundError:
        return None


def check_ports(ports: dict[str, int]) -> None:
    """Check that the ports of the head are free: else Ray would wait for minutes, or start without a service.

    Raises:
        SettingsError: ports are in use, or not for this user.
    """
    taken = []
    for flag, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except PermissionError:
                raise SettingsError(f"--{flag}: the system keeps port {port} for root; choose one above 1023") from None
            except OSError:
                taken.append(f"{port} ({PORTS[flag][1]}; --{flag})")
    if taken:
        raise SettingsError(
            f"port {', port '.join(taken)} in use: wait for the training, server or Ray that has it to end, or choose "
            "another: axml-ray cluster start --dashboard-port 8266 …"
        )


def environment(temporary: Path, directory: Path) -> dict[str, str]:
    """Return the environment of the head, which submitted jobs inherit."""
    defaults = RAY_VARIABLES | ONE_ARENA | {MODE: "token"}
    working_directory = str(Path.cwd())
    return {
        **defaults,
        **os.environ,
        # Otherwise it would wait for Serve's replicas, which never end by themselves.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_TMPDIR": str(directory),
        "TMPDIR": str(temporary),
        CACHE_VARIABLE: str(cache()),  # else below that directory, with which it would go
        "AXML_RAY_HOME": working_directory,
        "PYTHONPATH": os.pathsep.join(filter(None, (working_directory, os.environ.get("PYTHONPATH")))),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }


def answers(url: str) -> bool:
    """Return whether the dashboard answers a request for its jobs, with our token."""
    request = urllib.request.Request(url + "/api/jobs/", headers={"Authorization": f"Bearer {read_token()}"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10):
            return True
    except OSError:
        return False


def start(ports: dict[str, int], num_cpus: int, object_store_memory: int) -> None:
    """Start a head and wait until jobs can be submitted to it.

    Args:
        ports: a port for each flag of `PORTS`.
        num_cpus: CPUs that jobs may use.
        object_store_memory: size of Ray's object store, in bytes.

    Raises:
        SettingsError: a head already runs, a port is in use, or there is no token or no directory for temporary files.
        JobError: the head doesn't start.
    """
    head = recorded()
    if head is not None and head.processes({}):
        raise SettingsError(
            f"a Ray head was started from here already (process {head.pid}); axml-ray cluster stop ends it"
        )
    if head is not None:
        head.remove_files()  # the machine was restarted, or the head was killed
    check_ports(ports)
    if authentication_is_on():
        ensure_token()
    RECORD.parent.mkdir(exist_ok=True)
    system = temporary_directory()
    temporary = Path(tempfile.mkdtemp(prefix="axml-ray-head-", dir=system))
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats",
               "--node-ip-address", "127.0.0.1", "--dashboard-host", "127.0.0.1",
               "--object-store-memory", str(object_store_memory)]  # fmt: skip
    command += [f"--{flag}={port}" for flag, port in ports.items()]
    command.append(f"--num-cpus={num_cpus}")
    first_session = time.strftime("session_%Y-%m-%d_%H-%M-%S")
    with LOG.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, env=environment(temporary, system), stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log, start_new_session=True)  # fmt: skip
    started = running_processes()[process.pid].started
    head = Head(process.pid, started, ports["port"], str(system / "ray"), first_session, str(temporary))
    write_json(RECORD, head._asdict())
    url = f"http://127.0.0.1:{ports['dashboard-port']}"
    try:
        end = time.monotonic() + START_S
        while not answers(url):
            if process.poll() is not None:
                last_lines = " | ".join(LOG.read_text(encoding="utf-8", errors="replace").split("\n")[-4:-1])
                raise JobError(f"the Ray head ended while it started; {LOG} says: {last_lines}")
            if time.monotonic() > end:
                raise JobError(f"the Ray head didn't answer at {url} within {START_S} s; see {LOG}")
            time.sleep(0.5)
    except BaseException:
        head.stop()
        RECORD.unlink()
        raise
    ray = Path(command[0])
    ray = ray.relative_to(Path.cwd()) if ray.is_relative_to(Path.cwd()) else ray
    print(f"A Ray head is running (process {process.pid}, dashboard {url}, log {LOG}). Submit jobs with:")
    if os.environ.get(MODE, "token").lower() == "token":
        print(f"  export {MODE}=token    # the token is in {TOKEN if os.environ.get(TOKEN) else token_file()}")
    if ports["dashboard-port"] != PORTS["dashboard-port"][0]:
        print(f"  export RAY_API_SERVER_ADDRESS={url} RAY_DASHBOARD_ADDRESS={url}")
    print(f"  {ray} job submit --working-dir . -- python jobs/train_ensemble.py --config configs/quickstart.yaml")
    print("axml-ray cluster stop ends it.")


def stop() -> None:
    """Stop the head that was started from this directory, if there is one.

    Raises:
        JobError: a process doesn't end.
    """
    head = recorded()
    if head is None:
        print("No Ray head was started from here; nothing to stop.")
        return
    count = head.stop()
    RECORD.unlink()
    print(f"The Ray head (process {head.pid}) has ended, {count} processes in all." if count else
          f"The Ray head (process {head.pid}) had ended before; its files are removed.")  # fmt: skip
