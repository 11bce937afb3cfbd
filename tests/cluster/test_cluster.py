"""A job's processes in a cluster of its own and in one that is there already."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from descendants import still_running
from intruder import assert_refused, descendants, without_ray

from axml_ray.cluster.connection import quiet_data
from axml_ray.cluster.failures import failure, root_cause
from axml_ray.core.errors import JobError, SettingsError
from axml_ray.core.memory import ONE_ARENA

NONE = dict.fromkeys(ONE_ARENA, "0")
"""As many arenas as glibc likes: what a person set stays."""

KEPT = """
def kept():
    import re, threading
    from pathlib import Path

    from axml_ray.core.memory import keep_freed_memory

    found = []

    def held():
        return int(re.search(r"^VmRSS:\\s+(\\d+) kB", Path("/proc/self/status").read_text(), re.M)[1]) / 1024

    def work():
        keep_freed_memory()  # here, as a worker of Ray Train does
        before = held()
        bytearray(b"1") * (100 << 20)
        found.append(held() - before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]
"""
"""A task of a worker: how many MiB of 100 a thread still holds that freed them."""

GIVEN = (
    KEPT
    + """
import os

import ray
from ray.cluster_utils import Cluster

from axml_ray.cluster.capacity import check_fits, max_processes
from axml_ray.cluster.connection import connect
from axml_ray.settings import ResourceSettings
from axml_ray.core.errors import SettingsError

cluster = Cluster()
for cpus, gpus in ((3, 2), (2, 0)):
    cluster.add_node(num_cpus=cpus, num_gpus=gpus, object_store_memory=128 << 20, include_dashboard=False)
os.environ.update(RAY_ADDRESS=cluster.address, AXML_RAY_CUDA_GRAPHS="0", AXML_RAY_API_KEYS="secret")
connect()
print(ray.get(ray.remote(num_cpus=1)(kept).remote()))
told = ("AXML_RAY_CUDA_GRAPHS", "AXML_RAY_API_KEYS")
print(ray.get(ray.remote(num_cpus=1)(lambda: [os.environ.get(name) for name in told]).remote()))
print([max_processes({"CPU": cpus}) for cpus in (0.5, 1, 1.5, 2, 3, 4)])
print([max_processes({"CPU": 0.1, "GPU": gpus}) for gpus in (0.1, 0.5, 0.6, 1, 2, 3)])
check_fits(ResourceSettings(workers=2, cpus_per_worker=2))
try:
    check_fits(ResourceSettings(workers=2, cpus_per_worker=2.5))
except SettingsError as error:
    print(error)
"""
)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read as Linux writes it")
def test_a_cluster_of_two_nodes_that_is_there_already() -> None:
    """A worker's thread keeps the memory that it freed, and has the driver's switches, but not its secrets.

    What no single node has room for is an error.
    """
    environment = {name: value for name, value in os.environ.items() if name not in ONE_ARENA}
    done = subprocess.run([sys.executable, "-c", GIVEN], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    kept, told, rooms, of_gpus, error = done.stdout.splitlines()[-5:]
    assert float(kept) > 90 and told == "['0', None]"
    assert rooms == "[10, 5, 3, 2, 1, 0]"
    assert of_gpus == "[20, 4, 2, 2, 1, 0]"  # a share of a GPU is never made of two GPUs
    assert error.startswith("resources: 1 of 2 workers fit") and "resources.workers" in error


@pytest.mark.processes
def test_an_address_where_no_cluster_can_be_joined_is_named() -> None:
    """As it is set for `ray job submit`, where the job itself was started by `python`."""
    address = "http://127.0.0.1:8265"
    done = subprocess.run(
        [sys.executable, "-c", "from axml_ray.cluster.connection import connect; connect()"],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"RAY_ADDRESS": address},
    )
    assert done.returncode
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"axml_ray.core.errors.SettingsError: RAY_ADDRESS={address}: ")
    assert "unset RAY_ADDRESS" in last


OWN = (
    KEPT
    + """
import sys

from axml_ray.cluster.connection import connect
from axml_ray.cli.console import run_command
from axml_ray.core.errors import JobError

def work():
    connect()
    import ray

    print("kept", ray.get(ray.remote(num_cpus=1)(kept).remote()), flush=True)
    if sys.stdin.readline().strip() == "fail":
        raise JobError("as told")

run_command(work)
"""
)


def own_cluster(home: Path, *, kept: bool = True, **more: str) -> subprocess.Popen[str]:
    """Start a process with its own cluster; it fails on the line `fail`, and ends well on another.

    Args:
        home: its home.
        kept: whether a thread of its worker is to keep the memory that it freed.
        more: variables of its environment.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", OWN],
        env={
            **{name: value for name, value in without_ray().items() if name not in ONE_ARENA},
            "HOME": str(home),
            **more,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    word, _, held = process.stdout.readline().partition(" ")
    assert word == "kept", process.communicate()
    if sys.platform == "linux":
        assert float(held) > 90 if kept else float(held) < 10
    return process


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for Ray's files, whose sockets must have short names."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as name:
        yield Path(name)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes and ports are read as Linux lists them")
def test_a_cluster_of_our_own_asks_for_a_token_and_leaves_nothing(tmp_path: Path, short_path: Path) -> None:
    process = own_cluster(tmp_path, TMPDIR=str(short_path))
    try:
        pids = descendants(process.pid)
        token = tmp_path / ".ray" / "auth_token"
        assert stat.S_IMODE(token.stat().st_mode) == 0o600 and len(token.read_text()) >= 32
        (own,) = short_path.iterdir()
        assert stat.S_IMODE(own.stat().st_mode) == 0o700  # nor other users of this machine
        assert_refused(process.pid, tmp_path)
        _, said = process.communicate("\n", timeout=60)
    finally:
        process.kill()
    (progress,) = said.splitlines()
    assert process.returncode == 0 and progress.endswith("  ray: starting on this machine")
    assert still_running(pids) == []
    assert list(short_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="its temporary folder is another one elsewhere")
def test_a_failed_job_leaves_its_logs_alone(tmp_path: Path, short_path: Path) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_text("")  # without a home, the token is in the processes' environment
    failed = own_cluster(nowhere, kept=False, TMPDIR=str(short_path), **NONE)
    _, said = failed.communicate("fail\n", timeout=60)
    assert failed.returncode == 1
    (own,) = short_path.iterdir()
    assert [entry.name for entry in own.iterdir()] == ["logs"]
    assert any((own / "logs").glob("gcs_server*"))
    progress, *rest = said.splitlines()
    assert progress.endswith("  ray: starting on this machine")
    assert rest == ["error: as told", f"Ray's logs of this failure: {own / 'logs'}"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("variables", "wrong"),
    [({"RAY_AUTH_MODE": "toking"}, "RAY_AUTH_MODE=toking"), ({"RAY_AUTH_TOKEN_PATH": "/nowhere"}, "/nowhere")],
)
def test_a_setting_of_authentication_that_cannot_work_is_named(variables: dict[str, str], wrong: str) -> None:
    done = subprocess.run([sys.executable, "-c", OWN], env=without_ray(**variables), capture_output=True, text=True,
                          timeout=60)  # fmt: skip
    assert done.returncode == 2
    progress, line = done.stderr.splitlines()
    assert progress.endswith("  ray: starting on this machine")
    assert line.startswith("error: ") and wrong in line


@pytest.mark.parametrize(
    ("kind", "explained", "reason"),
    [
        ("setting", True, "corpus.train: missing"),
        ("system", True, "FileNotFoundError: [Errno 2] No such file or directory: '/no/such'"),
        ("fault", False, "mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_a_failed_task_is_explained_by_our_own_errors_and_those_of_the_system(
    ray_cluster: None, kind: str, explained: bool, reason: str
) -> None:
    """Of a task of ours, and of one of Ray Data, which appends advice on its settings."""
    import ray
    import ray.data

    def fail(row: dict[str, str]) -> list[dict[str, str]]:
        if row["kind"] == "fault":
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        try:
            Path("/no/such").read_text()
        except OSError as error:
            if row["kind"] == "system":
                raise
            raise SettingsError("corpus.train: missing") from error
        return [row]

    quiet_data()
    with pytest.raises(ray.exceptions.RayError) as of_a_task:
        ray.get(ray.remote(num_cpus=0.1)(fail).remote({"kind": kind}))
    with pytest.raises(ray.exceptions.RayError) as of_data:
        list(ray.data.from_items([{"kind": kind}]).flat_map(fail).iter_rows())
    for error in (of_a_task.value, of_data.value):
        assert root_cause(error) == reason
        assert isinstance(failure(error, "it failed"), JobError) == explained


def test_a_worker_that_died_is_explained(ray_cluster: None) -> None:
    import ray

    with pytest.raises(ray.exceptions.WorkerCrashedError) as died:
        ray.get(ray.remote(num_cpus=0.1, max_retries=0)(lambda: os._exit(3)).remote())
    assert isinstance(failure(died.value, "it died"), JobError)
