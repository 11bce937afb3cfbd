"""The HTML report of a run: one file without scripts or external resources, so it opens from disk.

Names and texts come from users: the template escapes everything, and charts escape theirs.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from axml_ray.core.files import whole_records
from axml_ray.evaluation.metrics.metrics import CUTS
from axml_ray.evaluation.reports.charts import Axis, Bars, Line, bar_chart, line_chart
from axml_ray.evaluation.reports.examples import Example
from axml_ray.evaluation.reports.html_file import write_html


def write_page(
    path: Path,
    metrics: Mapping[str, Any],
    *,
    name: str,
    journals: Sequence[Path] = (),
    best: Sequence[Example] = (),
    worst: Sequence[Example] = (),
) -> None:
    """Write the report of the run `name` atomically.

    `metrics` is the content of `metrics.json`, `journals` are the files `training.jsonl` of the trees, of which missing
    ones are skipped, and `best` and `worst` are the documents with the best and the worst predictions.
    """
    write_html(
        path,
        "report.html.jinja",
        metrics=metrics,
        name=name,
        cuts=CUTS,
        training_charts=training_charts(journals),
        frequency_chart=frequency_chart(metrics["frequency"]),
        score_histogram=score_histogram(metrics["calibration"]),
        reliability_chart=reliability_chart(metrics["calibration"], metrics.get("probabilities")),
        example_groups=[("Best predictions", "best", best), ("Worst predictions", "worst", worst)],
        is_explained=any(label.spans for example in (*best, *worst) for label in example.predicted),
    )


def training_charts(journals: Sequence[Path]) -> list[Markup]:
    """Draw loss and validation nDCG@5 of each level, with one line per tree."""
    levels: dict[int, dict[int, dict[int, dict[str, Any]]]] = {}  # records by level, tree and step
    for journal in journals:
        for record in whole_records(journal.read_bytes() if journal.is_file() else b""):
            if "step" in record:
                # A resumed job repeats the steps since its checkpoint; the later record belongs to the final weights.
                levels.setdefault(record["level"], {}).setdefault(record["tree"], {})[record["step"]] = record
    charts = []
    for level, trees in sorted(levels.items()):
        for key, title, unit in (
            ("loss", "Loss", "loss (cross-entropy)"),
            ("valid_nDCG@5", "Validation nDCG@5", "best so far, %"),
        ):
            lines = [
                Line(name=f"tree {tree + 1}", points=[(step, row.get(key)) for step, row in sorted(steps.items())])
                for tree, steps in sorted(trees.items())
            ]
            x = Axis(label="training step")
            charts.append(line_chart(f"{title} of level {level}", x, Axis(label=unit), lines))
    return charts


def frequency_chart(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Draw precision and recall at five against the labels' number of training documents."""
    bins = [row for row in rows if row["from"] > 0]  # unseen labels cannot be shown on a logarithmic axis
    x = Axis(label="training documents of the label (log scale)", log=True)
    y = Axis(label="%", minimum=0, maximum=100)
    centres = [(row["from"] * row["to"]) ** 0.5 for row in bins]
    lines = [
        Line(name=name, points=[(centre, row[key]) for centre, row in zip(centres, bins, strict=True)])
        for key, name in (("precision", "precision of the top five"), ("recall", "recall within the top five"))
    ]
    return line_chart("Precision and recall by label frequency", x, y, lines)


def score_histogram(calibration: Mapping[str, Any]) -> Markup:
    """Draw the number of predicted labels by score, separately for true and false labels."""
    bins, true = [f"{edge:.2f}" for edge in calibration["edges"][:-1]], calibration["true"]
    false = [labels - correct for labels, correct in zip(calibration["labels"], true, strict=True)]
    x, y = Axis(label="score (lower edge of the bin)"), Axis(label="predicted labels (log scale)", log=True)
    series = [Bars(name="true", values=true), Bars(name="false", values=false)]
    return bar_chart("Scores of true and of false labels", x, y, bins, series)


def reliability_chart(scores: Mapping[str, Any], probabilities: Mapping[str, Any] | None) -> Markup:
    """Draw the share of true labels against the score, and against the calibrated probability if there is one."""
    lines = []
    for name, curve in (("score", scores), ("calibrated probability", probabilities)):
        if curve is not None:
            bins = zip(curve["mean_score"], curve["true"], curve["labels"], strict=True)
            points = [(mean, correct / labels) for mean, correct, labels in bins if mean is not None]
            lines.append(Line(name=name, points=points))
    x = Axis(label="mean of the labels in a bin", minimum=0, maximum=1)
    y = Axis(label="share of true labels", minimum=0, maximum=1)
    return line_chart("Reliability", x, y, lines, diagonal=True)
