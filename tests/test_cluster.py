"""A job's processes in a cluster of its own and in one that is there already."""

import os
import subprocess
import sys

import pytest

from axml_ray.memory import ONE_ARENA

NONE = dict.fromkeys(ONE_ARENA, "0")
"""As many arenas as glibc likes: what a person set stays."""

KEPT = """
import os, re, sys, threading
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from axml_ray.cluster import connect
from axml_ray.memory import keep_freed_memory

if sys.argv[1] == "given":
    cluster = Cluster()
    cluster.add_node(num_cpus=1, object_store_memory=128 << 20, include_dashboard=False)
    os.environ["RAY_ADDRESS"] = cluster.address
connect()


@ray.remote(num_cpus=1)
def kept():
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


print(ray.get(kept.remote()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read as Linux writes it")
@pytest.mark.parametrize(("cluster", "arenas", "kept"), [("own", {}, True), ("given", {}, True), ("own", NONE, False)])
def test_a_workers_thread_keeps_the_memory_that_it_freed(cluster: str, arenas: dict[str, str], kept: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ONE_ARENA} | arenas
    done = subprocess.run(
        [sys.executable, "-c", KEPT, cluster], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    held = float(done.stdout.splitlines()[-1])  # MiB of the 100
    assert held > 90 if kept else held < 10


SMALL_NODES = """
import os

from ray.cluster_utils import Cluster

from axml_ray.cluster import check_fits, connect, room_for
from axml_ray.settings import ResourceSettings, SettingsError

cluster = Cluster()
for cpus in (3, 2):
    cluster.add_node(num_cpus=cpus, object_store_memory=128 << 20, include_dashboard=False)
os.environ["RAY_ADDRESS"] = cluster.address
connect()
print([room_for({"CPU": cpus}) for cpus in (0.5, 1, 1.5, 2, 3, 4)])
check_fits(ResourceSettings(workers=2, cpus_per_worker=2))
try:
    check_fits(ResourceSettings(workers=2, cpus_per_worker=2.5))
except SettingsError as error:
    print(error)
"""


def test_what_no_single_node_has_room_for_is_an_error() -> None:
    done = subprocess.run([sys.executable, "-c", SMALL_NODES], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rooms, error = done.stdout.splitlines()[-2:]
    assert rooms == "[10, 5, 3, 2, 1, 0]"
    assert error.startswith("resources: 1 of 2 workers fit on the cluster's nodes, each whole on one; lower")


def test_an_address_where_no_cluster_can_be_joined_is_named() -> None:
    """As it is set for `ray job submit`, where the job itself was started by `python`."""
    address = "http://127.0.0.1:8265"
    done = subprocess.run(
        [sys.executable, "-c", "from axml_ray.cluster import connect; connect()"],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"RAY_ADDRESS": address},
    )
    assert done.returncode
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"axml_ray.settings.SettingsError: RAY_ADDRESS={address}: no Ray cluster can be joined")
    assert "unset RAY_ADDRESS" in last
