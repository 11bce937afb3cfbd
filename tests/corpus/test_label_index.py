from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from axml_ray.corpus.labels.label_index import LabelIndex, write_labels


def test_labels_are_ranked_by_training_frequency_then_name() -> None:
    index = LabelIndex.build({"b": 2, "a": 2, "z": 7}, ["new", "b", "Neu"], {"z": "Zebra", "unused": "x"})
    assert index.labels == ("z", "a", "b", "Neu", "new")
    assert index.names == ("Zebra", "a", "b", "Neu", "new")
    assert index.counts.tolist() == [7, 2, 2, 0, 0]
    assert index.counts.dtype == np.int64
    assert (len(index), index.trained) == (5, 3)


def test_the_order_in_which_labels_were_met_changes_nothing() -> None:
    one, other = LabelIndex.build({"a": 1, "b": 1}, ["d", "c"]), LabelIndex.build({"b": 1, "a": 1}, ["c", "d"])
    assert one.labels == other.labels == ("a", "b", "c", "d")


def test_encoded_labels_are_sorted_distinct_and_known() -> None:
    index = LabelIndex.build({"a": 3, "b": 2, "c": 1})
    rows = index.encode([["c", "a", "c"], [], ["unheard of"], ("b", "x")])
    assert [rows[i].tolist() for i in range(4)] == [[0, 2], [], [], [1]]
    assert rows.values.dtype == np.int32
    assert len(index.encode([])) == 0


def test_a_saved_index_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "labels.parquet"
    index = LabelIndex.build({"Grüße": 3, "tab\there": 2, "🦊": 2}, ["zero"], {"🦊": "fox"})
    index.save(path)
    loaded = LabelIndex.load(path)
    assert (loaded.labels, loaded.names, loaded.trained) == (index.labels, index.names, 3)
    np.testing.assert_array_equal(loaded.counts, index.counts)
    schema = [(field.name, str(field.type)) for field in pq.read_schema(path)]
    assert schema == [("id", "int32"), ("label", "string"), ("name", "string"), ("count", "int64")]
    assert pq.read_table(path)["id"].to_pylist() == [0, 1, 2, 3]


def test_columns_are_written_as_the_index_is(tmp_path: Path) -> None:
    write_labels(tmp_path / "columns.parquet", pa.array(["b", "a", "ü"]), np.array([3, 2, 0]))
    LabelIndex.build({"b": 3, "a": 2}, ["ü"]).save(tmp_path / "index.parquet")
    assert (tmp_path / "columns.parquet").read_bytes() == (tmp_path / "index.parquet").read_bytes()
