"""The tables of docs/hundred-million.md are those of the plan, and its commands print them."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import hundred_million  # noqa: E402


def test_the_tables_are_those_of_the_plan() -> None:
    page = hundred_million.PAGE.read_text(encoding="utf-8")
    assert hundred_million.with_tables(page) == page
    for labels in hundred_million.LABELS:
        assert f"### {labels:,} labels" in page and hundred_million.command(labels, 64) in page


@pytest.mark.processes
def test_a_command_of_the_page_prints_its_figures(tmp_path: Path) -> None:
    labels, workers = hundred_million.LABELS[-1], hundred_million.WORKERS[-1]
    program, *arguments = shlex.split(hundred_million.command(labels, workers))
    path = tmp_path / "plan.json"
    command = [str(Path(sys.executable).with_name(program)), *arguments, "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    written = json.loads(path.read_text())
    expected = hundred_million.plan_of(labels, workers).as_json()
    assert written["phases"] == json.loads(json.dumps(expected["phases"]))
    assert written["counts"]["labels"] == 100_000_000
