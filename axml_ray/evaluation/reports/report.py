"""A run's ``metrics.json``: atomic write, and tables for the terminal.

- The table of scores has a row for each member and for the ensemble; its columns are the metrics of the paper's tables.
- A missing score is shown as a dash, so that an incomplete run can be shown.
- Floats are stored with four decimals, two more than a table shows.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from axml_ray.core.files import whole_file
from axml_ray.evaluation.metrics.bands import band_name
from axml_ray.evaluation.metrics.predictions import title_of

COLUMNS = tuple(f"{family}@{k}" for family in ("P", "nDCG", "PSP") for k in (1, 3, 5))
BAND_COLUMNS = ("P@1", "P@5", "nDCG@5", "R@10")
DECIMALS = 4


def write_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Write ``metrics.json`` atomically, with floats but thresholds rounded to four decimals.

    Its directory exists.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(_rounded(metrics), indent=2, allow_nan=False) + "\n"
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def empty_table(title: str, columns: Sequence[str], **options: Any) -> Table:
    """Return a table for a rich console, whose columns but the first are aligned to the right."""
    # Texts, not strings: rich would interpret a run or corpus named "[x]" as markup.
    table = Table(box=box.SIMPLE_HEAD, title=Text(title), show_edge=False, **options)
    for number, name in enumerate(columns):
        table.add_column(Text(name), justify="right" if number else "left")
    return table


def scores_table(metrics: Mapping[str, Any]) -> Table:
    """Build the table of the scores of every member and of the ensemble, with the seconds of each phase below.

    Args:
        metrics: content of ``metrics.json``: ``corpus``, ``split``, ``documents``, ``ensemble`` (scores in percent by
            metric), ``members`` (the same by member), ``seconds`` (by phase); any of them may be missing.
    """

    def cells(scores: Mapping[str, float], form: str = ".2f") -> list[str]:
        return [f"{scores[name]:{form}}" if name in scores else "–" for name in COLUMNS]

    documents = f"{metrics['documents']:,} documents" if "documents" in metrics else ""
    title = " · ".join(filter(None, [metrics.get("corpus"), metrics.get("split"), documents]))
    seconds = " · ".join(f"{phase} {seconds:,.1f} s" for phase, seconds in metrics.get("seconds", {}).items())
    table = empty_table(title, ("", *COLUMNS), caption=Text(seconds))
    for name, scores in metrics.get("members", {}).items():
        table.add_row(title_of(name), *cells(scores))
    table.add_section()
    ensemble = metrics.get("ensemble", {})
    table.add_row("ensemble", *cells(ensemble), style="bold")
    if first := metrics.get("without_networks"):
        gain = {name: ensemble[name] - first[name] for name in first.keys() & ensemble.keys()}
        table.add_row("gain from networks", *cells(gain, "+.2f"), style="green")
    return table


def bands_table(metrics: Mapping[str, Any]) -> Table:
    """Build the table of the ensemble's scores in each frequency band, with their confidence intervals."""
    columns = ("", "labels", "documents", *BAND_COLUMNS)
    table = empty_table("by training documents of the label; 95 % intervals", columns)
    for band in metrics["bands"]:
        scores, intervals = band.get("ensemble", {}), band.get("intervals", {}).get("ensemble", {})
        cells = [
            f"{scores[name]:.2f} ({intervals[name][0]:.1f}–{intervals[name][1]:.1f})" if name in scores else "–"
            for name in BAND_COLUMNS
        ]
        table.add_row(band_name(band), f"{band['labels']:,}", f"{band['documents']:,}", *cells)
    return table


def weights_table(about: Mapping[str, Any]) -> Table:
    """Build the table of the fitted weights of kinds, with the scores by which they were chosen.

    Args:
        about: ``weights`` by kind, the number of ``documents``, and ``scores``: nDCG@5 of each kind alone, by the
            preset's weights (``preset``), by the fitted ones (``fitted``), and without calibration (``uncalibrated``).
    """
    scores = {name: f"{score:.2f}" for name, score in about["scores"].items()}
    columns = ("", "weight", "held-out nDCG@5")
    table = empty_table(f"weights of kinds, fitted on {about['documents']:,} documents", columns)
    for kind, weight in about["weights"].items():
        table.add_row(title_of(kind), f"{weight:.2f}", scores.get(kind, "–"))
    table.add_section()
    rows = {"preset": "by the preset weights", "fitted": "by the fitted weights", "uncalibrated": "without calibration"}
    for name, title in rows.items():
        table.add_row(title, "", scores.get(name, "–"))
    return table


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        # A threshold that is rounded up leaves out the labels that have just this score.
        return {key: inner if key == "threshold" else _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    if isinstance(value, float | np.floating):
        return round(float(value), DECIMALS)
    return value
