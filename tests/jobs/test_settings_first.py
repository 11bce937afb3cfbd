"""A mistyped setting of any command is reported before anything heavy is imported; `--help` lists what applies."""

import json
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from axml_ray.cli.dispatch import COMMANDS

ROOT = Path(__file__).parents[2]
JOBS = sorted(path.name for path in (ROOT / "jobs").glob("*.py"))
HEAVY = ("torch", "ray", "pyarrow", "sklearn", "scipy", "numpy")
TRY = f"""
import contextlib, io, json, sys
from axml_ray.cli.dispatch import main

results = []
for words in json.loads(sys.argv[1]):
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code
        out.seek(0)
    results.append([code, out.read(), err.getvalue(), [name for name in {HEAVY} if name in sys.modules]])
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results() -> dict[tuple[str, ...], tuple[int, str, str, list[str]]]:
    """Run every command with `--help` and with a wrong flag, in one process: what one imports, all have."""
    lines = [(name, *words) for name in COMMANDS for words in (["--help"], ["--rum", "x"])]
    command = [sys.executable, "-c", TRY, json.dumps(lines)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return dict(zip(lines, map(tuple, json.loads(done.stdout)), strict=True))


@pytest.mark.processes
@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistyped_setting_needs_no_heavy_import(results, name: str) -> None:
    code, _, err, heavy = results[name, "--rum", "x"]
    assert (code, heavy) == (2, [])
    assert err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.processes
@pytest.mark.parametrize("name", COMMANDS)
def test_help_needs_no_heavy_import(results, name: str) -> None:
    code, out, _, heavy = results[name, "--help"]
    assert (code, heavy) == (0, [])
    assert out.startswith(f"usage: axml-ray {name} ") and "tuple" not in out


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "listed", "hidden"),
    [
        ("inspect", ["--tree N", "--label NAME", "--tree.kind", "--seed"], ["--training.", "--resources."]),
        ("evaluate", ["--run DIRECTORY", "--resources.", "--evaluation."], ["--training.", "--tree."]),
        ("train", ["--training.epochs N,N,...", "--corpus.train PATH,PATH,..."], []),
        ("demo", ["--training.epochs N,N,..."], []),
        ("compare", ["FIRST SECOND", "--html PATH"], ["--training."]),
    ],
)
def test_help_lists_what_applies(results, name: str, listed: list[str], hidden: list[str]) -> None:
    shown = results[name, "--help"][1]
    assert all(flag in " ".join(shown.split()) for flag in listed)
    assert not any(flag in shown for flag in hidden)


@pytest.mark.parametrize("job", JOBS)
def test_a_script_is_its_command(job: str) -> None:
    main = runpy.run_path(str(ROOT / "jobs" / job))["main"]
    modules = {module for module, _ in COMMANDS.values()}
    assert any(import_module(module).main is main for module in modules)
