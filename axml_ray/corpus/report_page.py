"""Writes the report page of a corpus, `report/corpus.html`: a self-contained file, without external resources.

It shows the frequency of labels (by rank, on logarithmic axes), the length of texts, their number of labels, what
became of every record, and a few documents. It follows the browser's light or dark mode.
"""

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from axml_ray.core.files import whole_file
from axml_ray.evaluation.reports.charts import STYLE, Axis, Bars, Line, bar_chart, line_chart

EXAMPLES, EXAMPLE_LETTERS = 5, 400
"""Number of documents shown, and maximum number of letters of their texts."""
MAX_BARS, MAX_POINTS = 40, 300
"""Maximum number of bars of a histogram and of points of a curve."""


@cache
def _template() -> Template:
    """Return the page's template, which takes as long to compile as a small corpus to prepare."""
    environment = Environment(
        loader=PackageLoader("axml_ray.corpus", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["thousands"] = lambda number: f"{number:,}"
    return environment.get_template("report_page.html")


def write_report_page(directory: Path, name: str, counts: dict[str, Any], summary: dict[str, Any]) -> Path:
    """Write the report page of a corpus, which may still lack its manifest, and return its path.

    `counts` and `summary` are those of the manifest; `name` is the title.
    """
    labels = pq.read_table(directory / "labels.parquet", columns=["name", "count"])
    ranked = labels.sort_by([("count", "descending")])  # ids are ranked alike, unless the corpus continues another one
    label_counts = ranked["count"].to_numpy()
    text_lengths, labels_per_text = _histograms(directory)
    path = directory / "report" / "corpus.html"
    path.parent.mkdir(exist_ok=True)
    text = _template().render(
        name=name,
        counts=counts,
        summary=summary,
        splits=list(counts["documents"]),
        frequency=_frequency_chart(label_counts[label_counts > 0]),
        lengths=_histogram_chart(text_lengths, "Length of texts", "words of a training text (after truncation)"),
        labels_per_text=_histogram_chart(labels_per_text, "Labels per text", "labels of a training text"),
        style=Markup(STYLE),
        frequent=[(row["name"], row["count"]) for row in ranked.slice(0, 12).to_pylist()],
        single=int((label_counts == 1).sum()),
        examples=_examples(directory, labels["name"]),
    )
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def _histograms(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    histograms = [np.zeros(1, np.int64), np.zeros(1, np.int64)]
    for file in sorted((directory / "train").iterdir()):
        table = pq.read_table(file, columns=["tokens", "labels"])
        for i, column in enumerate(("tokens", "labels")):
            counts = np.bincount(pc.list_value_length(table[column]).to_numpy())
            size = max(len(counts), len(histograms[i]))
            histograms[i] = np.pad(histograms[i], (0, size - len(histograms[i])))
            histograms[i] += np.pad(counts, (0, size - len(counts)))
    return histograms[0], histograms[1]


def _examples(directory: Path, names: Any) -> list[dict[str, Any]]:
    """Return id, shortened text and label names of the first training documents."""
    first = min((directory / "train").iterdir())
    batch = next(pq.ParquetFile(first).iter_batches(EXAMPLES, columns=["id", "text", "labels"]))
    return [
        {
            "id": row["id"],
            "text": row["text"][:EXAMPLE_LETTERS] + ("…" if len(row["text"]) > EXAMPLE_LETTERS else ""),
            "labels": [names[label].as_py() for label in row["labels"]],
        }
        for row in batch.to_pylist()
    ]


def _frequency_chart(counts: np.ndarray) -> Markup:
    """Draw the frequency of labels by rank; `counts` is int64 [trained labels], descending."""
    ranks = np.unique(np.geomspace(1, max(len(counts), 1), MAX_POINTS).astype(np.int64))[: len(counts)]
    points = [(float(rank), float(counts[rank - 1])) for rank in ranks.tolist()]
    x, y = Axis(label="label, by rank", log=True), Axis(label="training documents", log=True)
    return line_chart("Frequency of labels", x, y, [Line(name="labels", points=points)])


def _histogram_chart(histogram: np.ndarray, title: str, name: str) -> Markup:
    """Draw a histogram (int64 [values]); if there are many values, a bar covers several."""
    step = max(1, math.ceil(len(histogram) / MAX_BARS))
    heights = np.add.reduceat(histogram, np.arange(0, len(histogram), step))
    bins = [_bin_label(i * step, step) for i in range(len(heights))]
    return bar_chart(
        title, Axis(label=name), Axis(label="documents"), bins, [Bars(name="documents", values=heights.tolist())]
    )


def _bin_label(first: int, step: int) -> str:
    return str(first) if step == 1 else f"{first}–{first + step - 1}"
