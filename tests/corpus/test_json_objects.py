"""JSON arrays, and objects of several lines: any part of the file is a document, a rejection, or blank."""

import codecs
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.corpus.readers import json_objects
from axml_ray.corpus.readers.json_lines import JsonLines
from axml_ray.corpus.readers.json_objects import JsonObjects
from axml_ray.corpus.readers.sources import open_readers
from axml_ray.corpus.records.records import Document, Fields, Rejection
from axml_ray.settings import CorpusSettings

RECORDS = [
    {"text": 'A "cat" ] } \\', "labels": ["pets", "{"]},
    {"text": "", "labels": [], "id": 7, "x": {"y": [[1], {}]}},
    {"text": "Näive\n", "labels": [3]},
]
FORMS = {
    "compact": lambda records: json.dumps(records),
    "indented": lambda records: json.dumps(records, indent=2, ensure_ascii=False),
    "an object a line": lambda records: "[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n",
    "without an array": lambda records: "\n".join(json.dumps(record, indent=1) for record in records),
}


def opened(path: Path) -> Any:
    [reader] = open_readers([path], CorpusSettings(train=(path,)))
    return reader


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("encode", [bytes, gzip.compress, lambda content: codecs.BOM_UTF8 + content])
def test_documents(tmp_path: Path, form: str, encode: Any) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(encode(FORMS[form](RECORDS).encode()))
    assert isinstance(opened(path), JsonObjects)
    found = list(opened(path).read())
    assert [(one.text, one.labels) for one in found] == [
        (record["text"], tuple(map(str, record["labels"]))) for record in RECORDS
    ]
    assert len({one.id for one in found}) == 3 and found[1].id == "7"


def test_a_record_without_a_text_has_its_id(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        '[{"text": null, "id": 7}, {"text": "a"}, {"text": null}, {"text": 1, "id": true}]'
    )
    records = JsonObjects(tmp_path / "a.json", Fields(labelled=False)).read()
    assert [(record.id, isinstance(record, Rejection)) for record in records] == [
        ("7", True),
        ("a.json:1.2", False),
        ("a.json:1.3", True),
        ("a.json:1.4", True),
    ]


def test_lines_and_ids(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[\n{"text": "a", "labels": []}, {"text": "b", "labels": []},\n\n {"txt": 1}, {"text": "c"\n}, 3]')
    first, second, *bad = JsonObjects(path).read()
    assert [(one.line, one.id) for one in (first, second) if isinstance(one, Document)] == [
        (2, "a.json:2"),
        (2, "a.json:2.2"),
    ]
    assert [one.line for one in bad if isinstance(one, Rejection)] == [4, 4, 5]


@pytest.mark.parametrize(
    ("content", "documents", "line", "reason"),
    [
        (b'[\n{"text": "t", "labels": []}', 1, 2, "does not end"),
        (b'[\n{"text": "t", "labels": []},\n{"text": "u', 1, 3, "not closed"),
        (b'[\n{"text": "t" "labels": []},\n{"text": "u", "labels": []}]', 1, 2, "not JSON"),
        (b'[\n{"text": "t", "labels": []},\n"x"]', 1, 3, "a string"),
        (b'[{"text": "t", "labels": []}]\n}', 1, 2, "not JSON"),
        (b'[{"text": "n\xef", "labels": []}]', 0, 1, "not UTF-8"),
        (b"[\n1234", 0, 2, "a number"),
    ],
)
def test_damage_costs_one_record(tmp_path: Path, content: bytes, documents: int, line: int, reason: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    found = list(opened(path).read())
    assert len([one for one in found if isinstance(one, Document)]) == documents
    bad = [one for one in found if isinstance(one, Rejection)]
    assert bad[0].line == line and reason in bad[0].reason


def test_an_object_without_end_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_objects, "LONGEST_LINE", 1000)
    monkeypatch.setattr(json_objects, "READ_BYTES", 100)
    path = tmp_path / "a.json"
    path.write_text('[{"text": "t", "labels": []},\n{"text": "' + "x" * 5000)
    document, bad = opened(path).read()
    assert isinstance(document, Document)
    assert isinstance(bad, Rejection) and bad.line == 2 and bad.reason.startswith("longer than")


def test_a_truncated_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(json.dumps(RECORDS * 1000, indent=1).encode())[:-9])
    *found, bad = opened(path).read()
    assert len(found) >= 2990
    assert isinstance(bad, Rejection) and "truncated or corrupt" in bad.reason


def test_json_lines_stay_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content in (
        b"",
        b"\n",
        b'{"text": "a", "labels": []}',
        b'{"text": "a"\n{"text": "b", "labels": []}\n',
        b"{}\n{}",
    ):
        path.write_bytes(content)
        assert isinstance(opened(path), JsonLines)


VALUES = st.recursive(st.text('a"\\{}[],\n', max_size=5) | st.integers() | st.none(), st.lists, max_leaves=5)


@given(values=st.lists(VALUES, max_size=5), size=st.integers(1, 40), indent=st.sampled_from([None, 1]))
def test_each_value_is_accounted_for(values: list[Any], size: int, indent: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_objects, "READ_BYTES", size)
        path = Path(folder) / "a.json"
        path.write_text(
            json.dumps([{"text": "t", "labels": [], "x": value} for value in values] + values, indent=indent)
        )
        found = list(JsonObjects(path).read())
    assert [isinstance(one, Document) for one in found] == [True] * len(values) + [False] * len(values)


@given(content=st.binary(max_size=60) | st.text('[]{}",:\\ab1\n', max_size=60).map(str.encode))
def test_any_bytes_are_read_without_a_crash(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.json"
        path.write_bytes(b"[" + content)
        for one in JsonObjects(path).read():
            assert 1 <= one.line <= 1 + content.count(b"\n") + content.count(b"\r")
