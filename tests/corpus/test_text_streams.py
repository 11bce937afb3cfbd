"""Compressions, encodings and line ends of text files, and files that are no text."""

import bz2
import codecs
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus.preparing import Prepare, error_of

from axml_ray.corpus.preparation.source_stream import blocks_of
from axml_ray.corpus.readers.sources import open_readers
from axml_ray.corpus.records.records import Document, Rejection
from axml_ray.settings import CorpusSettings

LINES = [f'{{"text": "Köln, {number} \N{EURO SIGN}", "labels": ["l{number}"]}}' for number in range(3000)]
JSON = ("\n".join(LINES) + "\n").encode()
CSV = 'text;labels\r\nGrün;a,b\r\n"x\r\ny";c\r\n'.encode()


def zipped(content: bytes, *names: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names or ("folder/a.jsonl", "__MACOSX/._a.jsonl"):
            archive.writestr(name, content)
    return out.getvalue()


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": lambda content: bz2.compress(content[:999]) + bz2.compress(content[999:]),
    "xz": lzma.compress,
    "lzma": lambda content: lzma.compress(content, format=lzma.FORMAT_ALONE),
    "zst": lambda content: pa.compress(content, "zstd", asbytes=True),
    "lz4": lambda content: pa.Codec("lz4").compress(content, asbytes=True),
    "zip": lambda content: zipped(content),
}


def read(path: Path | str, **settings: Any) -> list[Document | Rejection]:
    [reader] = open_readers([path], CorpusSettings(train=("a",), test=("b",), **settings))
    return list(reader.read())


def damage_of(path: Path) -> tuple[int, Rejection]:
    *documents, last = read(path)
    assert isinstance(last, Rejection) and last.line == len(documents) + 1
    return len(documents), last


@pytest.mark.parametrize("kind", COMPRESS)
def test_compressed_files_are_read_whatever_their_name(tmp_path: Path, kind: str) -> None:
    for name in (f"a.jsonl.{kind}", "a.jsonl"):
        path = tmp_path / name
        path.write_bytes(COMPRESS[kind](JSON))
        for place in (path, path.as_uri()):
            documents = read(place)
            assert [(d.line, d.text) for d in documents[-2:] if isinstance(d, Document)] == [
                (2999, "Köln, 2998 €"),
                (3000, "Köln, 2999 €"),
            ]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / f"b.CSV.{kind.upper()}").write_bytes(COMPRESS[kind](CSV))
    assert len(read(tmp_path / "other", csv_delimiter=";")) == 2


def test_zstandard_may_begin_with_a_frame_to_skip(tmp_path: Path) -> None:
    """As pzstd writes it."""
    (tmp_path / "a.jsonl").write_bytes(b"\x50\x2a\x4d\x18\x04\0\0\0size" + COMPRESS["zst"](JSON))
    assert len(read(tmp_path / "a.jsonl")) == 3000


@pytest.mark.parametrize("kind", [kind for kind in COMPRESS if kind not in ("zst", "lz4", "zip")])
@pytest.mark.parametrize("kept", [12, -30])
def test_truncated_files_end_in_a_rejection(tmp_path: Path, kind: str, kept: int) -> None:
    (tmp_path / "a.jsonl").write_bytes(COMPRESS[kind](JSON)[:kept])
    assert "truncated or corrupt" in damage_of(tmp_path / "a.jsonl")[1].reason


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zip"])
def test_corrupt_files_end_in_a_rejection(tmp_path: Path, kind: str) -> None:
    content = bytearray(COMPRESS[kind](JSON))
    begin = len(content) // 4
    content[begin : begin + 9] = b"corrupted"
    (tmp_path / "a.jsonl").write_bytes(content)
    assert "truncated or corrupt" in damage_of(tmp_path / "a.jsonl")[1].reason


PARQUET = io.BytesIO()
pq.write_table(pa.table({"text": ["a"]}), PARQUET)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (zipped(b"<xml/>", "[Content_Types].xml", "xl/workbook.xml"), "CSV"),
        (zipped(b"<xml/>", "mimetype", "content.xml"), "CSV"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "CSV"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "PDF"),
        (zipped(JSON, "a.jsonl", "b.jsonl"), "unpack"),
        (zipped(JSON)[:-30], "zip"),
        (gzip.compress(b"a.jsonl".ljust(257, b"\0") + b"ustar\x0000" + bytes(300), mtime=0), "unpack"),
        (PARQUET.getvalue(), "parquet"),
        (b"7z\xbc\xaf\x27\x1c\0\4", "unpack"),
        (b"\x1f\x9d\x90abc", "uncompress"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.xlsx", "a.csv"])
def test_what_is_no_text_is_one_error(run: Prepare, tmp_path: Path, content: bytes, word: str, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    said = error_of(run, train=(tmp_path / name,), test=(), block_bytes=10)
    assert str(tmp_path / name) in said and word in said and "more)" not in said


UNICODE = {
    "utf-8-sig": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}


@pytest.mark.parametrize("encoding", UNICODE)
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_encodings_of_unicode_are_read(tmp_path: Path, encoding: str, compress: Callable[[bytes], bytes]) -> None:
    plain = encoding.removesuffix("-sig")
    content = UNICODE[encoding] + JSON.decode().encode(plain)
    path = tmp_path / "a.jsonl"
    path.write_bytes(compress(content))
    [reader] = open_readers([path], CorpusSettings(train=(path,)))
    documents = [record for part in blocks_of(reader, 1000) for record in part.read()]
    assert documents == list(reader.read()) and len(documents) == 3000
    assert (documents[-1].text, documents[-1].labels, documents[-1].line) == ("Köln, 2999 €", ("l2999",), 3000)
    path = tmp_path / "a.csv"
    path.write_bytes(compress(UNICODE[encoding] + CSV.decode().encode(plain)))
    rows = read(path.as_uri(), csv_delimiter=";", label_separator=",")
    assert [(d.line, d.text, d.labels) for d in rows if isinstance(d, Document)] == [
        (2, "Grün", ("a", "b")),
        (3, "x\r\ny", ("c",)),
    ]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_byte_order_mark_is_recognised(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(JSON.decode().encode(encoding))
    assert len(read(path)) == 3000
    path.write_bytes(JSON.decode().encode(encoding)[:-1])
    read_before, last = damage_of(path)
    assert read_before > 2800 and encoding in last.reason
    path.write_bytes('{\r\n"text": "t", "labels": []}\r\n'.encode(encoding))
    assert len(read(path)) == 1
    path.write_bytes(b'\0"\0{"text": "t", "labels": []}')  # no UTF-16
    assert isinstance(read(path)[0], Rejection)


def test_half_of_a_surrogate_pair_costs_one_character(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("\ufefftext,labels\na\ud800b,c\n".encode("utf-16-le", "surrogatepass"))
    assert [d.text for d in read(path) if isinstance(d, Document)] == ["a?b"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
@pytest.mark.parametrize("compress", [bytes, bz2.compress])
def test_carriage_returns_end_lines(tmp_path: Path, encoding: str, compress: Callable[[bytes], bytes]) -> None:
    for name, content in (("a.jsonl", "\r".join(LINES)), ("a.csv", "text,labels\r" + "Köln,a;b\r" * 3000)):
        path = tmp_path / name
        path.write_bytes(compress(content.encode(encoding)))
        for place in (path, path.as_uri()):
            records = read(place)
            assert [record.line for record in records] == list(range(1, 3001) if name == "a.jsonl" else range(2, 3002))
            assert all(isinstance(record, Document) and "Köln" in record.text for record in records)
    # Excel for Mac writes line feeds within cells.
    path.write_bytes(compress('text,labels\r"a\nb",x\rc,y\r'.encode(encoding)))
    assert [(r.text, r.labels) for r in read(path) if isinstance(r, Document)] == [("a\nb", ("x",)), ("c", ("y",))]
    # Broken bytes cost their line only.
    path.write_bytes(compress(b"text,labels\rna\xefve,a\rb,c\r"))
    assert [(record.line, type(record)) for record in read(path)] == [(2, Rejection), (3, Document)]


def test_a_carriage_return_within_a_long_line_ends_none(tmp_path: Path) -> None:
    content = f"{'word ' * 9000}\r{'more ' * 9000}\nsecond\n"
    path = tmp_path / "a.txt"
    path.write_text(content)
    [reader] = open_readers([path], CorpusSettings.model_construct(source="plain_text"), labelled=False)
    assert [len(record.text) for record in reader.read()] == [90_000, 6]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.tsv"])
def test_other_encodings_say_how_to_convert(run: Prepare, tmp_path: Path, name: str) -> None:
    content = {
        "a.csv": "text,labels\nnaïve,a\n",
        "a.jsonl": '{"text": "naïve", "labels": ["a"]}\n',
        "a.tsv": "text\tlabels\tÜbersicht\nnaive\ta\tx\n",
    }[name]
    (tmp_path / name).write_bytes(content.encode("cp1252"))
    said = error_of(run, train=(tmp_path / name,), test=())
    assert str(tmp_path / name) in said and "not UTF-8" in said and "iconv -f WINDOWS-1252" in said
