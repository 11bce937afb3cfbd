"""Five real failures of a training: one line on the terminal, and a record that outlives the cluster.

One process runs all commands on one cluster, so the records are read when that cluster is gone.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import synthetic
import yaml
from descendants import job_environment

ROOT = Path(__file__).parents[2]
LOG_LINE = re.compile(r"\d\d:\d\d:\d\d  ")
CASES = {
    "killed": r"WORKER_DIED|SIGKILL",
    "memory": r"MemoryError|allocate memory|bad_alloc|WORKER_DIED",
    "import": r"ImportError: libmissing\.so",
    "disk": r"Errno 28\b",
    "missing": r"FileNotFoundError|SettingsError",
}
"""What the record of each failure tells."""
COMMANDS = """
import contextlib, io, json, os, resource, shutil, signal, sys, threading, time
from pathlib import Path

from descendants import descendants

from axml_ray.cli.dispatch import main

home, disk, broken = map(Path, sys.argv[1:])
free = []


def worker():
    while not (found := descendants(os.getpid(), b"train_member")):
        time.sleep(0.05)
    return found[0]


def inject(case):
    if case == "killed":
        os.kill(worker(), signal.SIGKILL)
    if case == "memory":
        resource.prlimit(worker(), resource.RLIMIT_AS, (1 << 20, 1 << 20))
    if case == "missing":
        while not (home / case / "runs" / "small" / "tree-0" / "tree.json").exists():
            time.sleep(0.01)
        shutil.rmtree(home / case / "corpora" / "synthetic" / "train")


def call(case, *more):
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(["train", "--config", str(home / case / "config.yaml"), *more])
        except SystemExit as ended:
            code = ended.code
    return [code, err.getvalue()]


results = {}
for case in ("killed", "memory", "missing"):
    threading.Thread(target=inject, args=(case,), daemon=True).start()
    results[case] = call(case, *(["--verbose"] if case == "missing" else []))
(broken / "safetensors.py").write_text("raise ImportError('libmissing.so: cannot open shared object file')")
results["import"] = call("import")
(broken / "safetensors.py").unlink()
with (disk / "filler").open("wb") as filler:
    filler.write(bytes(shutil.disk_usage(disk).free - (40 << 10)))
free.append(shutil.disk_usage(disk).free)
results["disk"] = call("disk")
free.append(shutil.disk_usage(disk).free + sum(file.stat().st_blocks * 512 for file in disk.rglob("small/**/*")))
left = [str(path) for path in disk.rglob(".*")]
(disk / "filler").unlink()
results["again"] = call("disk")
print(json.dumps({"results": results, "free": free, "left": left}))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failures")


@pytest.fixture
def outcome(home: Path, small_disk: Path) -> dict[str, Any]:
    """Run all commands in one process, which has ended then."""
    broken = home / "broken"
    broken.mkdir()
    for case in CASES:
        (home / case).mkdir()
        settings = synthetic.experiment(
            home / case,
            training={"epochs": [1 if case == "disk" else 400], "patience_steps": 10**9},
            ensemble={"trees": 1},
            resources={"max_failures": 0},
        )
        if case == "disk":
            settings["runs"] = str(small_disk)
        (home / case / "config.yaml").write_text(yaml.safe_dump(settings))
    script = home / "commands.py"  # not in the command line, which would name the workers
    script.write_text(COMMANDS)
    paths = os.pathsep.join(map(str, (broken, ROOT, ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, str(script), *map(str, (home, small_disk, broken))],
        env=job_environment(PYTHONPATH=paths), cwd=home, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()  # Ray said nothing of dead workers
    return dict(json.loads(line))


@pytest.mark.fault("full disk", "training", work_repeated="the part that was written")
@pytest.mark.fault("vanished corpus", "training")
@pytest.mark.fault("library that cannot be imported", "training")
@pytest.mark.fault("worker out of memory", "training")
@pytest.mark.fault("worker killed, without retries", "training")
def test_each_failure_is_one_line_and_has_a_record(outcome: dict[str, Any], home: Path, small_disk: Path) -> None:
    results = outcome["results"]
    for case, told in CASES.items():
        code, err = results[case]
        lines = [line for line in err.splitlines() if not LOG_LINE.match(line)]
        assert code == 1 and lines[-1].startswith("error: "), err
        record = Path(lines[-1].rpartition("(details: ")[2].removesuffix(")"))
        if case != "disk":  # on which it may not fit
            assert [record] == list((home / case / "runs" / "small" / "errors").iterdir()), err
        assert (len(lines) == 1) is (case != "missing"), err
        text = record.read_text()
        assert re.search(told, text), (case, text)
        assert "Traceback" in text, (case, text)
        assert "The end of its worker's log (.err)" in text or case == "disk", (case, text)
    # --verbose shows the record on the terminal.
    assert "Traceback" in results["missing"][1]
    # On the full disk the space of all but finished files came back, and the same command goes on.
    assert outcome["left"] == []
    before, after = outcome["free"]
    assert after >= before, (before, after)
    assert results["again"][0] == 0, results["again"]
    assert (small_disk / "small" / "metrics.json").exists()
