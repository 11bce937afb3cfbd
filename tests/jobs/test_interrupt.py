"""Ctrl-C and SIGTERM end a job with one line, which repeats the command, and exit code 130 or 143, without a traceback.

A terminal, or a scheduler, sends the signal to the whole group of processes, so Ray's get it too.
"""

import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import synthetic
import yaml
from descendants import descendants, job_environment, still_running
from tiny_run import train_run

from axml_ray.inference.bundle.export import export_bundle

ROOT = Path(__file__).parents[2]

SECONDS = 240

pytestmark = pytest.mark.slow


def interrupted(
    command: list[str], sign: str, signals: tuple[signal.Signals, ...] = (signal.SIGINT,), **more: str
) -> tuple[int, list[str]]:
    """Start a command, send signals when a line that holds `sign` appears; its exit code, and all later lines."""
    environment = job_environment(PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1", **more)
    with subprocess.Popen(
        command,
        env=environment,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    ) as process:
        assert process.stdout is not None
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        output = process.stdout
        threading.Thread(target=lambda: [lines.put(line) for line in output], daemon=True).start()
        before: list[str] = []
        end = time.monotonic() + SECONDS
        while not (before and sign in before[-1]):
            assert process.poll() is None and time.monotonic() < end, "".join(before)
            try:
                before.append(lines.get(timeout=1))
            except queue.Empty:
                continue
        below = descendants(process.pid, b"")
        for number in signals:
            os.killpg(process.pid, number)
            time.sleep(0.5)
        try:
            code = process.wait(60)
        finally:
            process.kill()
        still_running(below)  # what they would still say
        after = []
        while not lines.empty():
            after.append(lines.get())
        return code, after


def check(command: list[str], code: int, after: list[str], expected: int = 130) -> None:
    assert code == expected, after
    assert after[-1].startswith("stopped") and after[-1].rstrip().endswith(shlex.join(command))
    # Before the key was pressed, progress may have been on its way.
    assert all(line[2] == ":" for line in after[:-1]), after
    assert not any("Traceback" in line or "Error" in line for line in after)


def job(name: str, *words: object) -> list[str]:
    return [sys.executable, str(ROOT / "jobs" / f"{name}.py"), *map(str, words)]


def long_training(directory: Path) -> Path:
    """The config of a run that nobody waits for."""
    training = {"epochs": [400], "eval_every_steps": 5, "patience_steps": 50_000}
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(synthetic.experiment(directory, training=training, ensemble={"trees": 1})))
    return path


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.fault("Ctrl-C", "training")),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.fault("SIGTERM", "training")),
    ],
)
def test_training_is_stopped(tmp_path: Path, number: signal.Signals, expected: int) -> None:
    path = long_training(tmp_path)
    command = job("train_ensemble", "--config", path)
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as name:  # Ray's sockets must have short names
        code, after = interrupted(command, "level 1/2", (number, number), TMPDIR=name)
        assert list(Path(name).iterdir()) == []
    check(command, code, after, expected)


def test_preparation_is_stopped(tmp_path: Path) -> None:
    settings = synthetic.experiment(tmp_path)
    random, records = np.random.default_rng(0), []
    for _ in range(2_000):  # the factorisation of 20,000 words takes some seconds
        records.append({"text": " ".join(map(str, random.integers(0, 20_000, 300))), "labels": ["one"]})
    (tmp_path / "texts" / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    settings["corpus"] |= {"word_vectors": "train", "word_dimension": 1_000}  # type: ignore[operator]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    command = job("prepare_corpus", "--config", path)
    code, after = interrupted(command, "learning word vectors")
    check(command, code, after)
    assert not list((tmp_path / "corpora").glob("*"))


def test_prediction_is_stopped(tmp_path: Path) -> None:
    bundle, texts = tmp_path / "bundle", tmp_path / "texts.jsonl"
    export_bundle(train_run(tmp_path / "home", trees=1, epochs=1), bundle)
    texts.write_text("".join(json.dumps({"text": f"key{number % 14} " * 20}) + "\n" for number in range(100_000)))
    command = job("predict", "--bundle", bundle, "--input", texts, "--output", tmp_path / "out")
    code, after = interrupted(command, "predict: starting")
    check(command, code, after)


def test_a_sweep_is_stopped(tmp_path: Path) -> None:
    path = long_training(tmp_path)
    (tmp_path / "mine.py").write_text('def space(draw):\n    draw.suggest_int("network.hidden", 4, 12)\n')
    command = job("tune", "--config", path, "--space", tmp_path / "mine.py", "--trials", 2, "--sweep", "small-sweep",
                  "--at-once", 1)  # fmt: skip
    code, after = interrupted(command, "trial 0")
    check(command, code, after)
