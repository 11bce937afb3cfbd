import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from axml_ray.corpus.label_index import LabelIndex, read_names, write_labels
from axml_ray.settings import SettingsError


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


def test_names_are_read(tmp_path: Path) -> None:
    path = tmp_path / "names.tsv"
    path.write_bytes("\ufeffc_1\tbutter and\u2028cheese\r\n\n c_2 \t a\tb \nc_3\t\n".encode())
    assert read_names(path) == {"c_1": "butter and\u2028cheese", "c_2": "a\tb", "c_3": "c_3"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "names.tsv holds no labels; expected lines of label, tab, name"),
        (b"\n \n", "names.tsv holds no labels"),
        (b"a\tb\nc d\n", "names.tsv:2: expected label, tab, name; found no tab"),
        (b"a\tb\nc\t\xe9\n", "names.tsv:2: not UTF-8"),
        (None, "names.tsv cannot be read: [Errno 2] No such file"),
    ],
)
def test_wrong_files_of_names(tmp_path: Path, content: bytes | None, expected: str) -> None:
    path = tmp_path / "names.tsv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        read_names(path)
    assert str(caught.value).startswith("corpus.label_names: ")
    assert expected in str(caught.value)


def test_names_by_number(tmp_path: Path) -> None:
    path = tmp_path / "Yf.txt"
    path.write_text("First label\n\n Third \n", encoding="utf-8")
    assert read_names(path) == {"0": "First label", "1": "1", "2": "Third"}
    path.write_bytes(gzip.compress(b'{"uid": "a", "title": "First"}\n{"uid": "b", "title": "Second"}\n'))
    assert read_names(path) == {"0": "First", "1": "Second"}
    path.write_bytes(b'{"title": "First"}\n{"uid": "b"}\n')
    with pytest.raises(SettingsError, match=r"Yf\.txt:2: expected an object with a title"):
        read_names(path)
    path.write_bytes(b'{"title": "First"}\n{"title": null}\n')
    with pytest.raises(SettingsError, match=r"Yf\.txt:2: expected an object with a title, a string"):
        read_names(path)
    path.write_bytes(b'{"title": "caf\\ud83d"}\n')  # half of a character, which Arrow doesn't hold
    assert read_names(path) == {"0": "caf"}
    path.write_bytes(gzip.compress(b"a\tb\n" * 99)[:-9])
    with pytest.raises(SettingsError, match=r"Yf\.txt cannot be read"):
        read_names(path)


def test_columns_are_written_as_the_index_is(tmp_path: Path) -> None:
    (tmp_path / "names.tsv").write_text("b\tBee\nunused\tx\n", encoding="utf-8")
    labels = pa.array(["b", "a", "ü"])
    write_labels(tmp_path / "columns.parquet", labels, np.array([3, 2, 0]), tmp_path / "names.tsv")
    LabelIndex.build({"b": 3, "a": 2}, ["ü"], {"b": "Bee"}).save(tmp_path / "index.parquet")
    assert (tmp_path / "columns.parquet").read_bytes() == (tmp_path / "index.parquet").read_bytes()
