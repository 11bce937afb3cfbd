"""Stored predictions of a split: reads the files that `inference/predict_split.py` writes, one ranking at a time.

Columns: `id`, `labels` (true label ids), and for the ensemble and each member `<name>.labels` and `<name>.scores`,
fixed-size lists, best first, labels padded with -1 and scores with 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from axml_ray.core.errors import SettingsError
from axml_ray.core.files import finish_replacement
from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.evaluation.metrics.rankings import labels_without, rank_without

ENSEMBLE = "ensemble"
MADE_BY = "axml_ray.made_by"
"""Key of a file's metadata: the cache key of the ensemble that predicted it."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """A directory of predictions.

    Attributes:
        directory: directory of the Parquet files.
        members: names of the members with a ranking.
        made_by: cache key of the ensemble; None if the files have none, or different ones.
        left_out: label ids of each document that rankings and true labels are read without.
    """

    directory: Path
    members: tuple[str, ...]
    made_by: str | None = None
    left_out: Ragged | None = None

    @classmethod
    def open(cls, directory: Path) -> "Predictions | None":
        """Open the predictions in `directory`; None if it has no Parquet files.

        Raises:
            SettingsError: a file cannot be read, or lacks a column.
        """
        finish_replacement(directory)
        files = sorted(directory.glob("*.parquet"))
        if not files:
            return None
        schemas = []
        for path in files:
            try:
                schemas.append(pq.read_schema(path))
            except (OSError, pa.ArrowException) as error:
                reason = " ".join(str(error).split())
                raise SettingsError(
                    f"{path}: cannot be read ({reason}). Remove the directory to predict the split again"
                ) from None
        names = set.intersection(*(set(schema.names) for schema in schemas))
        [made_by, *others] = {(schema.metadata or {}).get(MADE_BY.encode()) for schema in schemas}
        required = {"id", "labels", f"{ENSEMBLE}.labels", f"{ENSEMBLE}.scores"}
        if missing := sorted(required - names):
            raise SettingsError(
                f"{directory}: the predictions lack the columns {', '.join(missing)}. Remove the directory to "
                "predict the split again"
            )
        members = [
            name.removesuffix(".labels") for name in schemas[0].names if name in names and name.endswith(".labels")
        ]
        members.remove(ENSEMBLE)
        return cls(directory, tuple(members), made_by.decode() if made_by and not others else None)

    def read(self, name: str) -> Iterator[tuple[TopK, Ragged]]:
        """Read the ranking of this name (`ensemble` or a member) and the true label ids, file by file."""
        for [ranking], truth in self.read_all([name]):
            yield ranking, truth

    def read_all(self, names: Sequence[str]) -> Iterator[tuple[list[TopK], Ragged]]:
        """Read several rankings and the true label ids, file by file."""
        first = 0
        for table in self._tables(
            [*(f"{name}.{column}" for name in names for column in ("labels", "scores")), "labels"]
        ):
            rows = len(table)
            if not rows:
                continue
            truth, rankings = Ragged.from_arrow(table["labels"]), []
            pairs = None if self.left_out is None else self.left_out.take(np.arange(first, first + rows))
            for name in names:
                columns = (table[f"{name}.{column}"].combine_chunks() for column in TopK._fields)
                ranking = TopK(*(column.flatten().to_numpy().reshape(rows, -1) for column in columns))
                rankings.append(ranking if pairs is None else rank_without(pairs, ranking))
            yield rankings, truth if pairs is None else labels_without(pairs, truth)
            first += rows

    def documents(self) -> tuple[list[str], Ragged]:
        """Return the ids and true label ids of all documents, in the order of the rankings."""
        table = pa.concat_tables(self._tables(["id", "labels"]))
        truth = Ragged.from_arrow(table["labels"])
        return table["id"].to_pylist(), truth if self.left_out is None else labels_without(self.left_out, truth)

    def _tables(self, columns: list[str]) -> Iterator[pa.Table]:
        return (pq.read_table(path, columns=columns) for path in sorted(self.directory.glob("*.parquet")))


def title_of(member: str) -> str:
    """Return the display name of a member: `linear_tree-0` is "linear tree 1"."""
    kind, _, number = member.partition("-")
    return " ".join([kind.replace("_", " "), *([str(int(number) + 1)] if number.isdecimal() else [])])
