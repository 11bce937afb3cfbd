"""Files of a prediction job: the options, the identity of the job, one file per block, and the summary at the end."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json, write_json
from axml_ray.inference.tagger import Tag
from axml_ray.settings import LabelConditions, Precision, Settings

JOB, RESULT = "job.json", "predictions.json"
COMPUTED_IN = "computed_in"
"""Key of the number format in `JOB`."""
JOB_VERSION = 3
"""Version of the files' content: since 2 `threshold` is a probability, and a text without a word has no labels; since 3
files of one name in several directories have distinct ids, and blocks are limited in bytes."""
Format = Literal["parquet", "jsonl"]


class PredictionOptions(Settings):
    """Options of the predictions that are written."""

    form: Format = "parquet"
    """Format of the files."""
    top_k: int = 5
    """Largest number of labels of a text."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """Omit labels with a lower probability."""
    conditions: LabelConditions | None = None
    """Which labels are allowed or excluded."""


def write_block(path: Path, form: Format, ids: list[str], tags: list[list[Tag]], errors: list[str | None]) -> None:
    """Write the predictions of a block in the given format."""
    columns: dict[str, tuple[list[Any], pa.DataType]] = {
        "id": (ids, pa.string()),
        "labels": ([[tag.label for tag in row] for row in tags], pa.list_(pa.string())),
        "names": ([[tag.name for tag in row] for row in tags], pa.list_(pa.string())),
        "scores": ([[tag.score for tag in row] for row in tags], pa.list_(pa.float32())),
        "probabilities": ([[tag.probability for tag in row] for row in tags], pa.list_(pa.float32())),
        "error": (errors, pa.string()),
    }
    if form == "parquet":
        pq.write_table(pa.table({name: pa.array(*column) for name, column in columns.items()}), path)
        return
    with path.open("w", encoding="utf-8") as file:
        for row in zip(*(values for values, _ in columns.values()), strict=True):
            file.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")


def claim_directory(output: Path, job: dict[str, Any], computed_in: Precision) -> Precision:
    """Write a job's identity into its output directory, or check that the directory belongs to the same job.

    Args:
        output: directory of the predictions.
        job: what determines the result.
        computed_in: number format that this machine would choose.

    Returns:
        The number format of the job, which is kept when it is started again, perhaps on another machine.

    Raises:
        SettingsError: the directory contains something else, or predictions of another job.
    """
    path = output / JOB
    job = json.loads(json.dumps(job))  # tuples become lists, as in the stored job
    if not path.exists():
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise SettingsError(f"--output: {output} exists and holds no predictions; choose a new directory")
        output.mkdir(parents=True, exist_ok=True)
        write_json(path, {**job, COMPUTED_IN: computed_in})
        return computed_in
    try:
        stored = read_json(path)
    except ValueError as error:
        raise SettingsError(f"{error}; remove {output} and start again") from None
    changed = [key for key in job if not isinstance(stored, dict) or stored.get(key) != job[key]]
    if changed:
        raise SettingsError(f"--output: {output} holds predictions made with another {', another '.join(changed)}; "
                            "choose a new directory")  # fmt: skip
    for temporary in output.glob(".part-*"):  # left by a job that was killed
        temporary.unlink(missing_ok=True)
    decided: Precision = stored.get(COMPUTED_IN, computed_in)
    return decided


def finished_result(output: Path) -> dict[str, Any] | None:
    """Return the result of an earlier run of the same job, if all of its files exist."""
    path = output / RESULT
    if not path.exists():
        return None
    result: dict[str, Any] = read_json(path)
    if all((output / name).exists() for name in result["files"]):
        return result
    path.unlink()
    return None


def summarise(output: Path, form: Format) -> dict[str, Any]:
    """Count the documents and errors in all files, and find the first error, such as `a.jsonl:3: not JSON`."""
    files = sorted(path.name for path in output.glob(f"part-*.{form}"))
    documents, errors, first_error = 0, 0, None
    for name in files:
        if form == "parquet":
            table = pq.read_table(output / name, columns=["id", "error"])
            failed = table.filter(pc.is_valid(table["error"])).to_pylist()
            documents += len(table)
        else:
            with (output / name).open(encoding="utf-8") as file:
                rows = [json.loads(line) for line in file]
            failed = [row for row in rows if row["error"] is not None]
            documents += len(rows)
        errors += len(failed)
        if failed and first_error is None:
            first_error = f"{failed[0]['id']}: {failed[0]['error']}"
    summary = {"documents": documents, "errors": errors, "first_error": first_error, "files": files}
    return {"format": "axml-ray predictions", **summary}
