"""A cluster that begins without a worker, whose autoscaler starts nodes on this machine."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from descendants import job_environment
from ports import free_port
from ray.autoscaler._private.fake_multi_node.node_provider import (
    FAKE_HEAD_NODE_ID,
    FAKE_HEAD_NODE_TYPE,
    FakeMultiNodeProvider,
)

SECONDS = 100
COMMANDS = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
UNUSED = ("cluster_synced_files", "rsync_exclude", "rsync_filter", *(f"{name}_commands" for name in COMMANDS))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@contextmanager
def cluster(tmp_path: Path, version: int, *, grows: bool = True) -> Iterator[str]:
    """Start a head without CPUs and an autoscaler of this version; yield the address.

    If it grows, Ray's provider starts nodes that are processes, at most one of two CPUs.
    `ray.cluster_utils.AutoscalingCluster` would stop every Ray of this machine, and needs a file that wheels lack.
    """
    port = free_port()
    config = {
        "cluster_name": "fake",
        "max_workers": 1,
        "idle_timeout_minutes": 5,
        "provider": {
            # The second version reads defaults of "fake_multinode" from a file that wheels lack.
            "type": "external",
            "module": f"{FakeMultiNodeProvider.__module__}.FakeMultiNodeProvider",
            "gcs_address": f"127.0.0.1:{port}",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": FAKE_HEAD_NODE_ID,
        },
        "available_node_types": {
            FAKE_HEAD_NODE_TYPE: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {
                "resources": {"CPU": 2, "object_store_memory": 128 << 20}, "node_config": {}, "max_workers": 1
            },
        },
        "head_node_type": FAKE_HEAD_NODE_TYPE,
        "upscaling_speed": 1.0,
        **{key: {} for key in ("auth", "docker", "file_mounts")},
        **{key: [] for key in UNUSED},
    }  # fmt: skip
    (tmp_path / "autoscaling.yaml").write_text(json.dumps(config))
    temporary = Path("/tmp") / f"axml-grow-{os.getpid()}"  # sockets below it must have short names
    command = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--num-cpus", "0",
               "--node-ip-address", "127.0.0.1", "--port", str(port), "--include-dashboard", "false",
               "--dashboard-port", str(free_port()),
               "--dashboard-agent-listen-port", str(free_port()), "--ray-client-server-port", str(free_port()),
               "--temp-dir", temporary, "--object-store-memory", str(128 << 20)]  # fmt: skip
    variables = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_enable_autoscaler_v2": str(version - 1)}
    if grows:
        command += ["--autoscaling-config", tmp_path / "autoscaling.yaml"]
        variables |= {"RAY_FAKE_CLUSTER": "1", "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID}
    with (tmp_path / "head.log").open("w") as log:
        head = subprocess.Popen(command, env=job_environment(**variables), stdout=log, stderr=log,
                                start_new_session=True)  # fmt: skip
    try:
        end = time.monotonic() + SECONDS
        while "started" not in (tmp_path / "head.log").read_text():
            assert head.poll() is None and time.monotonic() < end, (tmp_path / "head.log").read_text()
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        head.terminate()
        head.wait(60)
        shutil.rmtree(temporary, ignore_errors=True)


GROW = """
import logging, sys, time

import ray

from axml_ray.cluster import capacity
from axml_ray.cluster.connection import connect
from axml_ray.core.errors import SettingsError
from axml_ray.settings import ResourceSettings

logging.basicConfig(level="INFO")
connect()
while not capacity.has_autoscaler():  # it reports a few seconds after its start
    time.sleep(0.2)
print(capacity.max_processes({"CPU": 1}))
capacity.check_fits(ResourceSettings(workers=2))
print(capacity.max_processes({"CPU": 1}))
capacity.GROW_SECONDS = float(sys.argv[1])
try:
    capacity.check_fits(ResourceSettings(workers=3))
except SettingsError as error:
    print(error)
"""


@pytest.mark.parametrize(("version", "seconds"), [(1, 3), (2, 1_800)])
def test_a_job_waits_for_the_nodes_that_it_needs(tmp_path: Path, version: int, seconds: int) -> None:
    """It waits in vain for more than the cluster can have; the second version refuses that at once."""
    with cluster(tmp_path, version) as address:
        done = subprocess.run([sys.executable, "-c", GROW, str(seconds)], env=job_environment(RAY_ADDRESS=address),
                              capture_output=True, text=True, timeout=SECONDS)  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after, error = done.stdout.splitlines()[-3:]
    assert (before, after) == ("0", "2")
    assert error.startswith("resources: 3 workers")
    assert "waiting for nodes" in done.stderr


REFUSED = """
from axml_ray.cluster import capacity
from axml_ray.cluster.connection import connect
from axml_ray.core.errors import SettingsError
from axml_ray.settings import ResourceSettings

connect()
try:
    capacity.check_fits(ResourceSettings(workers=1))
except SettingsError as error:
    print(error)
"""


@pytest.mark.parametrize("version", [1, 2])
def test_a_job_does_not_wait_for_a_cluster_that_cannot_grow(tmp_path: Path, version: int) -> None:
    with cluster(tmp_path, version, grows=False) as address:
        done = subprocess.run([sys.executable, "-c", REFUSED], env=job_environment(RAY_ADDRESS=address),
                              capture_output=True, text=True, timeout=SECONDS)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("resources: 1 workers")
