"""Parquet and Arrow files, and saved datasets with their class labels."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from axml_ray.corpus.readers.tables import (
    ArrowRows,
    ParquetRows,
    saved_dataset_readers,
)
from axml_ray.corpus.records.records import Document, Fields, Rejection
from axml_ray.corpus.records.values import labels_of

ROWS = [
    {"id": "a", "text": "A cat.", "labels": ["pets", " cats "]},
    {"id": None, "text": "Näive", "labels": []},
    {"id": "c", "text": None, "labels": ["x"]},
    {"id": "d", "text": "t", "labels": None},
    {"id": "e", "text": "t", "labels": [None]},
]


def table(rows: list[dict[str, Any]] = ROWS) -> pa.Table:
    fields = [("id", pa.string()), ("text", pa.string()), ("labels", pa.list_(pa.string()))]
    return pa.Table.from_pylist(rows, pa.schema(fields))


def check(records: list[Document | Rejection], name: str) -> None:
    documents = [record for record in records if isinstance(record, Document)]
    assert [(d.id, d.text, d.labels, d.line) for d in documents] == [
        ("a", "A cat.", ("pets", "cats"), 1),
        (f"{name}:2", "Näive", (), 2),
        ("d", "t", (), 4),
        ("e", "t", (), 5),
    ]
    assert [(r.line, r.reason) for r in records if isinstance(r, Rejection)] == [(3, "'text' is null, not a string")]


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path, row_group_size=2)
    check(list(ParquetRows(path).read()), "a.parquet")
    parts = ParquetRows(path).split(1)
    assert [part.rows_before for part in parts] == [0, 2, 4]
    check([record for part in parts for record in part.read()], "a.parquet")
    assert [record.line for record in ParquetRows(path).split(1 << 30)[0].read()] == [1, 2, 3, 4, 5]


def test_numbers_are_labels_in_tables(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["x"], "title": ["t"], "tags": [[7, 9]]}), path)
    (document,) = ParquetRows(path, Fields(text="body", title="title", labels="tags")).read()
    assert isinstance(document, Document)
    assert (document.text, document.labels) == ("t /SEP/ x", ("7", "9"))


def test_a_table_without_a_column_is_no_input(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["x"], "labels": [["a"]]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="has no column 'text'; its columns are body, labels"):
        list(ParquetRows(tmp_path / "a.parquet").read())


@pytest.mark.parametrize("reader", [ParquetRows, ArrowRows])
@pytest.mark.parametrize("content", [b"", b"PAR1", b"ARROW1", b"no table at all", b"\xff\xff\xff\xff" * 9])
def test_what_is_no_table_is_a_rejection(tmp_path: Path, reader: Any, content: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    records = list(reader(path).read())
    assert all(isinstance(record, Rejection) for record in records)
    assert len(records) == 1 or (content == b"" and reader is ArrowRows)


def test_a_truncated_stream_keeps_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table().schema) as writer:
        for _ in range(3):
            writer.write_table(table(ROWS[:2]))
    path.write_bytes(path.read_bytes()[:-60])
    *documents, last = ArrowRows(path).read()
    assert len(documents) == 4
    assert isinstance(last, Rejection)
    assert last.line == 5
    assert "damaged" in last.reason


def save_dataset(folder: Path, data: pa.Table, features: dict[str, Any]) -> None:
    """What `datasets.Dataset.save_to_disk` writes."""
    folder.mkdir()
    for number, part in enumerate((data.slice(0, 1), data.slice(1))):
        path = str(folder / f"data-0000{number}-of-00002.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, part.schema) as writer:
            writer.write_table(part)
    files = [{"filename": f"data-0000{number}-of-00002.arrow"} for number in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_fingerprint": "x", "_split": "train"}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


def test_a_saved_dataset_and_its_class_labels(tmp_path: Path) -> None:
    data = pa.table({"text": ["a", "b", "c"], "labels": [[0, 1], [1], [2]]})
    names = {"feature": {"names": ["pets", "cats"], "_type": "ClassLabel"}, "_type": "Sequence"}
    save_dataset(tmp_path / "train", data, {"labels": names, "text": {"dtype": "string", "_type": "Value"}})
    records = [record for reader in saved_dataset_readers(tmp_path / "train", Fields()) for record in reader.read()]
    assert [r.labels for r in records if isinstance(r, Document)] == [("pets", "cats"), ("cats",)]
    assert [r.reason for r in records if isinstance(r, Rejection)] == ["label 1 is 2; the names are of 0 to 1"]
    state = tmp_path / "train" / "state.json"
    state.write_text(json.dumps({"_data_files": [], "_indices_files": [{"filename": "indices.arrow"}]}))
    with pytest.raises(ValueError, match="flatten_indices"):
        saved_dataset_readers(tmp_path / "train", Fields())


CLASS_LABELS = {"names": ["pets", "cats"], "_type": "ClassLabel"}


def with_metadata(data: pa.Table, features: Any) -> pa.Table:
    """Return a table with the metadata that `datasets` writes into each of its files."""
    content = features if isinstance(features, str) else json.dumps({"info": {"features": features}})
    return data.replace_schema_metadata({"huggingface": content})


@pytest.mark.parametrize("feature", [{"feature": CLASS_LABELS, "_type": "List"}, [CLASS_LABELS]])
def test_a_file_has_the_names_of_its_class_labels(tmp_path: Path, feature: Any) -> None:
    data = with_metadata(pa.table({"text": ["a", "b"], "labels": [[0, 1], [1]]}), {"labels": feature})
    pq.write_table(data, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, data.schema) as writer:
        writer.write_table(data)
    for reader in (ParquetRows(tmp_path / "a.parquet"), ArrowRows(tmp_path / "a.arrow")):
        assert [r.labels for r in reader.read() if isinstance(r, Document)] == [("pets", "cats"), ("cats",)]


def test_a_column_of_one_class_label_per_text(tmp_path: Path) -> None:
    data = pa.table({"text": ["a", "b", "c"], "label": [1, 0, -1]})
    save_dataset(tmp_path / "train", data, {"label": CLASS_LABELS})
    readers = saved_dataset_readers(tmp_path / "train", Fields(labels="label"))
    records = [record for reader in readers for record in reader.read()]
    assert [r.labels for r in records if isinstance(r, Document)] == [("cats",), ("pets",)]
    assert len(records) == 3


@pytest.mark.parametrize("metadata", ["not JSON", "[]", '{"info": null}', '{"info": {"features": {"labels": null}}}'])
def test_metadata_of_something_else_gives_no_names(tmp_path: Path, metadata: str) -> None:
    pq.write_table(with_metadata(pa.table({"text": ["a"], "labels": [[1]]}), metadata), tmp_path / "a.parquet")
    (document,) = ParquetRows(tmp_path / "a.parquet").read()
    assert isinstance(document, Document)
    assert document.labels == ("1",)


@given(content=st.binary(max_size=80))
def test_any_bytes_are_read_without_a_crash(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_bytes(content)
        for reader in (ParquetRows, ArrowRows):
            assert all(isinstance(record, Rejection) for record in reader(path).read())


def _bytes_of(parquet: bool) -> bytes:
    out = pa.BufferOutputStream()
    rows = table([{"id": str(i), "text": f"text {i}", "labels": ["a", f"b{i}"]} for i in range(40)])
    if parquet:
        pq.write_table(rows, out, row_group_size=15)
    else:
        with pa.ipc.new_stream(out, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=15)
    return out.getvalue().to_pybytes()


WHOLE = {ParquetRows: _bytes_of(True), ArrowRows: _bytes_of(False)}


@given(damage=st.dictionaries(st.integers(0, 10_000), st.integers(0, 255), min_size=1, max_size=3))
@example(damage={1471: 252})  # an offset outside of its buffer
def test_damaged_tables_are_read_without_a_crash(damage: dict[int, int]) -> None:
    for reader, whole in WHOLE.items():
        content = bytearray(whole)
        for place, byte in damage.items():
            content[place % len(content)] = byte
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a"
            path.write_bytes(content)
            try:
                records = list(reader(path).read())
            except ValueError as error:
                assert "has no column" in str(error)
                continue
            assert len({record.line for record in records}) == len(records)


def test_class_labels_inside_of_objects(tmp_path: Path) -> None:
    features = {"ann": {"feature": {"label": {"names": ["art", "law"], "_type": "ClassLabel"}}, "_type": "Sequence"}}
    data = with_metadata(pa.table({"text": ["a"], "ann": [[{"label": 0}, {"label": 1}]]}), features)
    pq.write_table(data, tmp_path / "a.parquet")
    [record] = ParquetRows(tmp_path / "a.parquet", Fields(labels="ann.label")).read()
    assert isinstance(record, Document) and record.labels == ("art", "law")


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_floats_are_labels_of_their_shortest_decimals(values: list[float]) -> None:
    singles = np.array(values, np.float32)
    data = pa.table({
        "text": ["a"] * 2,
        "labels": pa.array([singles, None], pa.list_(pa.float32())),
        "in": pa.array([{"x": singles[0]}, {"x": None}], pa.struct([("x", pa.float32())])),
    })  # fmt: skip
    expected = labels_of(list(singles), "labels")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.parquet"
        pq.write_table(data, path)
        for name, labels in (("labels", expected), ("in.x", expected[:1])):
            records = list(ParquetRows(path, Fields(labels=name)).read())
            assert [record.labels for record in records if isinstance(record, Document)] == [labels, ()]
