import gzip
import json
import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.corpus.preparation.source_stream import blocks_of
from axml_ray.corpus.readers import json_lines, line_blocks
from axml_ray.corpus.readers.json_lines import JsonLines
from axml_ray.corpus.records.records import Document, Fields, Rejection


def good(number: int, size: int = 3) -> bytes:
    return json.dumps({"text": "x" * size, "labels": [f"l{number}"], "id": number}).encode()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=12),
    size=st.integers(1, 300),
    ends=st.booleans(),
    compressed=st.booleans(),
)
def test_the_blocks_of_a_file_are_the_file(sizes: list[int], size: int, ends: bool, compressed: bool) -> None:
    lines = [good(number, length) if length else b"" for number, length in enumerate(sizes)]
    content = b"\n".join(lines) + b"\n" * ends
    with tempfile.TemporaryDirectory() as folder:
        reader = JsonLines(write(Path(folder) / "a.jsonl", gzip.compress(content) if compressed else content))
        parts = list(blocks_of(reader, size))
        assert [record for part in parts for record in part.read()] == list(reader.read())
        assert all(len(part.held) < size + 61 + len(good(0)) for part in parts)


def test_damage_keeps_its_line_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "LONGEST_LINE", 100)
    monkeypatch.setattr(line_blocks, "BLOCK_BYTES", 200)
    content = gzip.compress(b"\n".join([good(0), good(1, 300_000), *map(good, range(2, 3_000))]))
    reader = JsonLines(write(tmp_path / "a.jsonl", content[:-20]))
    parts = list(blocks_of(reader, 1_000))
    records = [record for part in parts for record in part.read()]
    assert records == list(reader.read()) and len(parts) > 100
    assert [type(record) for record in records[:3]] == [Document, Rejection, Document] and records[1].line == 2
    assert isinstance(records[-1], Rejection) and records[-1].line == len(records)


@pytest.mark.parametrize("kept", [3, 9, -4, -1])
def test_truncated_zstd_ends_in_a_rejection(tmp_path: Path, kept: int) -> None:
    content = b"".join(good(number) + b"\n" for number in range(30_000))
    path = write(tmp_path / "cut.jsonl.zst", pa.compress(content, "zstd", asbytes=True)[:kept])
    *documents, last = JsonLines(path).read()
    assert all(isinstance(document, Document) for document in documents)
    assert isinstance(last, Rejection)
    # Three bytes don't tell a compression yet.
    assert "truncated or corrupt" in last.reason or kept == 3
    assert last.line == len(documents) + 1


@pytest.mark.parametrize("kept", [1, 20, -3])
@pytest.mark.parametrize("last", [good(3), '{"text": "añ", "labels": ["é"]}'.encode()[:-3]])
def test_a_last_line_that_is_cut_short_ends_the_file(tmp_path: Path, last: bytes, kept: int) -> None:
    content = good(1) + b"\n" + last[:kept]
    first, end = JsonLines(write(tmp_path / "cut.jsonl", content)).read()
    assert isinstance(first, Document)
    assert isinstance(end, Rejection) and (end.line, end.ends_file) == (2, True)
    # A line that ends was written like that, and a whole one needs no end.
    first, end = JsonLines(write(tmp_path / "cut.jsonl", content + b"\n")).read()
    assert isinstance(end, Rejection) and (end.line, end.ends_file) == (2, False)
    assert isinstance(next(iter(JsonLines(write(tmp_path / "whole.jsonl", good(1))).read())), Document)


def test_a_line_that_is_too_long_costs_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "LONGEST_LINE", 1000)
    monkeypatch.setattr(line_blocks, "BLOCK_BYTES", 200)
    lines = [good(0), good(1, 5000), good(2), good(3, 100), good(4, 400_000)]
    for content in (b"\n".join(lines), b"\n".join(lines) + b"\n"):
        records = list(JsonLines(write(tmp_path / "long.jsonl", content)).read())
        assert [record.line for record in records] == [1, 2, 3, 4, 5]
        assert [isinstance(record, Rejection) for record in records] == [False, True, False, False, True]


def test_a_line_that_is_too_long_may_be_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in half a download of one huge array."""
    monkeypatch.setattr(line_blocks, "LONGEST_LINE", 1000)
    monkeypatch.setattr(line_blocks, "BLOCK_BYTES", 200)
    content = gzip.compress(good(0) + b"\n" + random.Random(0).randbytes(300_000).hex().encode())
    path = write(tmp_path / "cut.json.gz", content[:-1_000])
    assert not json_lines.is_repository_json(path, labelled=True)
    first, long, damaged = JsonLines(path).read()
    assert isinstance(first, Document)
    assert isinstance(long, Rejection) and long.reason.startswith("longer than")
    assert isinstance(damaged, Rejection) and "truncated or corrupt" in damaged.reason


def test_other_fields(tmp_path: Path) -> None:
    path = write(
        tmp_path / "trn.json",
        b'{"uid": "B1", "title": "A title", "content": "and more", "target_ind": [3, 5], "target_rel": [1.0, 1.0]}\n'
        b'{"uid": "B2", "title": null, "content": "", "target_ind": []}\n'
        b'{"uid": "B3", "title": "x", "target_ind": [true], "content": "y"}\n',
    )
    fields = Fields(title="title", text="content", labels="target_ind", id="uid")
    first, second, third = JsonLines(path, fields).read()
    assert isinstance(first, Document)
    assert isinstance(second, Document)
    assert (first.text, first.labels, first.id) == ("A title /SEP/ and more", ("3", "5"), "B1")
    assert (second.text, second.labels) == (" /SEP/ ", ())
    assert isinstance(third, Rejection)
    assert "label 1 is a boolean" in third.reason


def test_without_labels(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", b'{"text": "t"}\n{"text": "u", "labels": true}\n{"text": "v", "labels": ["a"]}\n{}\n'
    )
    *documents, bad = JsonLines(path, Fields(labelled=False)).read()
    assert [document.labels for document in documents if isinstance(document, Document)] == [(), (), ("a",)]
    assert isinstance(bad, Rejection)


@pytest.mark.parametrize("labels", ["[[{0}, {1}]]", '[{{"id": {0}}}, {{"id": {1}}}]', "[{0}, {1}]"])
def test_long_integers_stay_different(tmp_path: Path, labels: str) -> None:
    """They have more digits than a float: labels and ids would become one."""
    long = 123456789012345678901, 123456789012345678902
    field = "labels.id" if "id" in labels else "labels"
    path = write(tmp_path / "a.jsonl", f'{{"text": "t", "labels": {labels.format(*long)}, "id": {long[0]}}}\n'.encode())
    [document] = JsonLines(path, Fields(labels=field)).read()
    assert isinstance(document, Document) and document.labels == tuple(map(str, long)) and document.id == str(long[0])
