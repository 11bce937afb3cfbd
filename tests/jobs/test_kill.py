"""The job killed, and its worker, in the middle of a level; the job submitted to a cluster.

What comes of it has the same bytes as what this process trains without Ray and without a kill.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
import synthetic
import torch
import yaml
from descendants import descendants, job_environment, kill_driver
from ports import free_port

from axml_ray.core.lease import own
from axml_ray.corpus.preparation.prepare import prepare
from axml_ray.runs.fitting import fit_run
from axml_ray.runs.run import Run
from axml_ray.settings.configuration import load
from axml_ray.workflow.train import run

ROOT = Path(__file__).parents[2]
JOB = [sys.executable, str(ROOT / "jobs" / "train_ensemble.py")]
SECONDS = 240

pytestmark = pytest.mark.slow


def wait_for(what: str, check, process: subprocess.Popen | None = None) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + SECONDS
    while not check():
        assert time.monotonic() < end, f"waited {SECONDS} s for {what}"
        assert process is None or process.poll() is None, f"the job ended before {what}"
        time.sleep(0.1)


EPOCHS, STEPS = 50, 14
"""Epochs of the second level, and steps of one: too many to end before both kills, as workers outlive their driver."""


def experiment(directory: Path, epochs: int) -> dict[str, object]:
    """Settings with these epochs of the second level; checkpoints are saved at every scoring."""
    return synthetic.experiment(
        directory,
        training={"epochs": [1, epochs], "eval_every_steps": 5, "patience_steps": 5_000, "precision": "float32"},
        network={"embedding_dropout": 0.2, "encoder_dropout": 0.3},
        ensemble={"trees": 1, "top_labels": 10},
        resources={"checkpoint_minutes": 0},
    )


def weights(directory: Path) -> dict[str, bytes]:
    """The files of all levels of the run's networks."""
    files = sorted(directory.glob("tree-0/network_tree/level-*/*.safetensors"))
    return {str(file.relative_to(directory)): file.read_bytes() for file in files}


def undisturbed(home: Path, epochs: int) -> dict[str, bytes]:
    """Train the same networks in this process."""
    home.mkdir()
    settings = load(None, **experiment(home, epochs))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    fit_run(Run(settings, prepare(settings.corpus, settings.corpus_directory)))
    torch.set_num_threads(threads)
    found = weights(settings.run_directory)
    assert len(found) == 4
    return found


@pytest.mark.fault("driver killed", "training", work_repeated="fewer than 5 of 700 steps")
@pytest.mark.fault("worker killed", "training", work_repeated="fewer than 5 of 700 steps")
def test_a_killed_driver_and_a_killed_worker_cost_no_finished_level_and_no_bit(
    ray_cluster: None, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(experiment(tmp_path, EPOCHS)))
    settings = load(path)
    directory = settings.run_directory
    tree, journal = directory / "tree-0" / "network_tree", directory / "tree-0" / "training.jsonl"
    first, second = (tree / f"level-{number}" / "level.json" for number in (1, 2))
    checkpoint = tree / "level-2.checkpoint" / "checkpoint.json"

    def step() -> int:
        try:
            return int(json.loads(checkpoint.read_text())["position"]["step"])
        except (OSError, ValueError):
            return 0

    def records(kind: str) -> list[int]:
        """Levels of the journal's records of a kind."""
        lines = (json.loads(line) for line in journal.read_text().splitlines())
        return [record["level"] for record in lines if kind in record]

    killed = subprocess.Popen([*JOB, "--config", str(path)], env=job_environment(), start_new_session=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    wait_for("a checkpoint inside the second level", lambda: step() >= 10, killed)
    kill_driver(killed)
    state, left_at = first.stat(), step()
    assert not second.exists() and records("scored") == [1] and left_at >= 10
    # The same run goes on, on the cluster of this process.
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(run, settings)
        wait_for("a later checkpoint", lambda: again.done() or step() >= left_at + 10)
        (worker,) = descendants(os.getpid(), b"train_member")
        os.kill(worker, signal.SIGKILL)
        time.sleep(0.2)
        killed_at, steps = step(), []
        assert left_at + 10 <= killed_at, "too late for a kill inside the level"
        while not again.done():
            steps.append(step() or killed_at)
            time.sleep(0.05)
        metrics = again.result()
    assert min(steps) >= killed_at  # never from its beginning
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (state.st_ino, state.st_mtime_ns)
    assert records("scored") == [1] and records("opened") == [1, 1]  # after each kill
    assert weights(directory) == undisturbed(tmp_path / "undisturbed", EPOCHS)
    assert json.loads(second.read_text())["steps"] == EPOCHS * STEPS
    assert metrics["documents"] == 60


@pytest.mark.fault("second job on one run", "training")
def test_a_second_job_is_refused_and_the_first_ends_as_if_alone(command, tmp_path: Path) -> None:
    path, epochs = tmp_path / "config.yaml", 30
    path.write_text(yaml.safe_dump(experiment(tmp_path, epochs)))
    directory = load(path).run_directory
    first = subprocess.Popen([*JOB, "--config", str(path)], env=job_environment(), start_new_session=True,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        wait_for("the lease", lambda: any(directory.glob(".lease/*")), first)
        for moment in ("run.json", "tree-0/network_tree/level-2.checkpoint"):
            wait_for(moment, (directory / moment).exists, first)
            began = time.monotonic()
            code, _, err = command("train", "--config", path)
            assert time.monotonic() - began < 10
            assert code == 2 and err.startswith("error: ") and err.count("\n") == 1 and str(first.pid) in err
        assert first.wait(SECONDS) == 0
    finally:
        first.kill()
    assert weights(directory) == undisturbed(tmp_path / "undisturbed", epochs)
    assert not (directory / ".lease").exists()


@pytest.mark.fault("owner stopped (SIGSTOP) and replaced", "training", work_repeated="fewer than 5 steps")
def test_a_stopped_owner_that_goes_on_after_a_takeover_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(experiment(tmp_path, 5_000)))
    directory = load(path).run_directory
    checkpoint = directory / "tree-0" / "network_tree" / "level-2.checkpoint"

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}

    first = subprocess.Popen([*JOB, "--config", str(path)], env=job_environment(AXML_RAY_LEASE_SECONDS="6"),
                             start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                             text=True)  # fmt: skip
    try:
        wait_for("a checkpoint", checkpoint.exists, first)
        # Its worker is not stopped, and goes on writing checkpoints.
        first.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with own(directory) as lease:
            assert time.monotonic() - began >= 6
            before = files()
            time.sleep(3)
            assert files() == before
            first.send_signal(signal.SIGCONT)
            _, err = first.communicate(timeout=SECONDS)
            assert first.returncode == 1 and "another job took over" in err.splitlines()[-1], err
            lease.check()
            assert files() == before
    finally:
        first.kill()
        first.wait()


def answers(url: str, headers: dict[str, str]) -> bool:
    try:
        return requests.get(url, headers=headers, timeout=5).ok
    except requests.RequestException:
        return False


@pytest.fixture
def head(tmp_path: Path) -> Iterator[str]:
    """A Ray head of our own on free ports; the address for `ray job submit`."""
    ray = str(Path(sys.executable).with_name("ray"))
    port = free_port()
    # Ray's sockets live below its temporary folder and must have short names.
    temporary = Path("/tmp") / f"axml-{os.getpid()}"
    command = [ray, "start", "--head", "--block", "--node-ip-address", "127.0.0.1", "--port", str(free_port()),
               "--dashboard-host", "127.0.0.1", "--dashboard-port", str(port), "--dashboard-agent-listen-port",
               str(free_port()), "--ray-client-server-port", str(free_port()), "--num-cpus", "2",
               "--temp-dir", str(temporary), "--object-store-memory", "268435456"]  # fmt: skip
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with (tmp_path / "head.log").open("w") as log:
        variables = {"AXML_RAY_HOME": str(tmp_path), "PATH": path, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
        process = subprocess.Popen(command, env=job_environment(**variables), stdout=log,
                                   stderr=log, start_new_session=True)  # fmt: skip
    try:
        address = f"http://127.0.0.1:{port}"
        token = {"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}
        wait_for("the head", lambda: answers(f"{address}/api/jobs/", token), process)
        yield address
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(temporary, ignore_errors=True)


@pytest.mark.fault("terminal of a submitted job killed", "training")
def test_a_submitted_job_outlives_its_terminal_and_gives_the_same_result(head: str, tmp_path: Path) -> None:
    ray = str(Path(sys.executable).with_name("ray"))
    settings = experiment(tmp_path, 2)
    settings |= {"runs": "runs", "corpora": "corpora"}  # relative: they must not end up in the job's snapshot
    working = tmp_path / "upload"
    shutil.copytree(ROOT / "axml_ray", working / "axml_ray")
    shutil.copytree(ROOT / "jobs", working / "jobs")
    (working / "config.yaml").write_text(yaml.safe_dump(settings))
    submit = [ray, "job", "submit", "--address", head, "--working-dir", str(working), "--submission-id", "small", "--",
              "python", "jobs/train_ensemble.py", "--config", "config.yaml"]  # fmt: skip
    terminal = subprocess.Popen(submit, env=job_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                start_new_session=True)  # fmt: skip
    corpus = tmp_path / "corpora" / "synthetic" / "corpus.json"
    wait_for("the corpus", corpus.exists, terminal)
    os.killpg(terminal.pid, signal.SIGKILL)
    metrics = tmp_path / "runs" / "small" / "metrics.json"
    wait_for("the result", metrics.exists)
    assert weights(metrics.parent) == undisturbed(tmp_path / "undisturbed", 2)
    assert json.loads(metrics.read_text())["documents"] == 60
