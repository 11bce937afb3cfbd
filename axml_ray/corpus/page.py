"""The corpus page: `report/corpus.html`, one file without anything from outside, for people who would rather look.

It shows how often labels occur (rank against documents, both logarithmic), how long texts are, how many labels they
have, what became of every record, and a few documents. It follows the reader's choice of light or dark.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from axml_ray.evaluation.charts import STYLE, Axis, Bars, Line, bar_chart, line_chart
from axml_ray.files import whole_file

EXAMPLES, EXAMPLE_LETTERS = 5, 400
BARS, POINTS = 40, 300


def write_page(directory: Path, name: str, counts: dict[str, Any], summary: dict[str, Any]) -> Path:
    """Write the page of a prepared corpus, or of one that is about to be complete.

    Args:
        directory: of the corpus.
        name: of the corpus, for the title.
        counts: `counts` of its manifest.
        summary: `summary` of its manifest.

    Returns:
        Where the page lies.
    """
    labels = pq.read_table(directory / "labels.parquet", columns=["name", "count"])
    of_label = labels["count"].to_numpy()
    lengths, given = _histograms(directory)
    path = directory / "report" / "corpus.html"
    path.parent.mkdir(exist_ok=True)
    environment = Environment(
        loader=PackageLoader("axml_ray.corpus", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["thousands"] = lambda number: f"{number:,}"
    text = environment.get_template("page.html").render(
        name=name,
        counts=counts,
        summary=summary,
        splits=list(counts["documents"]),
        frequency=_frequency(of_label[of_label > 0]),
        lengths=_bars(lengths, "How long texts are", "words of a training text, as cut"),
        given=_bars(given, "How many labels they have", "labels of a training text"),
        style=Markup(STYLE),
        frequent=[(row["name"], row["count"]) for row in labels.slice(0, 12).to_pylist()],
        once=int((of_label == 1).sum()),
        examples=_examples(directory, labels["name"]),
    )
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def _histograms(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """int64: how many training texts have that many words, and that many labels."""
    found = [np.zeros(1, np.int64), np.zeros(1, np.int64)]
    for file in sorted((directory / "train").iterdir()):
        table = pq.read_table(file, columns=["tokens", "labels"])
        for place, column in enumerate(("tokens", "labels")):
            more = np.bincount(pc.list_value_length(table[column]).to_numpy())
            size = max(len(more), len(found[place]))
            found[place] = np.pad(found[place], (0, size - len(found[place]))) + np.pad(more, (0, size - len(more)))
    return found[0], found[1]


def _examples(directory: Path, names: Any) -> list[dict[str, Any]]:
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


def _frequency(counts: np.ndarray) -> Markup:
    """How often labels occur, by falling count (int64 [trained labels])."""
    ranks = np.unique(np.geomspace(1, max(len(counts), 1), POINTS).astype(np.int64))[: len(counts)]
    points = [(float(rank), float(counts[rank - 1])) for rank in ranks.tolist()]
    x, y = Axis(label="label, by rank", log=True), Axis(label="training documents", log=True)
    return line_chart("How often labels occur", x, y, [Line(name="labels", points=points)])


def _bars(histogram: np.ndarray, title: str, name: str) -> Markup:
    """Bars over a histogram (int64 [values]), several values a bar where there are many."""
    step = max(1, math.ceil(len(histogram) / BARS))
    heights = np.add.reduceat(histogram, np.arange(0, len(histogram), step))
    bins = [_span(place * step, step) for place in range(len(heights))]
    return bar_chart(
        title, Axis(label=name), Axis(label="documents"), bins, [Bars(name="documents", values=heights.tolist())]
    )


def _span(first: int, step: int) -> str:
    return str(first) if step == 1 else f"{first}–{first + step - 1}"
