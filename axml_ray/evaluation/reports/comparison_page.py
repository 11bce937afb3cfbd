"""The HTML page of a comparison of two runs: differences with their intervals, settings, and example documents."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from axml_ray.evaluation.reports.comparison import BAND_METRICS, COLUMNS, SIGNIFICANT
from axml_ray.evaluation.reports.examples import Example
from axml_ray.evaluation.reports.html_file import write_html

ExamplePairs = Sequence[tuple[Example, Example]]
"""Documents as the first and as the second run labelled them."""


def write_page(path: Path, comparison: Mapping[str, Any], examples: Sequence[tuple[str, ExamplePairs]] = ()) -> None:
    """Write the page atomically.

    Args:
        path: file to write; its directories are created.
        comparison: content of a comparison, see `evaluation.comparison`.
        examples: groups of documents with their titles.
    """
    write_html(
        path,
        "comparison.html.jinja",
        comparison=comparison,
        columns=COLUMNS,
        band_metrics=BAND_METRICS,
        significant=SIGNIFICANT,
        reach=_reach(comparison),
        examples=examples,
    )


def _reach(comparison: Mapping[str, Any]) -> float:
    """Return the farthest end of all intervals from zero, in points: half the width of the drawing's axis."""
    ends = [abs(end) for name in COLUMNS for end in comparison["measures"][name]["interval"]]
    return max([*ends, 0.01])
