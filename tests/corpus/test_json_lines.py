"""JSON lines: records, their lines and ids, and files that are damaged or compressed."""

import codecs
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
from axml_ray.corpus.readers.text_streams import open_text
from axml_ray.corpus.records.records import Document, Fields, Rejection


def good(number: int, size: int = 3) -> bytes:
    return json.dumps({"text": "x" * size, "labels": [f"l{number}"], "id": number}).encode()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def one_line(tmp_path: Path, content: bytes) -> Document | Rejection:
    (record,) = JsonLines(write(tmp_path / "one.jsonl", content + b"\n")).read()
    return record


def record_lines(count: int) -> bytes:
    records = [{"text": f"text {i}", "labels": [f"label {i % 7}"]} for i in range(count)]
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def test_documents_keep_file_line_and_id(tmp_path: Path) -> None:
    path = write(
        tmp_path / "pets.jsonl",
        b'{"text": "A cat.", "labels": ["pets", " cats ", "pets"], "year": 1999}\n'
        b"\n"
        b' \t\r\n{"labels": [], "text": "Na\xc3\xafve", "id": "n-1"}\r\n'
        b'{"text": "", "labels": ["x"], "id": 0}',
    )
    assert list(JsonLines(path).read()) == [
        Document(text="A cat.", labels=("pets", "cats", "pets"), file=str(path), line=1, id="pets.jsonl:1"),
        Document(text="Naïve", labels=(), file=str(path), line=4, id="n-1"),
        Document(text="", labels=("x",), file=str(path), line=5, id="0"),
    ]


@pytest.mark.parametrize("given_id", ["null", '""', "[null]"])
def test_a_document_without_an_id_has_that_of_its_line(tmp_path: Path, given_id: str) -> None:
    record = one_line(tmp_path, b'{"text": "t", "labels": [], "id": %s}' % given_id.encode())
    assert isinstance(record, Document)
    assert record.id == "one.jsonl:1"


def test_nul_and_lone_surrogates_become_blanks(tmp_path: Path) -> None:
    record = one_line(
        tmp_path, rb'{"text": "a\u0000b \ud83d\ude00 \ud83d", "labels": ["\u0000c\udc00d"], "id": "\u0000"}'
    )
    assert isinstance(record, Document)
    assert (record.text, record.labels, record.id) == ("a b 😀  ", ("c d",), " ")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "t", "labels": ["a"]', "not JSON: Expecting ',' delimiter at character 30"),
        (b'{"text": "t', "not JSON: Unterminated string starting at character 10"),
        (b"cat\tpets", "not JSON: Expecting value at character 1"),
        (b'["t", ["a"]]', "not a JSON object but a list"),
        (b"17", "not a JSON object but a number"),
        (b"null", "not a JSON object but null"),
        (b'{"labels": ["a"]}', "'text' is missing: the fields are 'labels'"),
        (b'{"text": null, "labels": ["a"]}', "'text' is null, not a string"),
        (b'{"text": ["t", 3], "labels": ["a"]}', "'text' is a number, not a string"),
        (b'{"text": {"en": "t"}, "labels": ["a"]}', "such as text.en"),
        (b'{"text": "t", "labels": [], "id": {"$oid": "a"}}', "such as id.$oid"),
        (b'{"text": "t", "labels": [], "id": ["a", "b"]}', "'id', the id, is a list"),
        (b'{"text": "t"}', "'labels' is missing: the fields are 'text'"),
        (b'{"text": "t", "labels": false}', "'labels' is a boolean, not a list"),
        (
            b'{"text": "t", "labels": {"a": 1}}',
            "label 1 is an object, not a string; name one of its fields, such as labels.a",
        ),
        (b'{"text": "t", "labels": [["a", 0.5], ["b", 1]]}', "label 1 is a pair with a number"),
        (b'{"text": "t", "labels": "[(\'a\', 1)]"}', "label 1 is a pair with a number"),
        (b'{"text": "t", "labels": ["a", Infinity]}', "label 2 is a number, not a string: inf"),
        (
            b'{"text": "t", "labels": [true]}',
            "label 1 is a boolean; name the labels that are true, or give each a field",
        ),
        (b'{"text": "na\xefve", "labels": []}', "not UTF-8: byte 0xef at byte 13"),
        (b'{"text": "t", "labels": [], "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
        (b'{"text": "t", "labels": [], "x": ' + b"9" * 5000 + b"}", "4300 digits"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_line_costs_one_record(tmp_path: Path, line: bytes, reason: str) -> None:
    good = b'{"text": "t", "labels": ["a"]}\n'
    path = write(tmp_path / "some.jsonl", good + line + b"\n" + good)
    first, bad, last = JsonLines(path).read()
    assert isinstance(first, Document)
    assert isinstance(last, Document)
    assert last.line == 3
    assert isinstance(bad, Rejection)
    assert (bad.file, bad.line) == (str(path), 2)
    assert reason in bad.reason


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    record = one_line(tmp_path, codecs.BOM_UTF8 + b'{"text": "t", "labels": []}')
    assert isinstance(record, Document)


def test_byte_order_marks_of_files_that_were_put_together_are_no_error(tmp_path: Path) -> None:
    part = b"\xef\xbb\xbf" + b'{"text": "\xef\xbb\xbfa", "labels": ["x"]}\n'
    write(tmp_path / "a.jsonl", part * 3)
    assert [record.text for record in JsonLines(tmp_path / "a.jsonl").read()] == ["\ufeffa"] * 3


def test_gzip_is_told_by_its_bytes(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.jsonl.gz", record_lines(3))
    zipped = write(tmp_path / "b.jsonl", gzip.compress(record_lines(2)) + gzip.compress(record_lines(1)))
    assert len(list(JsonLines(plain).read())) == 3
    assert [(record.line, record.id) for record in JsonLines(zipped).read() if isinstance(record, Document)] == [
        (1, "b.jsonl:1"),
        (2, "b.jsonl:2"),
        (3, "b.jsonl:3"),
    ]


@pytest.mark.parametrize("kept_bytes", [2, 5, 15, 200, 3000, -9, -1])
def test_truncated_gzip_keeps_what_was_read(tmp_path: Path, kept_bytes: int) -> None:
    content = record_lines(1000)
    path = write(tmp_path / "cut.jsonl.gz", gzip.compress(content)[:kept_bytes])
    *documents, last = JsonLines(path).read()
    assert all(isinstance(document, Document) for document in documents)
    assert [document.line for document in documents] == list(range(1, len(documents) + 1))
    assert len(documents) == {-1: 1000, -9: 1000}.get(kept_bytes, len(documents))
    assert (len(documents) > 0) == (kept_bytes not in {2, 5, 15})
    assert isinstance(last, Rejection)
    assert last.line == len(documents) + 1
    assert "truncated or corrupt" in last.reason


@pytest.mark.parametrize("damage", ["deflate", "checksum", "trailing"])
def test_corrupt_gzip_ends_in_a_rejection(tmp_path: Path, damage: str) -> None:
    zipped = bytearray(gzip.compress(record_lines(24_000)))
    if damage == "trailing":
        zipped += b"not gzip"
    else:
        place = slice(len(zipped) // 2, len(zipped) // 2 + 50) if damage == "deflate" else slice(-8, -4)
        zipped[place] = bytes(255 - byte for byte in zipped[place])
    *documents, last = JsonLines(write(tmp_path / "bad.gz", bytes(zipped))).read()
    assert isinstance(last, Rejection)
    assert "truncated or corrupt" in last.reason
    assert len(documents) > 8_000


# Below 40 bytes hypothesis finds few records by itself, so whole lines are mixed in.
LINES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b'{"text": "t", "labels": ["a"]}', b'{"text": "t", "labels": [1]}', b" ", codecs.BOM_UTF8]),
    st.builds(
        lambda text, labels: json.dumps({"text": text, "labels": labels}).encode(),
        st.text(st.characters(), max_size=20),
        st.lists(st.text(st.characters(), max_size=5) | st.integers() | st.none(), max_size=4),
    ),
)


@given(lines=st.lists(LINES, max_size=8))
def test_every_line_is_accounted_for_once(lines: list[bytes]) -> None:
    content = b"\n".join(lines)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "any.jsonl", content)
        try:
            text = open_text(path)
        except ValueError:  # it begins like a PDF or another file that is no text
            with pytest.raises(ValueError):
                list(JsonLines(path).read())
            return
        records = list(JsonLines(path).read())
        with text as stream:
            try:
                content = stream.read()  # decompressed and decoded, should it begin like such a file
            except EOFError:
                assert isinstance(records[-1], Rejection)
                return
    for record in records:
        if isinstance(record, Document):
            "".join((record.text, record.id, *record.labels)).encode("utf-8")
    numbered = enumerate((line.removeprefix(codecs.BOM_UTF8) for line in content.split(b"\n")), start=1)
    assert [record.line for record in records] == [number for number, line in numbered if line.strip()]


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
