"""Comparison of two runs on the same documents: scores, paired tests, and tables for the terminal.

The content of a comparison, which `axml-ray compare --json` writes, is a dictionary:

- `split`, `documents`, `runs` (names of the first and the second run);
- `scores`: by metric, the scores of both in percent;
- `measures`: by metric, what the second gains over the first (`difference`, in points), its `interval`, and `p`;
- `bands`: a row for each band of label frequency, with the same `measures`;
- `settings`: by key, the values of both, where they differ.
"""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from axml_ray.evaluation.metrics.bands import band_name, frequency_bands
from axml_ray.evaluation.metrics.prediction_metrics import (
    TrainingCounts,
    inverse_propensity,
    paired_differences,
    score_pairs,
)
from axml_ray.evaluation.metrics.predictions import Predictions
from axml_ray.settings import EvaluationSettings

COLUMNS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "RP@5", "F1@5")
BAND_METRICS = ("P@1", "nDCG@5", "R@10")
SIGNIFICANT = 0.05
"""Greatest p-value at which a difference is emphasised."""


def compare(
    first: Predictions, second: Predictions, training: TrainingCounts, settings: EvaluationSettings
) -> dict[str, Any]:
    """Compare two rankings of the same documents, over all labels and in each band of label frequency.

    Returns:
        `documents` (with a true label), `scores`, `measures` and `bands`, as the module describes them.

    Raises:
        SettingsError: the documents or their true labels differ, or document ids are not unique.
    """
    inverse = inverse_propensity(training, settings)
    bands = frequency_bands(training.counts, head_from=settings.head_from, torso_from=settings.torso_from)
    whole, *of_bands = score_pairs(second, first, inverse, bands)
    assert whole is not None
    now, before = whole[0].result(), whole[1].result()
    rows: list[dict[str, Any]] = []
    for band, pair in zip(bands, of_bands, strict=True):
        row = {"name": band.name, "from": band.min_count, "to": band.max_count, "labels": int(band.is_member.sum())}
        scored = (
            {"documents": len(pair[0]), "measures": paired_differences(*pair, settings)} if pair else {"documents": 0}
        )
        rows.append(row | scored)
    return {
        "documents": len(whole[0]),
        "scores": {name: [before[name], now[name]] for name in now},
        "measures": paired_differences(*whole, settings),
        "bands": rows,
    }


def measures_table(comparison: Mapping[str, Any]) -> Table:
    """Build the table of the scores of both runs and their differences."""
    first, second = comparison["runs"]
    table = _table(
        f"{second} compared with {first} · {comparison['split']} · {comparison['documents']:,} documents",
        ("", first, second, "difference", "95 % interval", "p"),
    )
    table.caption = "p: paired permutation test over documents, each measure by itself; bold where it is below 0.05"
    for name in COLUMNS:
        before, now = comparison["scores"][name]
        measure = comparison["measures"][name]
        style = "bold" if measure["p"] < SIGNIFICANT else ""
        table.add_row(name, f"{before:.2f}", f"{now:.2f}", *_difference(measure), style=style)
    return table


def bands_table(comparison: Mapping[str, Any]) -> Table:
    """Build the table of the differences in each band of label frequency."""
    table = _table("difference by training documents of the label", ("", "documents", *BAND_METRICS))
    for band in comparison["bands"]:
        cells = ["–"] * len(BAND_METRICS)
        if measures := band.get("measures"):
            cells = [f"{measures[name]['difference']:+.2f} (p {measures[name]['p']:.3f})" for name in BAND_METRICS]
        table.add_row(band_name(band), f"{band['documents']:,}", *cells)
    return table


def settings_table(comparison: Mapping[str, Any]) -> Table:
    """Build the table of the settings that differ."""
    table = _table("settings that differ", ("", *comparison["runs"]))
    for key, values in comparison["settings"].items():
        table.add_row(Text(key), *(Text(str(value)) for value in values))
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    # Texts, not strings: rich would interpret a run named "[x]" as markup.
    table = Table(box=box.SIMPLE_HEAD, title=Text(title), show_edge=False)
    for number, name in enumerate(columns):
        table.add_column(Text(name), justify="right" if number else "left")
    return table


def _difference(measure: Mapping[str, Any]) -> tuple[str, str, str]:
    low, high = measure["interval"]
    return f"{measure['difference']:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{measure['p']:.3f}"
