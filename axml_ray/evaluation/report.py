"""A run's ``metrics.json``: written whole or not at all, and shown as the table the paper prints.

- The table has one row a member and, set apart, one for the ensemble; its columns are the paper's measures.
- What a file lacks shows as a dash, so that a run with some members still to come can be shown.
- Floats are stored with four decimals, two more than a table shows: enough to compare runs, short to read.
"""

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from axml_ray.evaluation.predictions import title_of

COLUMNS = tuple(f"{measure}@{k}" for measure in ("P", "nDCG", "PSP") for k in (1, 3, 5))
BAND_COLUMNS = ("P@1", "P@5", "nDCG@5", "R@10")
DECIMALS = 4


def write_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Write ``metrics.json``, floats rounded to four decimals; a reader sees the old file or the new one.

    Args:
        path: where to; its directory exists.
        metrics: what to write, as for ``table``, and whatever else should be kept.

    Raises:
        ValueError: a score is not a finite number.
    """
    text = json.dumps(_rounded(metrics), indent=2, allow_nan=False) + "\n"
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def table(metrics: Mapping[str, Any]) -> Table:
    """The scores of every member and of the ensemble, and below them the seconds of each phase.

    Args:
        metrics: what ``metrics.json`` holds: ``corpus``, ``split``, ``documents``, ``ensemble`` (scores in
            percent by name), ``members`` (such by the member's name), ``seconds`` (by phase).

    Returns:
        A table for a rich console.
    """
    shown = Table(
        box=box.SIMPLE_HEAD,
        title=_title(metrics),
        caption=_seconds(metrics.get("seconds", {})),
        show_edge=False,
    )
    shown.add_column()
    for name in COLUMNS:
        shown.add_column(name, justify="right")
    for name, scores in metrics.get("members", {}).items():
        shown.add_row(title_of(name), *_cells(scores))
    shown.add_section()
    shown.add_row("ensemble", *_cells(metrics.get("ensemble", {})), style="bold")
    return shown


def bands_table(metrics: Mapping[str, Any]) -> Table:
    """The ensemble's scores of each band of labels, with their intervals.

    Args:
        metrics: what ``metrics.json`` holds, ``bands`` among it.

    Returns:
        A table for a rich console.
    """
    shown = Table(box=box.SIMPLE_HEAD, title="by training documents of the label; 95 % intervals", show_edge=False)
    for name in ("", "labels", "documents", *BAND_COLUMNS):
        shown.add_column(name, justify="right" if name else "left")
    for band in metrics["bands"]:
        scores, around = band.get("ensemble", {}), band.get("intervals", {}).get("ensemble", {})
        cells = [
            f"{scores[name]:.2f} ({around[name][0]:.1f}–{around[name][1]:.1f})" if name in scores else "–"
            for name in BAND_COLUMNS
        ]
        most = "" if band["to"] == band["from"] else "+" if band["to"] is None else f"–{band['to']:,}"
        name = f"{band['name']} ({band['from']:,}{most})"
        shown.add_row(name, f"{band['labels']:,}", f"{band['documents']:,}", *cells)
    return shown


def comparison_table(metrics: Mapping[str, Any]) -> Table:
    """By how much the run is above another.

    Args:
        metrics: what ``metrics.json`` holds, ``against`` among it.

    Returns:
        A table for a rich console.
    """
    found = metrics["against"]
    shown = Table(
        box=box.SIMPLE_HEAD, title=Text(f"points above {found['run']}, on the same documents"), show_edge=False
    )
    for name in ("", "difference", "95 % interval", "p"):
        shown.add_column(name, justify="right" if name else "left")
    for name in COLUMNS:
        each = found["measures"][name]
        low, high = each["interval"]
        shown.add_row(name, f"{each['difference']:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{each['p']:.3f}")
    return shown


def render(metrics: Mapping[str, Any]) -> str:
    """``table`` as plain text, for logs and files.

    Args:
        metrics: as for ``table``.

    Returns:
        Lines without trailing blanks or terminal codes.
    """
    console = Console(file=io.StringIO(), width=110, color_system=None)
    with console.capture() as capture:
        console.print(table(metrics))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _title(metrics: Mapping[str, Any]) -> Text:
    documents = f"{metrics['documents']:,} documents" if "documents" in metrics else ""
    parts = [str(metrics.get("corpus", "")), str(metrics.get("split", "")), documents]
    # A Text, not a string: rich would read a corpus named "[x]" as markup.
    return Text(" · ".join(part for part in parts if part))


def _seconds(phases: Mapping[str, float]) -> Text:
    return Text(" · ".join(f"{phase} {seconds:,.1f} s" for phase, seconds in phases.items()))


def _cells(scores: Mapping[str, float]) -> list[str]:
    return [f"{scores[name]:.2f}" if name in scores else "–" for name in COLUMNS]


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    if isinstance(value, float | np.floating):
        return round(float(value), DECIMALS)
    return value
