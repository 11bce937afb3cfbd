"""Environment, tiers and the shared Ray cluster of all tests.

Every test belongs to one tier:

- `unit`: runs in this process, without Ray; what `make test-unit` runs. Starting a process in it is an error.
- `ray`: takes the fixture `ray_cluster`, directly or through another fixture.
- `processes`: starts processes of its own; marked in its module.
- `slow`: starts clusters, kills processes, or trains or reads for a while; marked in its module.
"""

import json
import multiprocessing.process
import os
import secrets
import signal
import subprocess
import sys

# Ray reads these when it is imported, or when it starts its processes.
os.environ.update(
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN=secrets.token_hex(32),
    RAY_USAGE_STATS_ENABLED="0",
    RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="0.1",
    RAY_TRAIN_ENABLE_PREEMPTION_WATCHER="0",  # as `connect` sets it for a cluster of its own
    RAY_DATA_DISABLE_PROGRESS_BARS="1",
    OMP_NUM_THREADS="1",
)
# A shell's background jobs ignore Ctrl-C, and so would the processes of tests that are interrupted.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A test must not join a running cluster, nor write into the user's own runs.
for name in ("RAY_ADDRESS", "AXML_RAY_HOME"):
    os.environ.pop(name, None)

from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import hypothesis  # noqa: E402
import pytest  # noqa: E402
from s3 import SERVER_VARIABLE, Bucket, Server  # noqa: E402

# The time of an example depends on the load, so there is no deadline. Each run of the tests draws other examples.
hypothesis.settings.register_profile("house", deadline=None, max_examples=30)
hypothesis.settings.load_profile("house")

TIERS = ("slow", "processes", "ray")
PROCESS_STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system")
ALLOWED = ("fc-list",)
"""Programs that libraries run once: matplotlib lists the fonts of a new home."""
_unit_test: str | None = None
"""The unit test that is running, if any."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use the cluster as `ray`, and those of no other tier as `unit`; order files by tier, slow first.

    What the marker `fault` says goes into the report of the test, of which `benchmarks/faults.py` makes a table.

    pytest-xdist gives whole files to its processes, so a slow file that started last would run alone.
    """
    rank: dict[Path, int] = {}
    for item in items:
        for marker in item.iter_markers("fault"):
            fault, during = marker.args
            row = {"fault": fault, "during": during, "work_repeated": "none", "data_lost": "none", **marker.kwargs}
            item.user_properties.append(("fault", json.dumps(row)))
        if "ray_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.ray)
        if not any(item.get_closest_marker(tier) for tier in TIERS):
            item.add_marker(pytest.mark.unit)
        else:  # Ray gives up its own start when a single call to its control store hangs, rarely
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun="The current node timed out during startup"))
        tiers = (index for index, tier in enumerate((*TIERS, "unit")) if item.get_closest_marker(tier))
        rank[item.path] = min(rank.get(item.path, len(TIERS)), *tiers)
    items.sort(key=lambda item: rank[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Record whether a unit test is running, for `_refuse_processes`."""
    global _unit_test
    _unit_test = item.nodeid if item.get_closest_marker("unit") else None
    try:
        return (yield)
    finally:
        _unit_test = None


def _refuse_processes(event: str, arguments: tuple = ()) -> None:
    """Fail a unit test, or its fixture, that starts a process, other than those of `ALLOWED`."""
    if event in PROCESS_STARTS and _unit_test is not None and (arguments[:1] or ("",))[0] not in ALLOWED:
        raise RuntimeError(f"{_unit_test} is a unit test and started a process; mark it as `processes`")


_start = multiprocessing.process.BaseProcess.start


def _start_process(process: multiprocessing.process.BaseProcess) -> None:
    _refuse_processes("os.fork")
    _start(process)


sys.addaudithook(_refuse_processes)
# Spawning by multiprocessing raises no audit event.
multiprocessing.process.BaseProcess.start = _start_process


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Give each test one thread and the same random numbers, if anything has imported PyTorch."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
        torch.manual_seed(0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 1 MiB; its tests are `processes`."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    if sys.platform != "linux" or os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a file system takes root on Linux")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Start one cluster of two CPUs for all tests of the session that need Ray.

    It has one GPU as far as Ray knows, which only counts and reserves it; PyTorch need not see one.
    """
    from axml_ray.cluster.connection import start_cluster, stop_cluster

    start_cluster(num_cpus=2, num_gpus=1, object_store_memory=256 << 20)
    yield
    stop_cluster()


@pytest.fixture(scope="session")
def s3_server() -> str:
    """Return the URL of a server of S3, which runs in a thread of this process."""
    return os.environ.get(SERVER_VARIABLE) or Server().url


@pytest.fixture
def bucket(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Make a bucket, which this process and those that it starts reach as the environment says, and an empty cache."""
    from axml_ray.core import storage

    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AXML_RAY_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    made = Bucket(f"bucket-{secrets.token_hex(4)}", s3_server)
    made.ask("PUT")
    storage._file_system.cache_clear()
    yield made
    storage._file_system.cache_clear()
