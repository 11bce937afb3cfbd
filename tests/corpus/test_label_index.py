from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from label_indexes import index_of

from axml_ray.corpus.labels.label_index import LabelIndex, write_labels


def test_a_saved_index_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "labels.parquet"
    index = index_of({"Grüße": 3, "tab\there": 2, "🦊": 2}, ["zero"], {"🦊": "fox"})
    index.save(path)
    loaded = LabelIndex.load(path)
    assert (loaded.labels, loaded.names, loaded.trained) == (index.labels, index.names, 3)
    np.testing.assert_array_equal(loaded.counts, index.counts)
    schema = [(field.name, str(field.type)) for field in pq.read_schema(path)]
    assert schema == [("id", "int32"), ("label", "string"), ("name", "string"), ("count", "int64")]
    assert pq.read_table(path)["id"].to_pylist() == [0, 1, 2, 3]


def test_columns_are_written_as_the_index_is(tmp_path: Path) -> None:
    labels = pa.array(["b", "a", "ü"])
    write_labels(tmp_path / "columns.parquet", labels, labels, np.array([3, 2, 0]))
    index_of({"b": 3, "a": 2}, ["ü"]).save(tmp_path / "index.parquet")
    assert (tmp_path / "columns.parquet").read_bytes() == (tmp_path / "index.parquet").read_bytes()
