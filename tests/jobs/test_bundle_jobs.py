"""Run: pytest tests/jobs/test_bundle_jobs.py

export_bundle.py and predict.py as processes; predict.py killed in the middle and started again.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / room) for room in ("training", "inference")]

from tiny_run import train_run  # noqa: E402

from axml_ray import Tagger  # noqa: E402

TEXTS, ROWS, SECONDS = 48_000, 1_024, 300


def job(name: str, *words: object) -> list[str]:
    return [sys.executable, str(ROOT / "jobs" / f"{name}.py"), *map(str, words)]


def environment(**more: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_") or name.startswith("RAY_AUTH_")
    }
    return {**kept, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT), **more}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=SECONDS)


def error_of(*words: str) -> str:
    done = run(*words)
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(said) == 1 and "Traceback" not in done.stderr, done.stderr
    return said[0]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A run made a bundle by the job."""
    home = tmp_path_factory.mktemp("home")
    trained = train_run(home, trees=1, epochs=2)
    done = run(*job("export_bundle", "--run", trained.settings.run_directory, "--to", home / "bundle",
                    "--weights", "bfloat16"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = done.stdout.split()
    assert {"float32", "bfloat16", "lost"} <= set(shown) and str(home / "bundle") in done.stdout
    return home / "bundle"


@pytest.mark.slow
def test_a_killed_job_goes_on(bundle, tmp_path):
    # Long enough that the job is still at work when it is killed, and its cluster is gone.
    texts = [" ".join([f"key{number % 14} noise{number % 10} key{number % 5}"] * 20) for number in range(TEXTS)]
    file, output = tmp_path / "texts.jsonl", tmp_path / "out"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) + "broken\n")
    words = job("predict", "--bundle", bundle, "--input", file, "--output", output, "--top-k", 3)
    killed = subprocess.Popen(words, env=environment(), start_new_session=True, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)  # fmt: skip
    end = time.monotonic() + SECONDS
    while not len(parts := sorted(output.glob("part-*.parquet"))) >= 2:
        assert time.monotonic() < end and killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    time.sleep(3)  # the cluster goes with its driver
    parts = sorted(output.glob("part-*.parquet"))
    assert 2 <= len(parts) < TEXTS // ROWS and not (output / "predictions.json").exists()
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in parts}
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert f"{TEXTS + 1:,} texts, 1 of them with an error" in done.stdout
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in parts} == before
    result = json.loads((output / "predictions.json").read_text())
    assert (result["documents"], result["errors"], len(result["files"])) == (TEXTS + 1, 1, TEXTS // ROWS + 1)
    table = pq.ParquetDataset([output / name for name in result["files"]]).read()
    assert table["id"].to_pylist() == [f"texts.jsonl:{line}" for line in range(1, TEXTS + 2)]
    assert "not JSON" in table["error"][TEXTS].as_py()
    for row in (0, ROWS, TEXTS - 1):
        [tags] = Tagger.load(bundle).tag([texts[row]], top_k=3)
        assert table["labels"][row].as_py()[0] == tags[0].label
        assert table["scores"][row].as_py() == pytest.approx([tag.score for tag in tags], rel=1e-3)


@pytest.mark.processes
def test_one_line_says_what_is_wrong(bundle, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "key1"}\n')
    predict = {"--bundle": bundle, "--input": tmp_path / "texts.jsonl", "--output": tmp_path / "out"}

    def wrong(**changed: object) -> str:
        given = {**predict, **{f"--{name}": value for name, value in changed.items()}}
        return error_of(*job("predict", *(word for pair in given.items() for word in pair)))

    assert "no bundle (manifest.json is missing)" in wrong(bundle=tmp_path)
    assert "--input: no file matches" in wrong(input=tmp_path / "nothing*.jsonl")
    assert "--precision: expected a number from 0 to 1" in wrong(precision=1.1)
    assert "--threshold: expected a number from 0 to 1" in wrong(threshold=1.1)
    assert "expected a whole number above 0" in wrong(**{"top-k": 0})
    assert not (tmp_path / "out").exists()
    assert "not a run (settings.yaml is missing)" in error_of(
        *job("export_bundle", "--run", tmp_path, "--to", tmp_path / "bundle")
    )
