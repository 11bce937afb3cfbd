"""Stored predictions of a split, read one ranking at a time; `inference/predict/predict_split.py` writes them.

Columns: `id`, `labels` (true label ids), and for the ensemble and each member `<name>.labels` and `<name>.scores`,
fixed-size lists, best first, labels padded with -1 and scores with 0.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json, write_json
from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.evaluation.metrics.rankings import labels_without, rank_without

ENSEMBLE = "ensemble"
MANIFEST = "_predictions.json"
"""File with the cache key of the ensemble and the names of the shards, which is written last.

Readers of a directory of Parquet files ignore names with an underscore.
"""


@dataclass(frozen=True, slots=True)
class Predictions:
    """A directory of predictions.

    Attributes:
        directory: directory of the Parquet files.
        members: names of the members with a ranking.
        made_by: cache key of the ensemble.
        left_out: label ids of each document that rankings and true labels are read without.
    """

    directory: Path
    members: tuple[str, ...]
    made_by: str
    left_out: Ragged | None = None

    @classmethod
    def open(cls, directory: Path) -> "Predictions | None":
        """Open the predictions in `directory`; None if there are none, or a shard is missing.

        Raises:
            SettingsError: a file cannot be read, or lacks a column.
        """
        again = "Remove the directory to predict the split again"
        path = directory / MANIFEST
        storage.fetch(directory)
        if not path.is_file():
            return None
        try:
            manifest = read_json(path)
            files = [directory / name for name in manifest["files"]]
            if not all(file.is_file() for file in files):
                return None
            schemas = [pq.read_schema(path := file).names for file in files]
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise SettingsError(f"{path}: cannot be read ({' '.join(str(error).split())}). {again}") from None
        columns = set.intersection(*map(set, schemas))
        if missing := sorted({"id", "labels", f"{ENSEMBLE}.labels", f"{ENSEMBLE}.scores"} - columns):
            raise SettingsError(f"{directory}: the predictions lack the columns {', '.join(missing)}. {again}")
        members = [name.removesuffix(".labels") for name in schemas[0] if name.endswith(".labels") and name in columns]
        members.remove(ENSEMBLE)
        return cls(directory, tuple(members), manifest["key"])

    @classmethod
    def complete(cls, directory: Path, key: str) -> "Predictions":
        """Write the manifest of a directory to which all shards are written, and open it.

        Args:
            directory: directory of the shards, whose names in order are the order of the documents.
            key: cache key of the ensemble.
        """
        storage.fetch(directory)  # the shards of other nodes
        files = sorted(path.name for path in directory.glob("*.parquet"))
        write_json(directory / MANIFEST, {"key": key, "files": files})
        predictions = cls.open(directory)
        assert predictions is not None
        return predictions

    def read(self, name: str) -> Iterator[tuple[TopK, Ragged]]:
        """Read the ranking of this name (`ensemble` or a member) and the true label ids, file by file."""
        for [ranking], truth in self.read_all([name]):
            yield ranking, truth

    def read_all(self, names: Sequence[str]) -> Iterator[tuple[list[TopK], Ragged]]:
        """Read several rankings and the true label ids, file by file."""
        first = 0
        for table in self.tables(
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
        ids: list[str] = []
        blocks = []
        for table in self.tables(["id", "labels"]):
            ids += table["id"].to_pylist()
            blocks.append(Ragged.from_arrow(table["labels"]))
        truth = Ragged.concatenate(blocks)
        return ids, truth if self.left_out is None else labels_without(self.left_out, truth)

    def ids_of(self, rows: Collection[int]) -> dict[int, str]:
        """Return the ids of the documents at some rows, by row."""
        ids: dict[int, str] = {}
        start = 0  # row of the first document of a file
        for table in self.tables(["id"]):
            ids |= {row: table["id"][row - start].as_py() for row in rows if start <= row < start + len(table)}
            start += len(table)
        return ids

    def tables(self, columns: list[str]) -> Iterator[pa.Table]:
        """Read some columns as they are stored, file by file."""
        names = read_json(self.directory / MANIFEST)["files"]
        return (pq.read_table(self.directory / name, columns=columns) for name in names)


def title_of(member: str) -> str:
    """Return the display name of a member: `linear_tree-0` is "linear tree 1"."""
    kind, _, number = member.partition("-")
    return " ".join([kind.replace("_", " "), *([str(int(number) + 1)] if number.isdecimal() else [])])
