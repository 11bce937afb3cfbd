"""The Ray head of `make cluster`: started, refused to strangers, used, and stopped."""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from intruder import assert_refused, descendants, submit, without_ray
from ports import free_port

from axml_ray.cluster.local import check_ports

ROOT = Path(__file__).parents[2]
FLAGS = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")


class Place:
    """A directory that a head is started from, with a home and a temporary folder of its own."""

    def __init__(self, directory: Path, temporary: Path):
        self.directory, self.temporary = directory, temporary
        self.ports = {flag: free_port() for flag in FLAGS}
        self.environment = without_ray(HOME=str(directory), TMPDIR=str(temporary), PYTHONPATH=str(ROOT))

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=self.directory, env=self.environment | more, capture_output=True, text=True,
                              timeout=240)  # fmt: skip

    def cluster(self, action: str) -> subprocess.CompletedProcess[str]:
        flags = [f"--{name}={port}" for name, port in self.ports.items()]
        flags += ["--num-cpus=2", f"--object-store-memory={128 << 20}"]
        return self.run(str(Path(sys.executable).with_name("axml-ray")), "cluster", action, *flags)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as name:  # Ray's sockets must have short names
        place = Place(tmp_path, Path(name))
        yield place
        place.cluster("stop")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes and ports are read as Linux lists them")
def test_a_head_refuses_strangers_runs_jobs_and_is_gone_when_stopped(place: Place, tmp_path: Path) -> None:
    other = place.temporary / "ray" / "session_2020-01-01_00-00-00_000000_1"  # somebody else's
    other.mkdir(parents=True)
    started = place.cluster("start")
    assert started.returncode == 0, started.stderr
    assert "export RAY_AUTH_MODE=token" in started.stdout
    token = tmp_path / ".ray" / "auth_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert token.read_text() not in started.stdout + (tmp_path / "runs" / "cluster.log").read_text()
    pid = json.loads((tmp_path / "runs" / "cluster.json").read_text())["pid"]
    assert_refused(pid, tmp_path)
    dashboard = f"http://127.0.0.1:{place.ports['dashboard-port']}"
    assert submit(f"{dashboard}/api/jobs/", tmp_path / "submitted", token.read_text())[0] == 200
    ray = str(Path(sys.executable).with_name("ray"))
    code = """
import ray
from axml_ray.cluster.connection import connect
connect()
print(ray.get(ray.remote(lambda: 42).remote()))"""
    job = place.run(ray, "job", "submit", "--address", dashboard, "--", "python", "-c", code,
                    RAY_AUTH_MODE="token")  # fmt: skip
    assert job.returncode == 0 and "42" in job.stdout.split(), job.stdout + job.stderr
    assert "RAY_BACKEND_LOG_LEVEL" not in job.stdout + job.stderr
    assert (tmp_path / "submitted").exists()
    again = place.cluster("start")
    assert again.returncode == 2 and str(pid) in again.stderr
    # A job that still runs is no reason to wait.
    place.run(ray, "job", "submit", "--address", dashboard, "--no-wait", "--", "sleep", "600", RAY_AUTH_MODE="token")
    end = time.monotonic() + 60
    while not (sleeping := [one for one in descendants(pid) if b"sleep\x00600" in _command(one)]):
        assert time.monotonic() < end
        time.sleep(0.2)
    pids = descendants(pid)
    begun = time.monotonic()
    stopped = place.cluster("stop")
    assert stopped.returncode == 0 and str(pid) in stopped.stdout and stopped.stderr == ""
    assert time.monotonic() - begun < 60
    assert sleeping and not [one for one in pids if _command(one)]
    assert not (tmp_path / "runs" / "cluster.json").exists()
    assert [path.name for path in place.temporary.iterdir()] == ["ray"]
    assert list((place.temporary / "ray").iterdir()) == [other]
    check_ports({flag: place.ports[flag] for flag in FLAGS})  # a head could start again at once


def _command(pid: int) -> bytes:
    """What a process was started with; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.processes
def test_a_port_that_is_taken_is_named_at_once(place: Place, tmp_path: Path) -> None:
    begun = time.monotonic()
    for flag, host in (("dashboard-port", "127.0.0.1"), ("port", "")):
        with socket.socket() as taken:
            taken.bind((host, place.ports[flag]))
            taken.listen()
            started = place.cluster("start")
        assert started.returncode == 2
        (line,) = started.stderr.splitlines()
        assert line.startswith("error: ") and str(place.ports[flag]) in line and f"--{flag}" in line
    assert time.monotonic() - begun < 30
    assert not (tmp_path / "runs" / "cluster.json").exists() and list(place.temporary.iterdir()) == []


@pytest.mark.processes
def test_stopping_where_nothing_was_started_is_no_error(place: Place, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        try:
            assert place.cluster("stop").returncode == 0
            # A record whose process has ended, and whose number another has now.
            record = {"pid": other.pid, "started": "1", "port": 1, "ray_directory": str(place.temporary / "ray"),
                      "first_session": "session_1", "temporary": str(tmp_path / "gone")}  # fmt: skip
            (tmp_path / "runs").mkdir()
            (tmp_path / "runs" / "cluster.json").write_text(json.dumps(record))
            stopped = place.cluster("stop")
            assert stopped.returncode == 0 and len(stopped.stdout.splitlines()) == 1, stopped.stderr
            os.kill(other.pid, 0)
            assert other.poll() is None
        finally:
            other.kill()


def test_texts_in_data_are_not_uploaded_with_a_job(tmp_path: Path) -> None:
    """Ray offers no public function that packs a directory."""
    from ray._private.runtime_env.packaging import get_uri_for_directory

    shutil.copy(ROOT / ".gitignore", tmp_path)
    for name in (*(ignored := ("data", "corpora", "runs", "bundles", ".venv-3.13.0")), "jobs"):
        (tmp_path / name / "mine").mkdir(parents=True)
    before = get_uri_for_directory(str(tmp_path), include_gitignore=True)
    for name in ignored:
        (tmp_path / name / "train.jsonl").write_text(name)
        (tmp_path / name / "mine" / "train.jsonl").write_text(name)
        assert get_uri_for_directory(str(tmp_path), include_gitignore=True) == before
    (tmp_path / "jobs" / "mine" / "job.py").write_text("print(1)\n")
    assert get_uri_for_directory(str(tmp_path), include_gitignore=True) != before
