"""Faults that are injected into the running system, and what they cost, as a table.

    make faults
    python benchmarks/faults.py [--quick] [--report PATH...] [--json PATH] [--page PATH]

Each fault is injected by a test with the marker `fault`, which asserts what the row says; `make test` runs the same
tests. `--quick` leaves out those that start clusters or train for a while; `--report` reads reports that pytest wrote
before (`--junitxml`) and runs nothing. The page `docs/faults.md` is made of the
file of results, so they cannot differ.

Figures: `faults`, `survived`, `data_lost` (number of faults that lost data), `not_tried` (the machine has not what
their tests need), `work_repeated_max_seconds` (of those whose test measures it), `seconds`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import results_file

PARTS = ("preparation", "training", "tuning", "prediction", "serving", "files")
"""What the system does when the fault comes, in the order of the table."""
START: dict[str, Any] = {"survived": "not tried", "repeated_seconds": 0.0, "seconds": 0.0, "tests": []}
"""A row before the first test of its fault."""
PAGE = results_file.ROOT / "docs" / "faults.md"
TOP = """# Faults

A cluster loses processes, disks fill, and files are cut short. Each row is a real fault that a test injects into the
running system, together with what the test asserts of the outcome. *Survived* means that the same command, or the
server by itself, goes on to the result of an undisturbed run, or that damaged state is refused by an error that names
it. Seconds are those of the tests, with the start of clusters and the undisturbed runs that they compare with.

`make faults` injects all of them again and writes this page; `make test` runs the same tests. The command below the
table says which of them its rows are from.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the tests, write results and page; the exit status is 1 if a fault was not survived."""
    parser = argparse.ArgumentParser(description="Inject faults, and make a table of what they cost.")
    parser.add_argument("--quick", action="store_true", help="without those that start clusters or train for a while")
    parser.add_argument(
        "--report",
        type=Path,
        nargs="+",
        help="JUnit reports of the tests, which are not run then; the last of a test counts",
    )
    parser.add_argument("--json", type=Path, default=results_file.RESULTS / "faults.json")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        reports = options.report or [Path(folder) / "report.xml"]
        if not options.report:
            marker = "fault and not slow" if options.quick else "fault"
            words = ["pytest", "-n0", "-m", marker, f"--junitxml={reports[0]}"]
            subprocess.run([sys.executable, "-m", *words], cwd=results_file.ROOT)
        cases = (case for report in reports for case in ElementTree.parse(report).iter("testcase"))
        rows = rows_of({(case.get("classname"), case.get("name")): case for case in cases}.values())
    results_file.write(options.json, figures_of(rows), rows)
    options.page.write_text(page_of(json.loads(options.json.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"written to {options.json} and {options.page}")
    if any(row["survived"] == "no" for row in rows):
        raise SystemExit(1)


def rows_of(cases: Iterable[ElementTree.Element]) -> list[dict[str, Any]]:
    """Return a row for each fault in test cases of JUnit reports; the tests of one fault are one row.

    A test of several faults counts for each with an equal part of its time.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for case in cases:
        outcome = "no" if case.find("failure") is not None or case.find("error") is not None else "yes"
        if case.find("skipped") is not None:
            outcome = "not tried"
        properties = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
        seconds = float(properties.get("repeated_seconds", 0))
        test = f"{case.get('classname', '').replace('.', '/')}::{case.get('name', '').partition('[')[0]}"
        faults = [each.get("value", "") for each in case.iter("property") if each.get("name") == "fault"]
        for fault in faults:
            row = json.loads(fault)
            row = rows.setdefault((row["during"], row["fault"]), {**row, **START})
            row["survived"] = max(row["survived"], outcome, key=("not tried", "yes", "no").index)
            row["work_repeated"] = properties.get("work_repeated", row["work_repeated"])
            row["repeated_seconds"] = max(row["repeated_seconds"], seconds)
            row["seconds"] = round(row["seconds"] + float(case.get("time", 0)) / len(faults), 1)
            row["tests"] = sorted({*row["tests"], test})
    return sorted(rows.values(), key=lambda row: (PARTS.index(row["during"]), row["fault"]))


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of some rows."""
    return {
        "faults": len(rows),
        "survived": sum(row["survived"] == "yes" for row in rows),
        "not_tried": sum(row["survived"] == "not tried" for row in rows),
        "data_lost": sum(not row["data_lost"].startswith("none") for row in rows),
        "work_repeated_max_seconds": max((row["repeated_seconds"] for row in rows), default=0.0),
        "seconds": round(sum(row["seconds"] for row in rows), 1),
    }


def page_of(results: dict[str, Any]) -> str:
    """Return the page of a file of results."""
    columns = ("during", "fault", "survived", "work_repeated", "data_lost", "seconds")
    lines = [
        TOP,
        "| during | fault | survived | work repeated | data lost | seconds |",
        "|---|---|---|---|---|---|",
        *("| " + " | ".join(str(row[column]) for column in columns) + " |" for row in results["rows"]),
    ]
    machine = results["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']:g} GiB, {machine['system']}"
    lines += ["", f"`{results['command']}` at commit `{(results['commit'] or 'none')[:15]}` on {where}; "
              f"{results['date'][:10]}."]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
