"""Whole runs of the demo's main job: seconds of each phase, seconds to the first scores, and the scores.

    python benchmarks/demo.py [--rounds 3] [--against REVISION] [--isa avx2] [--json PATH]

Each run is `jobs/train_ensemble.py --config configs/quickstart.yaml` in an empty directory, as `make demo` starts it
after the installation. With `--against`, a clone of that revision takes turns with this working tree, in the same
environment, so both have the same packages and therefore the same texts. Ten minutes a run on two cores. With `--isa
avx2`, PyTorch and oneDNN use no AVX-512 instructions, so a newer processor behaves as most laptops do.

Figures: `seconds`, the median of the whole runs; `first_scores_seconds`, to the first table; `P@5` and `nDCG@5` of the
ensemble and `P@5_without_networks`, as medians, in percent; with `--against` also `other_seconds`, `other_P@5`,
`other_nDCG@5`, and `ratio`, the median over the rounds of our seconds over the other's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import results_file
from rich.console import Console

from axml_ray.core.errors import SettingsError

FIRST_TABLE = "· first scores ·"
OURS, OTHER = "ours", "other"
INSTRUCTIONS = {"avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}}
"""Environment variables that keep PyTorch and oneDNN from using newer instructions, by the name of `--isa`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demo in turns, print each row, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side (default: 3)")
    parser.add_argument("--against", metavar="REVISION", help="a commit that takes turns with this working tree")
    parser.add_argument("--isa", choices=list(INSTRUCTIONS), help="instructions of an older processor")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/demo.json, or demo-ISA.json")
    parser.add_argument("settings", nargs="*", help="settings of the job after --, such as --ensemble.trees 1")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds: at least 1")

    def measure(repository: Path, home: Path) -> dict[str, Any]:
        return run_demo(repository, home, options.settings, options.isa)

    rows = measure_in_turns(measure, options.rounds, options.against)
    name = f"demo-{options.isa}.json" if options.isa else "demo.json"
    results_file.write(options.json or results_file.RESULTS / name, figures(rows), rows)


def measure_in_turns(
    measure: Callable[[Path, Path], dict[str, Any]], rounds: int, against: str | None
) -> list[dict[str, Any]]:
    """Measure this working tree and, if it is given, a clone of another revision, in turns; print each row.

    Args:
        measure: measures a repository, given its directory and one that does not exist yet, for its files.
        rounds: measurements of each side.
        against: the other revision.

    Raises:
        SettingsError: there is no such revision.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="axml-ray-turns-") as temporary:
        sides = {OURS: results_file.ROOT}
        if against:
            sides[OTHER] = clone(against, Path(temporary) / "clone")
        for round_number in range(rounds):
            for side, repository in sides.items():
                home = Path(temporary) / f"{side}-{round_number}"
                rows.append({"side": side, "round": round_number, **measure(repository, home)})
                Console().print_json(json.dumps(rows[-1]), indent=None)
    return rows


def clone(revision: str, directory: Path) -> Path:
    """Clone the repository into a directory at a revision.

    Raises:
        SettingsError: there is no such revision.
    """
    for words in (
        ["git", "clone", "--quiet", "--no-checkout", str(results_file.ROOT), str(directory)],
        ["git", "-C", str(directory), "checkout", "--quiet", "--detach", revision],
    ):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SettingsError(f"--against {revision}: {done.stderr.strip()}")
    return directory


def run_demo(repository: Path, home: Path, settings: Sequence[str], isa: str | None = None) -> dict[str, Any]:
    """Run a repository's main job in an empty directory.

    Returns:
        `seconds` of the process, `first_scores_seconds` (None if it prints no such table), `phases` by name, and the
        scores `P@5`, `nDCG@5` and `P@5_without_networks` (None if it is not reported).

    Raises:
        SettingsError: the job failed.
    """
    home.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(repository), "AXML_RAY_HOME": str(home), "COLUMNS": "110"}
    environment |= INSTRUCTIONS[isa] if isa else {}
    config = repository / "configs" / "quickstart.yaml"
    words = [sys.executable, str(repository / "jobs" / "train_ensemble.py"), "--config", str(config), *settings]
    began, first, lines = time.monotonic(), None, []
    with subprocess.Popen(
        words, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as job:
        assert job.stdout is not None
        for line in job.stdout:
            lines.append(line)
            if first is None and FIRST_TABLE in line:
                first = time.monotonic() - began
    seconds = time.monotonic() - began
    if job.returncode:
        raise SettingsError(f"{' '.join(words)}: ended with {job.returncode}: {''.join(lines[-20:])}")
    metrics = json.loads((home / "runs" / "quickstart" / "metrics.json").read_text(encoding="utf-8"))
    return {
        "seconds": seconds,
        "first_scores_seconds": first,
        "phases": metrics["seconds"],
        "documents": metrics["documents"],
        "P@5": metrics["ensemble"]["P@5"],
        "nDCG@5": metrics["ensemble"]["nDCG@5"],
        "P@5_without_networks": (metrics.get("without_networks") or {}).get("P@5"),
    }


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the medians of the rows, and the ratio of the two sides round by round."""
    medians: dict[str, float] = {}
    for side, prefix in ((OURS, ""), (OTHER, "other_")):
        of_side = [row for row in rows if row["side"] == side]
        for name in ("seconds", "first_scores_seconds", "P@5", "nDCG@5", "P@5_without_networks"):
            values = [row[name] for row in of_side if row[name] is not None]
            if values:
                medians[prefix + name] = statistics.median(values)
    seconds = {(row["side"], row["round"]): row["seconds"] for row in rows}
    ratios = [seconds[OURS, number] / spent for (side, number), spent in seconds.items() if side == OTHER]
    return medians | ({"ratio": statistics.median(ratios)} if ratios else {})


if __name__ == "__main__":
    results_file.run(main)
