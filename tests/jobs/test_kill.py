"""The job as a process: killed in the middle of a level, started again, submitted to a cluster."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import synthetic
import yaml

ROOT = Path(__file__).parents[2]
JOB = [sys.executable, str(ROOT / "jobs" / "train_ensemble.py")]
SECONDS = 240

pytestmark = pytest.mark.slow


def config(directory: Path, **groups: dict[str, object]) -> Path:
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(synthetic.experiment(directory, **groups)))
    return path


def wait_for(what: str, check, process: subprocess.Popen | None = None) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + SECONDS
    while not check():
        assert time.monotonic() < end, f"waited {SECONDS} s for {what}"
        assert process is None or process.poll() is None, f"the job ended before {what}"
        time.sleep(0.1)


def environment(**more: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_") or name.startswith("RAY_AUTH_")
    }
    return {**kept, "RAY_USAGE_STATS_ENABLED": "0", **more}


def test_a_killed_driver_goes_on_without_training_a_finished_level_again(tmp_path: Path) -> None:
    # A second level too long to finish before the kill, which then is shortened by nothing: it must run to its end.
    path = config(tmp_path, training={"epochs": [1, 40], "score_every": 5}, ensemble={"trees": 1, "top_labels": 10})
    run = tmp_path / "runs" / "small"
    first, second = (run / "tree-0" / "network_tree" / f"level-{number}" / "level.json" for number in (1, 2))
    journal = run / "tree-0" / "training.jsonl"
    killed = subprocess.Popen([*JOB, "--config", str(path)], env=environment(), start_new_session=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    wait_for("the first level", first.exists, killed)
    wait_for("its candidates", lambda: '"scored"' in journal.read_text(), killed)
    assert not second.exists()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    state = first.stat()
    # The cluster goes with its driver; what a worker may still write would be taken for the second run's.
    time.sleep(5)
    done = subprocess.run([*JOB, "--config", str(path)], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (state.st_ino, state.st_mtime_ns)
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    assert 1 in [record["level"] for record in records if "opened" in record]
    assert second.exists()
    assert json.loads((run / "metrics.json").read_text())["documents"] == 60
    assert "ensemble" in done.stdout and str(run) in done.stdout


def train_worker(driver: int) -> int:
    """The process of the only Ray Train worker below a driver; 0 if there is none."""
    parents, workers = {}, []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                if b"TrainWorker" in (process / "cmdline").read_bytes():
                    workers.append(int(process.name))
            except OSError:
                continue  # it has just ended

    def below(pid: int) -> bool:
        while pid in parents and pid != driver:
            pid = parents[pid]
        return pid == driver

    found = [pid for pid in workers if below(pid)]
    assert len(found) < 2, found
    return found[0] if found else 0


def test_a_killed_worker_goes_on_inside_its_level_and_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    training = {"epochs": [1, 20], "score_every": 5, "patience": 1_000, "precision": "float32"}
    path = config(
        tmp_path,
        training=training,
        network={"embedding_dropout": 0.2, "encoder_dropout": 0.3},
        ensemble={"trees": 1, "top_labels": 10},
        resources={"checkpoint_minutes": 0},
    )
    trees = {name: tmp_path / "runs" / name / "tree-0" for name in ("small", "calm")}
    checkpoint = trees["small"] / "network_tree" / "level-2.checkpoint" / "checkpoint.json"

    def step() -> int:
        try:
            return int(json.loads(checkpoint.read_text())["position"]["step"])
        except (OSError, ValueError):
            return 0

    with (tmp_path / "job.log").open("w") as log:
        job = subprocess.Popen([*JOB, "--config", str(path)], env=environment(), start_new_session=True,
                               stdout=log, stderr=log)  # fmt: skip
    wait_for("a checkpoint inside the second level", lambda: step() >= 20, job)
    worker = train_worker(job.pid)
    assert worker
    os.kill(worker, signal.SIGKILL)
    time.sleep(0.2)
    killed_at, steps = step(), []
    assert 20 <= killed_at < 200, "too late for a kill inside the level"
    end = time.monotonic() + SECONDS
    while job.poll() is None and time.monotonic() < end:
        steps.append(step() or killed_at)
        time.sleep(0.05)
    assert job.poll() == 0, (tmp_path / "job.log").read_text()[-5_000:]
    assert min(steps) >= killed_at  # never from its beginning
    journal = [json.loads(line) for line in (trees["small"] / "training.jsonl").read_text().splitlines()]
    assert [record["level"] for record in journal if "scored" in record] == [1]
    assert [record["level"] for record in journal if "opened" in record] == [1]
    calm = subprocess.run([*JOB, "--config", str(path), "--name", "calm"], env=environment(), capture_output=True,
                          text=True)  # fmt: skip
    assert calm.returncode == 0, calm.stdout + calm.stderr
    found, expected = ({}, {})
    for name, state in (("small", found), ("calm", expected)):
        metrics = json.loads((trees[name].parent / "metrics.json").read_text())
        state |= {"ensemble": metrics["ensemble"], "members": metrics["members"]}
        for file in sorted(trees[name].glob("network_tree/level-*/*.safetensors")):
            state[str(file.relative_to(trees[name]))] = file.read_bytes()
        state["steps"] = json.loads((trees[name] / "network_tree" / "level-2" / "level.json").read_text())["steps"]
    assert found == expected
    assert len(found) == 2 + 4 + 1 and found["steps"] == 20 * 14


@pytest.fixture
def head(tmp_path: Path) -> Iterator[str]:
    """A Ray head of our own on free ports; the address for `ray job submit`."""

    def free() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    ray = str(Path(sys.executable).with_name("ray"))
    port = free()
    # Ray's sockets live below its temporary folder and must have short names.
    temporary = Path("/tmp") / f"axml-{os.getpid()}"
    command = [ray, "start", "--head", "--block", "--node-ip-address", "127.0.0.1", "--port", str(free()),
               "--dashboard-host", "127.0.0.1", "--dashboard-port", str(port), "--dashboard-agent-listen-port",
               str(free()), "--ray-client-server-port", str(free()), "--num-cpus", "2", "--temp-dir", str(temporary),
               "--object-store-memory", "268435456"]  # fmt: skip
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with (tmp_path / "head.log").open("w") as log:
        variables = {"AXML_RAY_HOME": str(tmp_path), "PATH": path, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
        process = subprocess.Popen(command, env=environment(**variables), stdout=log,
                                   stderr=log, start_new_session=True)  # fmt: skip
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for("the head", lambda: subprocess.run([ray, "job", "list", "--address", address], env=environment(),
                 capture_output=True).returncode == 0, process)  # fmt: skip
        yield address
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(temporary, ignore_errors=True)


def test_a_submitted_job_outlives_its_terminal_and_gives_the_same_result(head: str, tmp_path: Path) -> None:
    ray = str(Path(sys.executable).with_name("ray"))
    settings = synthetic.experiment(tmp_path, ensemble={"trees": 1, "top_labels": 10})
    settings |= {"runs": "runs", "corpora": "corpora"}  # relative: they must not end up in the job's snapshot
    working = tmp_path / "upload"
    shutil.copytree(ROOT / "axml_ray", working / "axml_ray")
    shutil.copytree(ROOT / "jobs", working / "jobs")
    (working / "config.yaml").write_text(yaml.safe_dump(settings))
    submit = [ray, "job", "submit", "--address", head, "--working-dir", str(working), "--submission-id", "small", "--",
              "python", "jobs/train_ensemble.py", "--config", "config.yaml"]  # fmt: skip
    terminal = subprocess.Popen(submit, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                start_new_session=True)  # fmt: skip
    corpus = tmp_path / "corpora" / "synthetic" / "corpus.json"
    wait_for("the corpus", corpus.exists, terminal)
    os.killpg(terminal.pid, signal.SIGKILL)
    metrics = tmp_path / "runs" / "small" / "metrics.json"
    wait_for("the result", metrics.exists)
    local = subprocess.run([*JOB, "--config", str(working / "config.yaml"), "--name", "local"],
                           env=environment(AXML_RAY_HOME=str(tmp_path)), capture_output=True, text=True)  # fmt: skip
    assert local.returncode == 0, local.stdout + local.stderr
    here = json.loads((tmp_path / "runs" / "local" / "metrics.json").read_text())
    assert json.loads(metrics.read_text())["ensemble"] == pytest.approx(here["ensemble"], abs=1e-3)
