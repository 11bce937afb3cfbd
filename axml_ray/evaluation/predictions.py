"""Predictions of a split as they lie on disk: Parquet files that `inference/batch.py` writes, read ranking by ranking.

Columns: `id`, `labels` (the true ones), and for the ensemble and each member `<name>.labels` and `<name>.scores`,
fixed-size lists, best first, -1 where nothing was predicted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from axml_ray.ragged import Ragged
from axml_ray.settings import SettingsError

ENSEMBLE = "ensemble"
MADE_BY = "axml_ray.made_by"
"""In a file's metadata, the cache key of the ensemble that predicted it."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The rankings of some documents, N of them with K labels each.

    Attributes:
        top: int32[N, K], label ids, best first, -1 where nothing was predicted.
        scores: float32[N, K], falling; 0 where nothing was predicted.
        truth: true label ids of the documents.
    """

    top: np.ndarray
    scores: np.ndarray
    truth: Ragged


@dataclass(frozen=True, slots=True)
class Predictions:
    """A directory of predictions.

    Attributes:
        directory: where they lie.
        members: names of the members that predicted.
        made_by: cache key of the ensemble; None where the files have none, or several.
    """

    directory: Path
    members: tuple[str, ...]
    made_by: str | None = None

    @classmethod
    def open(cls, directory: Path) -> "Predictions | None":
        """The predictions in `directory`; None where there are none.

        Raises:
            SettingsError: a file is broken, or isn't one of predictions.
        """
        files = sorted(directory.glob("*.parquet"))
        if not files:
            return None
        schemas = [_checked(path) for path in files]
        names = set.intersection(*(set(schema.names) for schema in schemas))
        [made_by, *others] = {(schema.metadata or {}).get(MADE_BY.encode()) for schema in schemas}
        required = {"id", "labels", f"{ENSEMBLE}.labels", f"{ENSEMBLE}.scores"}
        if missing := sorted(required - names):
            raise SettingsError(
                f"{directory}: not predictions of this version ({', '.join(missing)} missing); remove the directory, "
                "and the split is predicted again"
            )
        members = [
            name.removesuffix(".labels") for name in schemas[0].names if name in names and name.endswith(".labels")
        ]
        members.remove(ENSEMBLE)
        return cls(directory, tuple(members), made_by.decode() if made_by and not others else None)

    @property
    def rankings(self) -> list[str]:
        """Names of all rankings: the ensemble's and each member's."""
        return [ENSEMBLE, *self.members]

    def read(self, who: str) -> Iterator[Ranking]:
        """The rankings of one of `rankings`, file by file."""
        for (top, scores), truth in self.columns([f"{who}.labels", f"{who}.scores"]):
            yield Ranking(top, scores, truth)

    def columns(self, names: list[str]) -> Iterator[tuple[list[np.ndarray], Ragged]]:
        """Columns of lists, [N, K] each, and the true label ids, file by file."""
        for table in self._tables([*names, "labels"]):
            if rows := len(table):
                lists = (table[name].combine_chunks().flatten().to_numpy().reshape(rows, -1) for name in names)
                yield list(lists), Ragged.from_arrow(table["labels"])

    def documents(self) -> tuple[list[str], Ragged]:
        """Ids and true label ids of all documents, in the order of the rankings."""
        table = pa.concat_tables(self._tables(["id", "labels"]))
        return table["id"].to_pylist(), Ragged.from_arrow(table["labels"])

    def _tables(self, columns: list[str]) -> Iterator[pa.Table]:
        return (pq.read_table(path, columns=columns) for path in sorted(self.directory.glob("*.parquet")))


def title_of(member: str) -> str:
    """A member's name for people: `linear_tree-0` is "linear tree 1"."""
    kind, _, number = member.partition("-")
    return " ".join([kind.replace("_", " "), *([str(int(number) + 1)] if number.isdecimal() else [])])


def _checked(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise SettingsError(
            f"{path}: cannot be read ({reason}); remove the directory, and the split is predicted again"
        ) from None
