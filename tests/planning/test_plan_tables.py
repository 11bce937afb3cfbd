"""The tables of docs/hundred-million.md and gpus.md are those of the plan, and the commands print them."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import plan_tables
import pytest

ROOT = Path(__file__).parents[2]


def test_the_tables_are_those_of_the_plan() -> None:
    pages = [path.read_text(encoding="utf-8") for path in plan_tables.PAGES]
    assert list(map(plan_tables.with_tables, pages)) == pages
    assert all(sum(f"<!-- {name}: " in page for page in pages) == 1 for name in plan_tables.TABLES)
    for labels in plan_tables.LABELS:
        assert f"### {labels:,} labels" in pages[0] and plan_tables.command(labels, 64) in pages[0]


@pytest.mark.processes
def test_a_command_of_the_page_prints_its_figures(tmp_path: Path) -> None:
    labels, workers = plan_tables.LABELS[-1], plan_tables.WORKERS[-1]
    program, *arguments = shlex.split(plan_tables.command(labels, workers))
    path = tmp_path / "plan.json"
    command = [str(Path(sys.executable).with_name(program)), *arguments, "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    written = json.loads(path.read_text())
    expected = plan_tables.plan_of(plan_tables.settings_of(labels, workers), workers).as_json()
    assert written["phases"] == json.loads(json.dumps(expected["phases"]))
    assert written["counts"]["labels"] == 100_000_000
