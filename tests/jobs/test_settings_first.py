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
job, *commands = sys.argv[1:]
for words in map(json.loads, commands):
    sys.argv = [job, *words]
    try:
        runpy.run_path(job, run_name="__main__")
    except SystemExit as ended:
        print(json.dumps([ended.code, [name for name in {HEAVY} if name in sys.modules]]))
"""
"""Runs a job with some words after the other, in one process."""
WRONG = ["--config", str(ROOT / "configs" / "quickstart.yaml"), "--training.epoch", "3", "--rum", "x"]
LISTED = {
    "inspect_tree.py": ["--tree N", "--label NAME", "--tree.kind", "--seed"],
    "evaluate.py": ["--run DIRECTORY", "--resources.", "--evaluation."],
    "train_ensemble.py": ["--training.epochs N,N,...", "--corpus.train PATH,PATH,..."],
}
HIDDEN = {"inspect_tree.py": ["--training.", "--resources."], "evaluate.py": ["--training.", "--tree."]}


@pytest.mark.processes
@pytest.mark.parametrize("job", JOBS)
def test_a_mistyped_setting_and_help_need_no_heavy_import(job: str) -> None:
    commands = [json.dumps(words) for words in (WRONG, ["--help"])]
    command = [sys.executable, "-c", TRY, str(ROOT / "jobs" / job), *commands]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    wrong, *shown, helped = done.stdout.splitlines()
    assert json.loads(wrong) == [2, []], done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert json.loads(helped) == [0, []], done.stderr
    text = "\n".join(shown)
    assert "--help" in text and "tuple" not in text
    assert all(flag in text for flag in LISTED.get(job, []))
    assert not any(flag in text for flag in HIDDEN.get(job, []))
