"""The report of a run: one HTML file that opens from disk, with no script and nothing fetched.

Names and texts come from users: the template escapes everything, and pictures escape theirs.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from axml_ray.evaluation.examples import Example
from axml_ray.evaluation.metrics import CUTS
from axml_ray.evaluation.pictures import STYLE, Axis, Bars, Line, bar_chart, line_chart
from axml_ray.evaluation.predictions import title_of
from axml_ray.files import whole_file

GROUPS = {
    "P": "precision: share of the best k that are true",
    "nDCG": "gain: as precision, but early places count more",
    "PSP": "propensity-scored precision: rare labels count more",
    "PSnDCG": "propensity-scored gain",
    "R": "recall: share of the true labels among the best k",
}
SINGLE = {
    "RP@5": "hits over the most that were possible, min(5, true labels)",
    "F1@5": "2 · hits / (5 + true labels) of the best five",
    "nDCG@10/all": "gain of the best ten against an ideal ranking of all true labels",
}
MEMBERS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@10", "RP@5", "F1@5")
BANDS = ("P@1", "P@5", "nDCG@5", "R@5", "R@10")
COMPARED = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "RP@5", "F1@5")


def write_page(
    path: Path,
    metrics: Mapping[str, Any],
    *,
    name: str,
    journals: Sequence[Path] = (),
    right: Sequence[Example] = (),
    wrong: Sequence[Example] = (),
) -> None:
    """Write the report; a reader sees the old file or the new one.

    Args:
        path: where to; its directories are made.
        metrics: what `metrics.json` holds.
        name: of the run.
        journals: `training.jsonl` of each tree; those that aren't there are left out.
        right: documents that were labelled well.
        wrong: documents that were labelled badly.
    """
    environment = Environment(
        loader=PackageLoader("axml_ray.evaluation", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"score": _score, "interval": _interval, "whole": lambda number: f"{number:,}", "p": _chance}
    environment.filters["title_of"] = title_of
    html = environment.get_template("report.html.jinja").render(
        metrics=metrics,
        name=name,
        today=datetime.now().strftime("%Y-%m-%d"),
        cuts=CUTS,
        groups=GROUPS,
        single=SINGLE,
        member_measures=MEMBERS,
        band_measures=BANDS,
        compared=COMPARED,
        style=Markup(STYLE),
        curves=training_curves(journals),
        frequency=frequency_chart(metrics["frequency"]),
        histogram=histogram(metrics["calibration"]),
        reliability=reliability_chart(metrics["calibration"]),
        kinds=[
            ("Where it was right", "right", right),
            ("Where it was wrong", "wrong", wrong),
        ],
        explained=any(guess.pieces for each in (*right, *wrong) for guess in each.guesses),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def training_curves(journals: Sequence[Path]) -> list[Markup]:
    """Loss and validation nDCG@5 of each level, a line a tree."""
    levels: dict[int, dict[int, dict[int, dict[str, Any]]]] = {}
    for journal in journals:
        if not journal.is_file():
            continue
        for line in journal.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # the last line of a job that was killed
                continue
            if "step" in record:
                # A job that was started again repeats steps; the later record is of the weights that were kept.
                levels.setdefault(record["level"], {}).setdefault(record["tree"], {})[record["step"]] = record
    charts = []
    for level, trees in sorted(levels.items()):
        for what, axis in (
            ("loss", Axis(label="loss (cross-entropy)")),
            ("valid_nDCG@5", Axis(label="validation nDCG@5, %")),
        ):
            lines = [
                Line(name=f"tree {tree + 1}", points=[(step, one.get(what)) for step, one in sorted(steps.items())])
                for tree, steps in sorted(trees.items())
            ]
            shown = "Loss" if what == "loss" else "Validation nDCG@5"
            charts.append(line_chart(f"{shown} of level {level}", Axis(label="training step"), axis, lines))
    return charts


def frequency_chart(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Precision and recall at five by how often training met a label."""
    known = [row for row in rows if row["from"] > 0]
    x = Axis(label="training documents of the label (log scale)", log=True)
    y = Axis(label="%", least=0, most=100)
    middles = [(row["from"] * row["to"]) ** 0.5 for row in known]
    lines = [
        Line(name=name, points=[(at, row[key]) for at, row in zip(middles, known, strict=True)])
        for key, name in (("precision", "precision of the best five"), ("recall", "recall within the best five"))
    ]
    return line_chart("Precision and recall against label frequency", x, y, lines)


def histogram(calibration: Mapping[str, Any]) -> Markup:
    """How many stored labels have which score, true and false apart."""
    edges = calibration["edges"]
    bins = [f"{edge:.2f}" for edge in edges[:-1]]
    true = calibration["true"]
    false = [labels - right for labels, right in zip(calibration["labels"], true, strict=True)]
    y = Axis(label="labels (log scale)", log=True)
    x = Axis(label="score, bins from")
    return bar_chart(
        "Scores of true and of false labels",
        x,
        y,
        bins,
        [Bars(name="true", values=true), Bars(name="false", values=false)],
    )


def reliability_chart(calibration: Mapping[str, Any]) -> Markup:
    """Share of true labels against the score; on the diagonal a score is a probability."""
    found = zip(calibration["mean_score"], calibration["true"], calibration["labels"], strict=True)
    points = [(mean, right / labels) for mean, right, labels in found if mean is not None]
    x = Axis(label="score", least=0, most=1)
    y = Axis(label="share of true labels", least=0, most=1)
    return line_chart("Calibration", x, y, [Line(name="labels of a score", points=points)], even=True)


def _score(number: float | None) -> str:
    return "–" if number is None else f"{number:.2f}"


def _interval(limits: Sequence[float] | None) -> str:
    return "" if limits is None else f"{limits[0]:.1f} – {limits[1]:.1f}"


def _chance(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
