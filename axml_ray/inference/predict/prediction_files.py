"""Files of predictions in the formats of `axml-ray predict`.

Parquet and JSON lines have a row for each text, with lists of its labels, the best first. CSV, as spreadsheets read it,
has a row for each label of a text; one with blanks for a text without labels.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

Format = Literal["parquet", "jsonl", "csv"]

TEXT, TEXTS, NUMBERS = pa.string(), pa.list_(pa.string()), pa.list_(pa.float32())
PREDICTIONS = pa.schema(
    {"id": TEXT, "labels": TEXTS, "names": TEXTS, "scores": NUMBERS, "probabilities": NUMBERS, "error": TEXT}
)
"""Columns of the predictions; the error is null unless the text could not be read or tagged."""
CSV_COLUMNS = ("id", "rank", "label", "name", "score", "probability", "error")
"""Columns of CSV; the rank counts the labels of a text from 1."""


def write_predictions(rows: Sequence[dict[str, Any]], path: Path, form: Format) -> None:
    """Write rows with the columns `PREDICTIONS` to a file."""
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows, PREDICTIONS), path)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if form == "jsonl":
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            return
        writer = csv.writer(file)
        writer.writerow(CSV_COLUMNS)
        for row in rows:
            lists = (row[name] for name in ("labels", "names", "scores", "probabilities"))
            tags = enumerate(zip(*lists, strict=True), start=1) if row["labels"] else [("", ("",) * 4)]
            writer.writerows([row["id"], rank, *tag, row["error"]] for rank, tag in tags)


def read_errors(path: Path, form: Format) -> Iterator[tuple[str, str | None]]:
    """Yield the id of each text in a file, and its error or None."""
    if form == "parquet":
        rows = pq.read_table(path, columns=["id", "error"]).to_pylist()
        yield from ((row["id"], row["error"]) for row in rows)
        return
    with path.open(encoding="utf-8", newline="") as file:
        if form == "jsonl":
            yield from ((row["id"], row["error"]) for row in map(json.loads, file))
            return
        yield from ((row["id"], row["error"] or None) for row in csv.DictReader(file) if row["rank"] in ("", "1"))
