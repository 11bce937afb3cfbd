"""A mistyped setting of any job is reported before anything heavy is imported; `--help` lists what applies."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOBS = sorted(path.name for path in (ROOT / "jobs").glob("*.py"))
HEAVY = ("torch", "ray", "pyarrow", "sklearn", "scipy", "numpy")
TRY = f"""
import json, runpy, sys
job, *words = sys.argv[1:]
sys.argv = [job, *words]
try:
    runpy.run_path(job, run_name="__main__")
except SystemExit as ended:
    print(json.dumps([ended.code, [name for name in {HEAVY} if name in sys.modules]]))
"""


def run(job: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TRY, str(ROOT / "jobs" / job), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.mark.processes
@pytest.mark.parametrize("job", JOBS)
def test_a_mistyped_setting_needs_no_heavy_import(job: str) -> None:
    done = run(job, "--config", str(ROOT / "configs" / "quickstart.yaml"), "--training.epoch", "3", "--rum", "x")
    assert json.loads(done.stdout.splitlines()[-1]) == [2, []], done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.processes
@pytest.mark.parametrize("job", JOBS)
def test_help_needs_no_heavy_import(job: str) -> None:
    done = run(job, "--help")
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []], done.stderr
    assert "tuple" not in done.stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    ("job", "listed", "hidden"),
    [
        ("inspect_tree.py", ["--tree N", "--label NAME", "--tree.kind", "--seed"], ["--training.", "--resources."]),
        ("evaluate.py", ["--run DIRECTORY", "--resources.", "--evaluation."], ["--training.", "--tree."]),
        ("train_ensemble.py", ["--training.epochs N,N,...", "--corpus.train PATH,PATH,..."], []),
    ],
)
def test_help_lists_what_applies(job: str, listed: list[str], hidden: list[str]) -> None:
    shown = run(job, "--help").stdout
    assert all(flag in shown for flag in listed)
    assert not any(flag in shown for flag in hidden)
