"""The table of faults: made of the report of real tests, and the same in the file of results and on the page."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import faults
import pytest

ROOT = Path(__file__).parents[2]
CASES = """
import pytest


@pytest.mark.fault("disk full", "training", work_repeated="all")
@pytest.mark.fault("clock wrong", "files", data_lost="an hour")
@pytest.mark.parametrize("cause", ["one", "two"])
def test_survived(cause, record_property):
    record_property("work_repeated", "3 of 9 steps")
    record_property("repeated_seconds", 2.5)


@pytest.mark.fault("clock wrong", "files")
def test_is_not_survived():
    assert False


@pytest.mark.fault("no root", "preparation")
def test_is_skipped():
    pytest.skip("as anyone")


def test_of_something_else():
    assert False
"""


@pytest.mark.processes
def test_rows_are_what_the_tests_say(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", "-n0",
               f"--confcutdir={tmp_path}", "-p", "conftest", "-p", "no:cacheprovider",
               f"--junitxml={tmp_path}/report.xml", str(tmp_path)]  # fmt: skip
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120)
    rows = faults.rows_of(ElementTree.parse(tmp_path / "report.xml").iter("testcase"))
    assert [(row["during"], row["fault"], row["survived"], row["work_repeated"], row["data_lost"]) for row in rows] == [
        ("preparation", "no root", "not tried", "none", "none"),
        ("training", "disk full", "yes", "3 of 9 steps", "none"),
        ("files", "clock wrong", "no", "3 of 9 steps", "an hour"),
    ]
    assert [len(row["tests"]) for row in rows] == [1, 1, 2]
    figures = faults.figures_of(rows)
    assert figures.pop("seconds") >= 0
    assert figures == {
        "faults": 3, "survived": 1, "not_tried": 1, "data_lost": 1, "work_repeated_max_seconds": 2.5,
    }  # fmt: skip


def test_the_page_is_made_of_the_results() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "faults.json").read_text(encoding="utf-8"))
    assert faults.PAGE.read_text(encoding="utf-8") == faults.page_of(results)
    assert len(results["rows"]) == results["figures"]["faults"] > 10
