"""CPUs, memory and temporary directory that a process may use: affinity, control groups, SLURM, long paths."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from intruder import without_ray

from axml_ray.core.errors import SettingsError
from axml_ray.core.limits import LONGEST_TEMPORARY, available_cpus, available_memory, temporary_directory

ROOT = Path(__file__).parents[2]
CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
GROUPS = Path("/sys/fs/cgroup")


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)


@pytest.fixture
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 128 CPUs, as far as the affinity of the process says."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(128)), raising=False)


class Groups:
    """Files of control groups, and of a process's membership in them, as Linux writes them."""

    def __init__(self, directory: Path, membership: str):
        self.root, self.membership = directory / "cgroup", directory / "membership"
        self.root.mkdir(parents=True)
        self.membership.write_text(membership)

    def write(self, path: str, content: object) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(f"{content}\n")

    def cpus(self) -> int:
        return available_cpus(self.root, self.membership)

    def memory(self) -> float:
        return available_memory(self.root, self.membership)


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 128), ("400000 100000", 4), ("150000 100000", 1), ("50000 100000", 1)]
)
def test_quota_of_version_2(many_cpus: None, tmp_path: Path, quota: str, expected: int) -> None:
    groups = Groups(tmp_path, "0::/slurm/job_7/step_0\n")
    groups.write("slurm/job_7/step_0/cpu.max", "max 100000")
    groups.write("slurm/job_7/cpu.max", quota)  # of a group above, which limits those below
    groups.write("other/cpu.max", "100000 100000")
    assert groups.cpus() == expected


@pytest.mark.parametrize("directory", ["cpu/docker/abc", "cpu"])
def test_quota_of_version_1(many_cpus: None, tmp_path: Path, directory: str) -> None:
    """In a container, its own group is mounted as the root, while the membership names that of the host."""
    groups = Groups(tmp_path, "12:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/system.slice\n")
    groups.write(f"{directory}/cpu.cfs_period_us", 100_000)
    groups.write(f"{directory}/cpu.cfs_quota_us", -1)
    assert groups.cpus() == 128
    groups.write(f"{directory}/cpu.cfs_quota_us", 600_000)
    assert groups.cpus() == 6


def test_memory_of_control_groups(tmp_path: Path) -> None:
    second = Groups(tmp_path / "second", "0::/pod/container\n")
    assert second.memory() == MEMORY
    second.write("pod/memory.max", 1 << 20)
    second.write("pod/container/memory.max", "max")
    assert second.memory() == 1 << 20
    first = Groups(tmp_path / "first", "7:memory:/job\n")
    first.write("memory/memory.limit_in_bytes", 9_223_372_036_854_771_712)
    first.write("memory/job/memory.limit_in_bytes", 1 << 21)
    assert first.memory() == 1 << 21


def test_without_control_groups(tmp_path: Path) -> None:
    assert available_cpus(tmp_path, tmp_path / "none") == CPUS
    assert available_memory(tmp_path, tmp_path / "none") == MEMORY


def test_slurm(many_cpus: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for value, expected in (("4", 4), ("400", 128), ("4(x2)", 128), ("0", 1)):
        monkeypatch.setenv("SLURM_CPUS_ON_NODE", value)
        assert available_cpus(tmp_path, tmp_path / "none") == expected


def run(code: str, *prefix: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, by the command `prefix`, if any."""
    environment = without_ray(PYTHONPATH=str(ROOT), **variables)
    command = [*prefix, sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def members_of_group() -> Iterator[Path]:
    """The file that takes the members of a real control group with a quota of one CPU; needs root."""
    for parent, file, quota in (("cpu", "cpu.cfs_quota_us", "100000"), ("", "cpu.max", "100000 100000")):
        group = GROUPS / parent / f"axml-ray-test-{os.getpid()}"
        with suppress(OSError):
            group.mkdir()
            try:
                (group / file).write_text(quota)
                yield group / "cgroup.procs"
                return
            finally:
                group.rmdir()
    pytest.skip("no control group can be made here")


@pytest.mark.processes
@pytest.mark.skipif(CPUS < 2, reason="there is one CPU")
def test_a_real_control_group(members_of_group: Path) -> None:
    code = """
import os
from axml_ray.core.limits import available_cpus
print(available_cpus(), len(os.sched_getaffinity(0)))"""
    done = run(code, "sh", "-c", f'echo $$ > {members_of_group}; exec "$@"', "sh")
    assert done.stdout.split() == ["1", str(CPUS)], done.stderr


MACOS = """
import os

for name in ("sched_getaffinity", "process_cpu_count"):
    if hasattr(os, name):
        delattr(os, name)
from axml_ray.orchestration.label_trees import available_cpus

print(available_cpus(), os.cpu_count())
"""


@pytest.mark.processes
def test_without_affinity_as_on_macos() -> None:
    done = run(MACOS)
    assert done.returncode == 0, done.stderr
    cpus, of_machine = map(int, done.stdout.split())
    assert 1 <= cpus <= of_machine


WINDOWS = """
import sys

for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
from axml_ray.cli.dispatch import main

sys.platform = "win32"
main(["doctor"])
"""


@pytest.mark.processes
def test_windows_is_refused_in_one_line() -> None:
    done = run(WINDOWS)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert all(word in line for word in ("Linux", "macOS", "WSL"))


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short path."""
    with tempfile.TemporaryDirectory(prefix="", dir="/tmp") as name:
        yield Path(name).resolve()


def test_a_long_temporary_path_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    link = short / "link"
    link.symlink_to(long)
    for given in (long, link):
        monkeypatch.setattr(tempfile, "tempdir", str(given))
        monkeypatch.delenv("RAY_TMPDIR", raising=False)
        assert temporary_directory() == Path("/tmp").resolve()
        monkeypatch.setenv("RAY_TMPDIR", str(given))
        with pytest.raises(SettingsError, match="RAY_TMPDIR"):
            temporary_directory()
    monkeypatch.setenv("RAY_TMPDIR", "/no/such")
    with pytest.raises(SettingsError, match="/no/such"):
        temporary_directory()


PINNED = """
import json
import ray
from axml_ray.cluster.connection import start_cluster
from axml_ray.core.limits import available_cpus
from axml_ray.planning.diagnosis import diagnose

start_cluster(include_dashboard=False, object_store_memory=128 << 20)
doctor = next(int(each.value) for each in diagnose() if each.subject == "cores")
worker = ray.get(ray.remote(num_cpus=0)(available_cpus).remote())
print(json.dumps([available_cpus(), doctor, ray.cluster_resources()["CPU"], worker]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_doctor_ray_and_workers_have_the_cpus_of_the_affinity(tmp_path: Path) -> None:
    done = run(PINNED, "taskset", "-c", str(max(os.sched_getaffinity(0))), HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [1, 1, 1, 1]


CONNECTED = """
import json
import ray
from axml_ray.cluster import connection as cluster

cluster.connect()
ray.get(ray.remote(lambda: 42).remote())
longest = max(len(str(path)) for path in cluster._directory.glob("ray/session_*_*/sockets/*"))
print(json.dumps([str(cluster._directory.parent), longest, dict(ray.get_runtime_context().runtime_env)]))
"""


@pytest.mark.slow
def test_ray_starts_below_uv_run_and_in_the_longest_temporary_path(tmp_path: Path, short: Path) -> None:
    """uv itself is not installed: Ray recognises a process called `uv` with the argument `run`."""
    directory = short / ("y" * (LONGEST_TEMPORARY - len(str(short)) - 1))
    directory.mkdir()
    (tmp_path / "run").write_text("import subprocess, sys\nraise SystemExit(subprocess.run(sys.argv[1:]).returncode)\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\n')
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "train.jsonl").open("wb") as large:
        large.truncate(700 << 20)  # above Ray's limit for uploads
    done = subprocess.run(
        ["uv", "run", sys.executable, "-c", CONNECTED],
        executable=sys.executable,
        cwd=tmp_path,
        env=without_ray(PYTHONPATH=str(ROOT), HOME=str(tmp_path), TMPDIR=str(directory)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    parent, longest, environment = json.loads(done.stdout.splitlines()[-1])
    assert parent == str(directory) and longest <= 107
    assert environment == {}
