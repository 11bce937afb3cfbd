"""The commands `export` and `predict`; a prediction that is killed in the middle and goes on.

Run: pytest tests/jobs/test_bundle_jobs.py
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from descendants import job_environment, kill_driver
from tiny_run import train_run

from axml_ray import Tagger
from axml_ray.inference.bundle.export import export_bundle

ROOT = Path(__file__).parents[2]

TEXTS, ROWS, SECONDS = 48_000, 1_024, 300


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    export_bundle(train_run(home, trees=1, epochs=2), home / "bundle")
    return home / "bundle"


def test_a_run_is_made_a_bundle(command, tmp_path):
    run = train_run(tmp_path, trees=1, epochs=1).settings.run_directory
    code, out, err = command("export", "--run", run, "--to", tmp_path / "bundle", "--weights", "bfloat16")
    assert code == 0, err
    assert {"float32", "bfloat16", "lost"} <= set(out.split()) and str(tmp_path / "bundle") in out
    assert Tagger.load(tmp_path / "bundle").labels


@pytest.mark.fault("driver killed while it predicts files", "prediction", work_repeated="the shards in flight")
@pytest.mark.slow
def test_a_killed_job_goes_on(ray_cluster, bundle, command, tmp_path):
    # Long enough that the job is still at work when it is killed, and its cluster is gone.
    texts = [" ".join([f"key{number % 14} noise{number % 10} key{number % 5}"] * 20) for number in range(TEXTS)]
    file, output = tmp_path / "texts.jsonl", tmp_path / "out"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) + "broken\n")
    words = [*map(str, ("--bundle", bundle, "--input", file, "--output", output, "--top-k", 3))]
    killed = subprocess.Popen([sys.executable, str(ROOT / "jobs" / "predict.py"), *words], env=job_environment(),
                              start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    end = time.monotonic() + SECONDS
    while not len(parts := sorted(output.glob("part-*.parquet"))) >= 2:
        assert time.monotonic() < end and killed.poll() is None
        time.sleep(0.01)
    kill_driver(killed)
    parts = sorted(output.glob("part-*.parquet"))
    assert 2 <= len(parts) < TEXTS // ROWS and not (output / "predictions.json").exists()
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in parts}
    code, out, err = command("predict", *words)  # on the cluster of this process
    assert code == 0, err
    assert f"{TEXTS + 1:,} texts, 1 of them with an error" in out
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


def test_one_line_says_what_is_wrong(bundle, command, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "key1"}\n')
    predict = {"--bundle": bundle, "--input": tmp_path / "texts.jsonl", "--output": tmp_path / "out"}

    def error_of(*words: object) -> str:
        code, _, err = command(*words)
        [said] = [line for line in err.splitlines() if line.startswith("error: ")]
        assert code == 2
        return said

    def wrong(**changed: object) -> str:
        given = {**predict, **{f"--{name}": value for name, value in changed.items()}}
        return error_of("predict", *(word for pair in given.items() for word in pair))

    assert "no bundle (manifest.json is missing)" in wrong(bundle=tmp_path)
    assert "--input: no file matches" in wrong(input=tmp_path / "nothing*.jsonl")
    assert "--precision: expected a number from 0 to 1" in wrong(precision=1.1)
    assert "--threshold: expected a number from 0 to 1" in wrong(threshold=1.1)
    assert "expected a whole number above 0" in wrong(**{"top-k": 0})
    assert not (tmp_path / "out").exists()
    assert "not a run (settings.yaml is missing)" in error_of("export", "--run", tmp_path, "--to", tmp_path / "bundle")


@pytest.mark.fault("full disk", "prediction", work_repeated="the shards in flight")
@pytest.mark.processes
def test_a_full_disk_keeps_the_finished_shards(ray_cluster, bundle, command, tmp_path, small_disk):
    file, output, filler = tmp_path / "texts.jsonl", small_disk / "out", small_disk / "filler"
    texts = (" ".join(f"key{(number >> shift) % 14}" for shift in range(8)) for number in range(5 * ROWS))
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = [*map(str, ("--bundle", bundle, "--input", file, "--output", output, "--top-k", 14))]
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - (200 << 10)))
    code, _, err = command("predict", *words)
    assert code == 1 and "Errno 28" in err
    finished = {path: path.stat().st_ino for path in output.glob("part-*")}
    assert 1 <= len(finished) < 5 and not (output / "predictions.json").exists()
    filler.unlink()
    code, out, err = command("predict", *words)
    assert code == 0 and f"{5 * ROWS:,} texts" in out, err
    assert finished.items() <= {path: path.stat().st_ino for path in output.glob("part-*")}.items()
