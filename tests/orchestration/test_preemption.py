"""A group of two workers on a cluster of two nodes, one of which is preempted: drained with a deadline, then killed."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import synthetic
from descendants import job_environment

from axml_ray.corpus.preparation.prepare import prepare
from axml_ray.runs.fitting import fit_run
from axml_ray.runs.run import Run
from axml_ray.settings.configuration import load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PREEMPTED = """
import json, os, signal, subprocess, sys, threading, time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from axml_ray.cluster.connection import connect
from axml_ray.orchestration.members import fit_members
from axml_ray.runs.run import Run
from axml_ray.settings.configuration import load

cluster = Cluster()
cluster.add_node(num_cpus=0, object_store_memory=128 << 20, include_dashboard=False)
first, second = (cluster.add_node(num_cpus=1, object_store_memory=128 << 20) for _ in range(2))
os.environ["RAY_ADDRESS"] = cluster.address
connect()


def preempt():
    subprocess.run([Path(sys.executable).with_name("ray"), "drain-node", "--address", cluster.address, "--node-id",
                    second.node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test",
                    "--deadline-remaining-seconds", "8"], check=True)
    time.sleep(8)
    os.kill(second.all_processes["raylet"][0].process.pid, signal.SIGKILL)


drained = []


def follow(record):
    if not drained and record.get("level") == 2 and record.get("scoring", {}).get("step", 0) >= 100:
        drained.append(threading.Thread(target=preempt))
        drained[0].start()


fit_members(Run.open(load(None, **json.loads(sys.argv[1]))), follow)
drained[0].join()
# Not on the standard output, to which Ray writes as well.
Path(sys.argv[2]).write_text(json.dumps([node["Alive"] for node in ray.nodes()]))
"""


@pytest.mark.fault("node preempted, then its raylet killed", "training", work_repeated="at most 20 steps")
def test_a_preempted_node_costs_no_work_and_no_failure(tmp_path: Path) -> None:
    epochs, steps = 20, 14
    given = synthetic.experiment(
        tmp_path,
        training={"epochs": [1, epochs], "eval_every_steps": 1, "patience_steps": 5_000, "precision": "float32"},
        ensemble={"trees": 1},
        resources={"workers": [1, 2], "cpus_per_worker": 1, "max_failures": 0},
    )
    settings = load(None, **given)
    current = Run(settings, prepare(settings.corpus, settings.corpus_directory))
    alone = Run(settings.model_copy(update={"runs": tmp_path / "alone"}), current.corpus)
    fit_run(alone)
    current.keep_tree(0, alone.open_tree(0))
    # It asks for the notice as on a cluster, and waits shortly for nodes that are gone.
    environment = job_environment(RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S="0.5", RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="0.1",
                                  RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S="5")  # fmt: skip
    alive = tmp_path / "alive.json"
    done = subprocess.run([sys.executable, "-c", PREEMPTED, json.dumps(given), alive], env=environment,
                          capture_output=True, text=True, timeout=200)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(alive.read_text())) == [False, True, True]
    lines = (current.layout.tree(0) / "training.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record.get("level") == 2]
    made = Counter(record["scoring"]["step"] for record in records if "scoring" in record)
    assert sorted(made) == list(range(1, epochs * steps + 1))
    assert sum(made.values()) - len(made) <= 20
    assert len([record for record in records if "begun" in record]) == 2
    scores = [
        json.loads((run.members[0].directory / "level-2" / "level.json").read_text())["valid_nDCG@5"]
        for run in (current, alone)
    ]
    assert abs(scores[0] - scores[1]) < 5 and scores[1] > 20
    # The checkpoints of the group are gone.
    assert {path.name for path in current.members[0].directory.iterdir() if path.is_dir()} == {"level-1", "level-2"}
