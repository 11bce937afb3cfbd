"""The job of `paper_scale.py --quick`, killed in the middle of each phase, next to the same job undisturbed.

    python benchmarks/paper_scale_kills.py [--workers 1] [--home DIRECTORY] [--json PATH]

The process of the job gets SIGKILL when a phase has run for half of the seconds that it took undisturbed, and the same
command is started again; so every phase is killed once, in one run. In `--home`, an undisturbed run that
is finished stays.

Figures: `largest_difference`, that of any score of the ensemble, a member or a band, in percent; `kills`;
`PHASE_repeated_seconds`, what the phase took in all of its starts, less what it took undisturbed (starting again
and the noise of the machine are part of it).
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import results_file

from axml_ray.core.files import read_json

BENCHMARK = Path(__file__).with_name("paper_scale.py")
BRIEF_SECONDS = 2.0
"""A phase that takes less is not killed: its middle cannot be met."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job undisturbed, then killed in each phase; compare, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, help="workers of the networks")
    parser.add_argument("--home", type=Path, help="directory of both runs; default: a temporary one")
    parser.add_argument("--json", type=Path, default=results_file.RESULTS / "paper-scale-kills.json")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="axml-ray-paper-scale-kills-") as temporary:
        home = (options.home or Path(temporary)).resolve()
        if not (home / "undisturbed" / "result.json").is_file():
            finish(job(home / "undisturbed", options.workers))
        expected = costs_of(home / "undisturbed")
        killed = [
            name
            for name, cost in expected.items()
            if cost["seconds"] > BRIEF_SECONDS
            and kill_in(job(home / "killed", options.workers), home / "killed", name, cost["seconds"] / 2)
        ]
        finish(job(home / "killed", options.workers))
        actual = costs_of(home / "killed")
        scores = [scores_of(home / name) for name in ("undisturbed", "killed")]
    rows: list[dict[str, Any]] = [
        {"phase": name, "killed": name in killed, "seconds": cost["seconds"], "seconds_killed": actual[name]["seconds"]}
        for name, cost in expected.items()
    ]
    figures = {
        "kills": float(len(killed)),
        "largest_difference": max(abs(value - scores[1][name]) for name, value in scores[0].items()),
        **{
            f"{row['phase'].replace(' ', '_')}_repeated_seconds": row["seconds_killed"] - row["seconds"]
            for row in rows
            if row["killed"]
        },
    }
    print(json.dumps(figures, indent=2))
    results_file.write(options.json, figures, rows)


def job(home: Path, workers: int) -> "subprocess.Popen[bytes]":
    """Start the job, which continues what is in its home."""
    home.mkdir(parents=True, exist_ok=True)
    words = ["--quick", "--workers", str(workers), "--home", str(home), "--json", str(home / "result.json")]
    with (home / "log.txt").open("ab") as log:
        return subprocess.Popen([sys.executable, str(BENCHMARK), *words], stdout=log, stderr=log)


def finish(process: "subprocess.Popen[bytes]") -> None:
    """Wait for a job; raises RuntimeError if it fails."""
    if process.wait():
        raise RuntimeError(f"the job ended with {process.returncode}; see log.txt in its home")


def kill_in(process: "subprocess.Popen[bytes]", home: Path, phase: str, seconds: float) -> bool:
    """Kill a job when a phase has run for so long, and return True; return False if the job ends before."""
    while process.poll() is None:
        if costs_of(home).get(phase, {"seconds": 0.0})["seconds"] >= seconds:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.1)
    finish(process)
    return False


def costs_of(home: Path) -> dict[str, dict[str, float]]:
    """Return the costs of each phase that has begun."""
    return read_json(home / "costs.json") if (home / "costs.json").is_file() else {}


def scores_of(home: Path) -> dict[str, float]:
    """Return every score of a finished job by a name of its own."""
    row: dict[str, Any] = read_json(home / "result.json")["rows"][-1]
    groups = {"ensemble": row["scores"], **row["members"], **{band["name"]: band for band in row["bands"]}}
    return {
        f"{name} {key}": value
        for name, group in groups.items()
        for key, value in group.items()
        if isinstance(value, int | float)
    }


if __name__ == "__main__":
    results_file.run(main)
