"""What somebody on the network, who doesn't have the token, can do to a Ray cluster: nothing, is what tests expect."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from axml_ray.cluster.local import running_processes

JOBS = ("/api/job_agent/jobs/", "/api/jobs/")
AGENT_PORT = 52365
JOIN = "import ray; ray.init(address={!r}, log_to_driver=False); print('joined', ray.cluster_resources())"


def without_ray(**more: str) -> dict[str, str]:
    """This process's environment without anything that Ray reads."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "AXML_"))} | more


def descendants(pid: int) -> set[int]:
    """A process and all below it."""
    running, found = running_processes(), {pid}
    while more := {child for child, process in running.items() if process.parent in found} - found:
        found |= more
    return found


def listening(pids: set[int]) -> set[int]:
    """TCP ports that these processes listen on (Linux)."""
    sockets = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):
                sockets.add(str(file.readlink()))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def address_of_gcs(pids: set[int]) -> str:
    """Where the cluster of these processes is joined."""
    for pid in pids:
        for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            if word.startswith(b"--gcs-address="):
                return word.partition(b"=")[2].decode()
    raise AssertionError("no process of Ray")


def outer_address() -> str:
    """An address of this machine that others reach it at; loopback if it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("10.255.255.255", 1))  # sends nothing
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def submit(url: str, marker: Path, token: str = "") -> tuple[int, bytes]:
    """Submit a job that makes a file over HTTP: the answer's status and content; 0 where there is no HTTP."""
    headers = {"content-type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    content = json.dumps({"entrypoint": f"touch {marker}"}).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, content, headers), timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (OSError, HTTPException) as error:  # closed, or gRPC
        return 0, str(error).encode()


def assert_refused(pid: int, directory: Path) -> None:
    """Nobody without the token can run anything on the Ray of this process, or join it.

    Args:
        directory: for files of the attempts.
    """
    pids = descendants(pid)
    marker, home, outside = directory / "ran", directory / "intruder", outer_address()
    home.mkdir()
    join = subprocess.Popen(
        [sys.executable, "-c", JOIN.format(address_of_gcs(pids))],
        env=without_ray(HOME=str(home)),
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        refusals, end = 0, time.monotonic() + 60
        while refusals < 4:  # the dashboard's and the agent's, which start some seconds after the head
            assert time.monotonic() < end, refusals
            refusals = 0
            # The agent's usual port may be held by another cluster of these tests.
            for port in sorted(listening(descendants(pid)) | {AGENT_PORT}):
                for host in {outside, "127.0.0.1"}:
                    for path in JOBS:
                        status, content = submit(f"http://{host}:{port}{path}", marker)
                        assert status in (0, 401, 403, 404, 405), (host, port, path, status, content)
                        refusals += status in (401, 403)
        said, _ = join.communicate(timeout=120)
    finally:
        join.kill()
    assert join.returncode and "joined" not in said, said
    assert not marker.exists()
