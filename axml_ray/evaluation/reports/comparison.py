"""A comparison of two runs as tables for the terminal, and as an HTML page.

Its content is what `compare_predictions` returns, with `corpus`, `split`, `runs` (names of the first and the second
run) and `settings`: by key, the values of both, where they differ.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from axml_ray.evaluation.metrics.bands import band_name
from axml_ray.evaluation.reports.examples import Example
from axml_ray.evaluation.reports.html_file import write_html
from axml_ray.evaluation.reports.report import empty_table

COLUMNS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "RP@5", "F1@5")
BAND_METRICS = ("P@1", "nDCG@5", "R@10")
SIGNIFICANT = 0.05
"""Greatest p-value at which a difference is emphasised."""


def write_page(
    path: Path,
    comparison: Mapping[str, Any],
    examples: Sequence[tuple[str, Sequence[tuple[Example, Example]]]] = (),
) -> None:
    """Write the page atomically, with groups of example documents and their titles.

    Each document is there as the first and as the second run labelled it.
    """
    ends = [abs(end) for name in COLUMNS for end in comparison["measures"][name]["interval"]]
    write_html(
        path,
        "comparison.html.jinja",
        comparison=comparison,
        columns=COLUMNS,
        band_metrics=BAND_METRICS,
        significant=SIGNIFICANT,
        reach=max([*ends, 0.01]),  # half the width of the drawings of intervals, in points
        examples=examples,
    )


def measures_table(comparison: Mapping[str, Any]) -> Table:
    """Build the table of the scores of both runs and their differences."""
    first, second = comparison["runs"]
    table = empty_table(
        f"{second} compared with {first} · {comparison['split']} · {comparison['documents']:,} documents",
        ("", first, second, "difference", "95 % interval", "p"),
    )
    table.caption = "p: paired permutation test over documents, each measure by itself; bold where it is below 0.05"
    for name in COLUMNS:
        before, now = comparison["scores"][name]
        measure = comparison["measures"][name]
        low, high = measure["interval"]
        gain = f"{measure['difference']:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{measure['p']:.3f}"
        style = "bold" if measure["p"] < SIGNIFICANT else ""
        table.add_row(name, f"{before:.2f}", f"{now:.2f}", *gain, style=style)
    return table


def bands_table(comparison: Mapping[str, Any]) -> Table:
    """Build the table of the differences in each band of label frequency."""
    table = empty_table("difference by training documents of the label", ("", "documents", *BAND_METRICS))
    for band in comparison["bands"]:
        cells = ["–"] * len(BAND_METRICS)
        if measures := band.get("measures"):
            cells = [f"{measures[name]['difference']:+.2f} (p {measures[name]['p']:.3f})" for name in BAND_METRICS]
        table.add_row(band_name(band), f"{band['documents']:,}", *cells)
    return table


def settings_table(comparison: Mapping[str, Any]) -> Table:
    """Build the table of the settings that differ."""
    table = empty_table("settings that differ", ("", *comparison["runs"]))
    for key, values in comparison["settings"].items():
        table.add_row(Text(key), *(Text(str(value)) for value in values))
    return table
