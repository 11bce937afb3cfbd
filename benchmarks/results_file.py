"""The JSON file of results that every benchmark writes.

`{"command", "commit", "machine", "date", "figures": {name: number}, "rows": [...]}`: `figures` are the few
numbers that claims are based on, under fixed names; `rows` are the measurements that they were computed from.

- A file is written atomically and has finite numbers only: a NaN would pass every "is it slower?" test.
- The machine is described by what a speed depends on, never by its name or address.
"""

import json
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks run from a bare checkout, too

from axml_ray.core.errors import SettingsError  # noqa: E402
from axml_ray.core.files import whole_file  # noqa: E402
from axml_ray.core.limits import available_cpus, available_memory  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"

Result = tuple[dict[str, float], list[dict[str, Any]]]
"""Figures and rows."""


def run(main: Callable[[], None]) -> None:
    """Run a script; a SettingsError becomes one line on standard error and exit status 2."""
    try:
        main()
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def measure_parts(
    names: Sequence[str],
    measure: Callable[[str], Result],
    table: Callable[[list[dict[str, Any]]], Table],
    path: Path,
    *,
    threads: int,
) -> dict[str, float]:
    """Measure the parts of a benchmark one after the other, print their rows, the table and the figures, and write all.

    Args:
        names: names of the parts.
        measure: measures one part; if it raises SettingsError, a row records that the part was skipped.
        table: returns the table to print for the rows.
        path: file to write or replace.
        threads: number of PyTorch threads, which the rows record.

    Returns:
        The figures of all parts.

    Raises:
        SettingsError: no part could be measured; nothing is written.
    """
    console = Console()
    figures: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    for name in names:
        with console.status(f"measuring {name}"):
            try:
                of_name, of_part = measure(name)
            except SettingsError as error:
                of_name, of_part = {}, [{"skipped": str(error)}]
        for row in of_part:
            rows.append({"part": name, **row, "threads": threads})
            console.print_json(json.dumps(rows[-1]), indent=None)
        figures |= of_name
    if not figures:
        raise SettingsError(f"nothing was measured, {path} stays as it is: {rows[0]['skipped']}")
    console.print(table(rows))
    for figure, value in figures.items():
        console.print(f"{figure}: {value:.3f}", highlight=False)
    write(path, figures, rows)
    console.print(Text(f"written to {path}"))
    return figures


def write(path: Path, figures: Mapping[str, float], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the results of the running script to `path`, whose directories are made.

    Args:
        path: file to write or replace.
        figures: numbers by name.
        rows: measurements that the figures were computed from; any JSON values.

    Raises:
        ValueError: a figure is not a number, or any number is not finite.
    """
    for name, value in figures.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"figure {name!r} is {value!r}, not a finite number")
    content = {
        "command": command(),
        "commit": commit(),
        "machine": machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "figures": dict(figures),
        "rows": list(rows),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def command() -> str:
    """Return the command line that started this process, to be run again in the repository root.

    Paths in the repository or its parent directory are relative to its root; of others, only the name is kept, since
    they mean nothing on another machine.
    """
    return shlex.join(["python", _from_root(str(Path(sys.argv[0]).resolve())), *map(_from_root, sys.argv[1:])])


def _from_root(word: str) -> str:
    option, separator, value = word.rpartition("=")
    path = Path(value)
    if not path.is_absolute():
        return word
    is_near = path.is_relative_to(ROOT.parent) and ROOT.parent != Path(ROOT.anchor)
    return option + separator + (os.path.relpath(path, ROOT) if is_near else path.name)


def commit() -> str | None:
    """Return the commit, with `-changed` if tracked files differ from it; None outside of a repository.

    Files under `benchmarks/results` don't count, else the second of two benchmarks would always be `-changed`.
    """
    head = _output("git", "rev-parse", "--verify", "HEAD")
    if not head:
        return None
    changes = _output("git", "status", "--porcelain", "-uno", "--", ".", f":!{RESULTS.relative_to(ROOT)}")
    return f"{head}-changed" if changes else head


def machine() -> dict[str, Any]:
    """Describe what a speed depends on: processor, usable cores and memory (GiB), accelerators, the number format of
    precision "auto", system and Python."""
    import torch  # slow to import, and not every benchmark needs it before it writes

    from axml_ray.network.backends.precision import format_name, product_format

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    accelerators = _output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader") or ""
    return {
        "processor": _processor(),
        "cores": available_cpus(),
        "memory_gib": round(available_memory() / 2**30, 1),
        "accelerators": accelerators.splitlines(),
        "auto_precision": format_name(product_format(device, "auto")),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", path.read_text(), re.M) if path.is_file() else None
    return model[1] if model else platform.processor() or platform.machine()


def _output(*words: str) -> str | None:
    """Return the output of a program; None if it is missing or fails."""
    if shutil.which(words[0]) is None:
        return None
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
