"""Two Ray nodes whose disks the other does not see: each is in a mount namespace with a file system of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
import synthetic
import yaml
from descendants import job_environment
from ports import free_port
from s3 import Bucket

from axml_ray.inference.tagger import Tagger
from axml_ray.runs.fitting import fit_run
from axml_ray.runs.run import Run
from axml_ray.settings.configuration import load
from axml_ray.workflow.evaluate import evaluate
from axml_ray.workflow.train import prepare_corpus

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting takes root on Linux"),
]
SECONDS = 240
SCRIPTS = Path(sys.executable).parent
PRIVATE = 'mount -t tmpfs tmpfs "$0" && exec "$@"'

Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start(bucket: Bucket, tmp_path: Path) -> Iterator[Start]:
    """Start two nodes with `tmp_path / "private"` for each alone; return what starts a command on the first."""
    private, head_port = tmp_path / "private", free_port()
    temporary = Path(tempfile.mkdtemp(prefix="axml-", dir="/tmp"))  # sockets below it must have short names
    private.mkdir()
    environment = job_environment(
        AXML_RAY_CACHE=str(private / "cache"), AXML_RAY_HOME=str(tmp_path), RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="0"
    )
    common = ["--block", "--node-ip-address", "127.0.0.1", "--num-cpus", "1", "--object-store-memory", "134217728"]
    head = ["--head", "--port", str(head_port), "--temp-dir", str(temporary), "--include-dashboard", "false"]
    head += ["--dashboard-port", str(free_port())]  # another test of this moment may have Ray's own
    nodes: list[subprocess.Popen] = []
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        for number, own in enumerate((head, ["--address", f"127.0.0.1:{head_port}"])):
            command = [str(SCRIPTS / "ray"), "start", *own, *common, "--dashboard-agent-listen-port", str(free_port())]
            log = stack.enter_context((tmp_path / f"node-{number}.log").open("w"))
            nodes.append(
                subprocess.Popen(
                    ["unshare", "--mount", "--propagation", "private", "sh", "-c", PRIVATE, str(private), *command],
                    env=environment, stdout=log, stderr=log, start_new_session=True,
                )
            )  # fmt: skip
            stack.callback(nodes[-1].wait, 60)
            stack.callback(nodes[-1].terminate)
            written = Path(log.name)
            try:
                wait_for("the node", lambda written=written: "Ray runtime started" in written.read_text(), nodes[-1])
            except AssertionError as error:
                raise AssertionError(written.read_text()[-2_000:]) from error

        def start(*argv: object, program: str = str(SCRIPTS / "axml-ray")) -> subprocess.Popen:
            """Start a program on the first node."""
            command = ["nsenter", f"--mount=/proc/{nodes[0].pid}/ns/mnt", program, *map(str, argv)]
            variables = environment | {"RAY_ADDRESS": f"127.0.0.1:{head_port}"}
            return subprocess.Popen(
                command,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )

        yield start


def wait_for(what: str, check: Callable[[], bool], process: subprocess.Popen) -> None:
    end = time.monotonic() + SECONDS
    while not check():
        assert time.monotonic() < end, f"waited {SECONDS} s for {what}"
        assert process.poll() is None, f"the process ended before {what}"
        time.sleep(0.1)


def experiment(tmp_path: Path, runs: str, **groups: dict[str, object]) -> Path:
    """Write settings of a network with a worker on each node, and of other members."""
    settings = synthetic.experiment(
        tmp_path,
        ensemble={"trees": 1, "top_labels": 10},
        members={"knn": {"weight": 0.5}},
        training={"precision": "float32", "epochs": [1, 12], "eval_every_steps": 5, "patience_steps": 5_000},
        resources={"workers": 2, "cpus_per_worker": 1, "checkpoint_minutes": 0},
        **groups,
    )
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**settings, "runs": f"{runs}/runs", "corpora": f"{runs}/corpora"}))
    return path


@pytest.mark.fault(
    "driver killed where nodes have no common disk", "training", work_repeated="the steps since the checkpoint"
)
def test_a_run_at_a_url_is_trained_by_nodes_without_a_common_disk(start: Start, bucket: Bucket, tmp_path: Path) -> None:
    url = f"s3://{bucket.name}"
    path = experiment(tmp_path, url)
    first = start("train", "--config", path)
    networks, of_first_level = "runs/small/tree-0/network_tree", set[str]()

    def of_second_level() -> set[str]:
        names = set(bucket.names())
        stored = {name.rpartition("/")[0] for name in names if name.endswith("/checkpoint.json")}
        files = ("rows-0.safetensors", "rows-1.safetensors", "model.safetensors")
        whole = {directory for directory in stored if all(f"{directory}/{file}" in names for file in files)}
        if f"{networks}/level-1/.axml-ray.json" not in names:
            of_first_level.update(whole)
        return whole - of_first_level

    wait_for("a checkpoint of the second level", lambda: bool(of_second_level()), first)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    manifests = [json.loads(bucket.read(f"{directory}/checkpoint.json")) for directory in of_second_level()]
    assert {manifest["workers"] for manifest in manifests} == {2}
    for words in (
        ("train", "--config", path, "--resources.workers", 1),
        ("export", "--run", f"{url}/runs/small", "--to", f"{url}/bundles/small"),
        (
            "predict",
            "--bundle",
            f"{url}/bundles/small",
            "--input",
            tmp_path / "texts/test.jsonl",
            "--output",
            f"{url}/out",
        ),
    ):
        process = start(*words)
        _, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, err
    names = bucket.names()
    assert not [name for name in names if ".lease" in name or "checkpoint" in name or ".scored" in name]
    journal = [json.loads(line) for line in bucket.read("runs/small/tree-0/training.jsonl").splitlines()]
    assert [record["level"] for record in journal if "opened" in record] == [1]  # not trained again
    steps = [record["scoring"]["step"] for record in journal if record.get("level") == 2 and "scoring" in record]
    [turn] = [after for before, after in pairwise(steps) if after <= before] or [steps[-1]]
    assert turn > max(manifest["position"]["step"] for manifest in manifests)
    assert json.loads(bucket.read("out/predictions.json"))["documents"] == 60

    # The same run on the disk of this machine, by one worker, from the same corpus.
    settings = load(path, runs=str(tmp_path / "local"), resources={"workers": 1})
    run = Run(settings, prepare_corpus(settings))
    fit_run(run)
    here, there = evaluate(run), json.loads(bucket.read("runs/small/metrics.json"))
    assert here["fingerprint"] == there["fingerprint"]
    assert there["ensemble"] == pytest.approx(here["ensemble"], abs=0.1)
    for name, scores in here["members"].items():
        assert there["members"][name] == pytest.approx(scores, abs=0.1)
    tagger = Tagger.load(f"{url}/bundles/small")
    assert tagger.tag(["own3 family0 own3"], top_k=1)[0][0].label == "label 3"


@pytest.mark.fault(
    "driver killed where nodes have no common disk", "tuning", work_repeated="the last seconds of a trial"
)
def test_a_sweep_at_a_url_goes_on_after_a_kill(start: Start, bucket: Bucket, tmp_path: Path) -> None:
    url, space = f"s3://{bucket.name}", tmp_path / "rates.py"
    space.write_text("def space(draw):\n    draw.suggest_categorical('training.learning_rate', [0.02, 0.01])\n")
    path = experiment(tmp_path, url)
    words = ("tune", "--config", path, "--space", space, "--trials", 2, "--training.epochs", "[1, 10]")
    sweep, first = "runs/small-rates", start(*words)
    wait_for("a result of a trial", lambda: f"{sweep}/trials/000/result.json" in bucket.names(), first)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    again = start(*words)
    out, err = again.communicate(timeout=SECONDS)
    assert again.returncode == 0, err
    assert out.splitlines()[-1] == f"Next: axml-ray train --config {url}/{sweep}/best.yaml"
    trials = json.loads(bucket.read(f"{sweep}/trials.json"))["trials"]
    assert [trial["state"] for trial in trials] == ["finished", "finished"]
    for trial in trials:
        evaluations = [(one["level"], one["step"]) for one in trial["curve"]]
        assert evaluations == sorted(set(evaluations))
        assert trial["score"] == max(one["score"] for one in trial["curve"] if one["level"] == 2) > 0
    kept = [name for name in bucket.names() if name.startswith(f"{sweep}/trials/0") and "/tree-0/" in name]
    assert {name.split("/tree-0/")[1].split("/")[0] for name in kept} <= {"training.jsonl", "tensorboard"}
    assert load(f"{url}/{sweep}/best.yaml").training.learning_rate in (0.02, 0.01)


@pytest.mark.fault("paths that a node does not see", "preparation")
def test_paths_that_a_node_does_not_see_are_refused_before_anything_is_written(start: Start, tmp_path: Path) -> None:
    path = experiment(tmp_path, str(tmp_path / "private"))
    began = time.monotonic()
    process = start("train", "--config", path)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 2, err
    assert err.splitlines()[-1].startswith("error: node ") and str(tmp_path / "private" / "runs") in err
    assert time.monotonic() - began < 30
    left, _ = start("find", tmp_path / "private", "-type", "f", program="/usr/bin/env").communicate()
    assert left == ""
