"""Writes the report page of a corpus, `report/corpus.html`: a self-contained file, without external resources.

It shows the frequency of labels (by rank, on logarithmic axes), the length of texts, their number of labels, what
became of every record, and a few documents. It follows the browser's light or dark mode.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from markupsafe import Markup

from axml_ray.evaluation.reports.charts import Axis, Bars, Line, bar_chart, line_chart
from axml_ray.evaluation.reports.html_file import write_html

EXAMPLES, EXAMPLE_LETTERS = 5, 400
"""Number of documents shown, and maximum number of letters of their texts."""
MAX_BARS, MAX_POINTS = 40, 300
"""Maximum number of bars of a histogram and of points of a curve."""


def write_report_page(directory: Path, name: str, counts: dict[str, Any], summary: dict[str, Any]) -> Path:
    """Write the report page of a corpus, which may still lack its manifest, and return its path.

    `counts` and `summary` are those of the manifest; `name` is the title.
    """
    labels = pq.read_table(directory / "labels.parquet", columns=["name", "count"])
    ranked = labels.sort_by([("count", "descending")])  # ids are ranked alike, unless the corpus continues another one
    label_counts = ranked["count"].to_numpy()
    frequencies = label_counts[label_counts > 0]
    ranks = np.unique(np.geomspace(1, max(len(frequencies), 1), MAX_POINTS).astype(np.int64))[: len(frequencies)]
    points = [(float(rank), float(frequencies[rank - 1])) for rank in ranks.tolist()]
    x, y = Axis(label="label, by rank", log=True), Axis(label="training documents", log=True)
    files = sorted((directory / "train").iterdir())
    batch = next(pq.ParquetFile(files[0]).iter_batches(EXAMPLES, columns=["id", "text", "labels"]))
    examples = [
        {
            "id": row["id"],
            "text": row["text"][:EXAMPLE_LETTERS] + ("…" if len(row["text"]) > EXAMPLE_LETTERS else ""),
            "labels": [labels["name"][label].as_py() for label in row["labels"]],
        }
        for row in batch.to_pylist()
    ]
    path = directory / "report" / "corpus.html"
    write_html(
        path,
        "report_page.html",
        package="axml_ray.corpus",
        name=name,
        counts=counts,
        summary=summary,
        splits=list(counts["documents"]),
        frequency=line_chart("Frequency of labels", x, y, [Line(name="labels", points=points)]),
        lengths=_histogram(files, "tokens", "Length of texts", "words of a training text (after truncation)"),
        labels_per_text=_histogram(files, "labels", "Labels per text", "labels of a training text"),
        frequent=[(row["name"], row["count"]) for row in ranked.slice(0, 12).to_pylist()],
        single=int((label_counts == 1).sum()),
        examples=examples,
    )
    return path


def _histogram(files: list[Path], column: str, title: str, name: str) -> Markup:
    """Draw how many documents have lists of each length; if there are many lengths, a bar covers several."""
    tables = (pq.read_table(file, columns=[column]) for file in files)
    counts = np.bincount(np.concatenate([pc.list_value_length(table[column]).to_numpy() for table in tables]))
    step = max(1, math.ceil(len(counts) / MAX_BARS))
    starts = range(0, len(counts), step)
    bins = [str(first) if step == 1 else f"{first}–{first + step - 1}" for first in starts]
    heights = np.add.reduceat(counts, starts).tolist()
    return bar_chart(title, Axis(label=name), Axis(label="documents"), bins, [Bars(name="documents", values=heights)])
