import codecs
import gzip
import json
import pickle
import tempfile
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from s3 import Handler, Object, Server

from axml_ray.corpus.readers.json_lines import JsonLines
from axml_ray.corpus.readers.sources import (
    Document,
    InstalledPackage,
    Rejection,
    installed_package_readers,
    open_readers,
)
from axml_ray.corpus.readers.text_streams import open_text
from axml_ray.settings import CorpusSettings

DOC = " ".join(f"word{number}" for number in range(25))
SHORT_DOC = " ".join(f"word{number}" for number in range(24))


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else textwrap.dedent(content).encode())
    return path


def one_line(tmp_path: Path, content: bytes) -> Document | Rejection:
    (record,) = JsonLines(write(tmp_path / "one.jsonl", content + b"\n")).read()
    return record


def record_lines(count: int) -> bytes:
    records = [{"text": f"text {i}", "labels": [f"label {i % 7}"]} for i in range(count)]
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def listed_readers(patterns: Sequence[str | Path], **settings: Any) -> list[Any]:
    return list(
        open_readers(patterns, CorpusSettings(train=("a",), test=("b",), **({"source": "json_lines"} | settings)))
    )


# JSON lines


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


def test_readers_of_files_globs_and_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        "b.jsonl",
        "a.json",
        "c.jsonl.gz",
        "d.json.gz",
        "e.txt",
        ".hidden.jsonl",
        "deep/f.jsonl",
        "[1].jsonl",
    ]
    for name in names:
        write(tmp_path / name, b"")

    def listed(*patterns: str | Path) -> list[str]:
        return [str(reader.path.relative_to(tmp_path)) for reader in listed_readers(patterns)]

    assert listed(tmp_path) == ["[1].jsonl", "a.json", "b.jsonl", "c.jsonl.gz", "d.json.gz"]
    assert listed(f"{tmp_path}/*.txt", tmp_path / "b.jsonl", f"{tmp_path}/b*") == ["b.jsonl", "e.txt"]
    assert listed(f"{tmp_path}/**/*.jsonl") == ["[1].jsonl", "b.jsonl", "deep/f.jsonl"]
    assert listed(tmp_path / "[1].jsonl") == ["[1].jsonl"]
    assert listed(tmp_path / ".hidden.jsonl") == [".hidden.jsonl"]
    monkeypatch.chdir(tmp_path)
    assert listed("b.jsonl", tmp_path / "b.jsonl", "dee*/*") == ["b.jsonl", "deep/f.jsonl"]
    assert listed_readers([]) == []


def test_a_file_is_read_once_whatever_links_lead_to_it(tmp_path: Path) -> None:
    for name in ("a.jsonl", "train_raw_texts.txt", "train_labels.txt", "other_labels.txt"):
        write(tmp_path / name, b"")
    (tmp_path / "latest.jsonl").symlink_to("a.jsonl")
    (tmp_path / "z").symlink_to(tmp_path)
    (tmp_path / "other_raw_texts.txt").symlink_to("train_raw_texts.txt")  # with other labels
    readers = listed_readers([tmp_path, tmp_path / "z", f"{tmp_path}/z/*.jsonl"], source="auto")
    found = [reader.path.name for reader in readers]
    assert found == ["a.jsonl", "other_raw_texts.txt", "train_raw_texts.txt"]


def test_a_saved_data_set_at_a_url(bucket: Any, tmp_path: Path) -> None:
    """That of a local file is read like its path; of one in a store the files are named."""
    (tmp_path / "train").mkdir()
    data = pa.table({"text": ["a", "b"], "labels": [["x"], ["y"]]})
    for name in ("data.arrow", "cache-1.arrow"):
        with pa.OSFile(str(tmp_path / "train" / name), "wb") as file, pa.ipc.new_stream(file, data.schema) as writer:
            writer.write_table(data)
    (tmp_path / "train" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    [reader] = open_readers((f"file://{tmp_path}/train",), CorpusSettings(train=("x",)))
    assert reader.path == tmp_path / "train" / "data.arrow"
    for name in ("state.json", "data.arrow"):
        bucket.write(f"data/train/{name}", (tmp_path / "train" / name).read_bytes())
    for source in ("auto", "datasets"):
        with pytest.raises(ValueError, match=r"data-\*\.arrow"):
            open_readers((f"s3://{bucket.name}/data/train",), CorpusSettings(train=("x",), source=source))


def test_a_file_at_a_url_needs_only_the_right_to_read_it(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not list a bucket is refused what is not there."""

    class Guard(Handler):
        def object_head(self, bucket: Any, key: str, query: dict[str, str], body: bytes) -> None:
            if key not in bucket:
                return self.fail(403, "AccessDenied")
            return super().object_head(bucket, key, query, body)

    server = Server()
    server.RequestHandlerClass = Guard
    server.buckets["guarded"] = {"train.jsonl": Object(b'{"text": "a", "labels": ["x"]}\n')}
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    [reader] = open_readers(("s3://guarded/train.jsonl",), CorpusSettings(train=("x",)))
    assert [record.text for record in reader.read()] == ["a"]


def test_a_glob_below_a_directory_with_brackets(tmp_path: Path) -> None:
    for name in ("old [1]/a.jsonl", "old [1]/b/c.ndjson", "old 1/no.jsonl"):
        write(tmp_path / name, b"")
    found = [reader.path.name for reader in listed_readers([f"{tmp_path}/old [1]/**/*json*", f"{tmp_path}/old [1]/b"])]
    assert found == ["a.jsonl", "c.ndjson"]


def test_missing_places_are_named(tmp_path: Path) -> None:
    write(tmp_path / "folder" / "notes.txt", b"")
    write(tmp_path / "good.jsonl", b"")
    with pytest.raises(FileNotFoundError, match=r"'.*/none-\*\.jsonl'"):
        listed_readers([tmp_path / "good.jsonl", f"{tmp_path}/none-*.jsonl"])
    with pytest.raises(FileNotFoundError, match=r"missing\.jsonl"):
        listed_readers([tmp_path / "missing.jsonl"])
    with pytest.raises(FileNotFoundError, match=r"fold\*"):
        listed_readers([f"{tmp_path}/fold*"])
    with pytest.raises(ValueError, match=r"in the directory .*folder"):
        listed_readers([tmp_path / "folder"])


# Installed packages


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    """A site-packages folder in which every rule of the reader has a case."""
    site = tmp_path / "test_site" / "site-packages"
    write(
        site / "zoo" / "sparse" / "_big" / "_csr.py",
        f'''
        def load(path, /, mode="r", *rest, limit=None, **options):
            """{DOC}"""

        def brief(x):
            """{SHORT_DOC}"""

        class Cage(Base):
            """Cage.

               Indented: {DOC}
            """

            def __init__(self, size, path=None): ...

            if True:
                @staticmethod
                async def open(key, size):
                    """Open. {DOC}"""

            @classmethod
            def _make(cls, *, cls_name):
                """Make. {DOC}"""
                def step(self, n):
                    """Step. {DOC}"""

            class Lock:
                """Lock. {DOC}"""
        ''',
    )
    write(site / "zoo" / "__init__.py", f'def f():\n    "f {DOC} \\ud800\\0"\n')
    write(site / "zoo" / "a" / "b" / "c" / "d" / "e.py", f'def g(): "{DOC}"\n')
    for skipped in [
        *(
            "zoo/tests/util.py",
            "zoo/a/testing/util.py",
            "zoo/_tests/x.py",
            "zoo/test/x.py",
            "tests/helper.py",
        ),
        *(
            "zoo/test_a.py",
            "zoo/a_test.py",
            "zoo/conftest.py",
            "_hidden/a.py",
            "_hidden_module.py",
            "pip/a.py",
        ),
        *("setuptools/a.py", "pkg_resources/a.py", "_distutils_hack/a.py", "wheel/a.py", "axml_ray/a.py"),
        *("zoo-1.0.dist-info/a.py", "zoo.egg-info/a.py", "__pycache__/a.py", "zoo-stubs/a.py", "zoo/a.pyi"),
    ]:
        write(site / skipped, f'def skipped(): "{DOC}"\n')
    write(site / "broken" / "python2.py", "print 'hello'\n")
    write(site / "broken" / "nul.py", b"x = 1\0\n")
    write(site / "broken" / "latin.py", b"x = '\xe9'\n")
    write(site / "broken" / "codec.py", b"# coding: no-such-codec\n")
    write(site / "broken" / "deep.py", "(" * 50_000 + ")" * 50_000)
    write(site / "broken" / "deep_minus.py", "-" * 200_000 + "1")
    write(site / "broken" / "warns.py", f'def h(): "{DOC}"\nx = "\\d" is 1\n')
    write(site / "single.py", f'# coding: latin-1\ndef k(ø): "Ø {DOC}"\n'.encode("latin-1"))
    return site


def test_labels_of_installed_packages(site_packages: Path) -> None:
    readers = installed_package_readers(site_packages)
    assert [reader.path.name for reader in readers] == ["broken", "single.py", "tests", "zoo"]
    records = [record for reader in readers for record in reader.read()]
    assert all(isinstance(record, Document) for record in records)
    sparse = ("zoo", "zoo.sparse")
    assert [(record.id, record.labels) for record in records if isinstance(record, Document)] == [
        ("broken/warns.py:1", ("broken", "broken.warns")),
        ("single.py:2", ("single", "ø")),
        ("zoo/__init__.py:1", ("zoo",)),
        ("zoo/a/b/c/d/e.py:1", ("zoo", "zoo.a", "zoo.a.b", "zoo.a.b.c")),
        ("zoo/sparse/_big/_csr.py:2", (*sparse, "path", "mode", "rest", "limit", "options")),
        ("zoo/sparse/_big/_csr.py:8", (*sparse, "Cage", "size", "path")),
        ("zoo/sparse/_big/_csr.py:18", (*sparse, "Cage", "key", "size")),
        ("zoo/sparse/_big/_csr.py:22", (*sparse, "Cage", "cls_name")),
        ("zoo/sparse/_big/_csr.py:24", (*sparse, "n")),
        ("zoo/sparse/_big/_csr.py:27", (*sparse, "Lock")),
    ]


def test_texts_of_installed_packages(site_packages: Path) -> None:
    texts = {
        record.id: record.text
        for reader in installed_package_readers(site_packages)
        for record in reader.read()
        if isinstance(record, Document)
    }
    assert texts["zoo/__init__.py:1"] == f"f {DOC}   "
    assert texts["zoo/sparse/_big/_csr.py:8"] == f"Cage.\n\nIndented: {DOC}"
    assert texts["single.py:2"] == f"Ø {DOC}"


def test_sources_that_do_not_parse_are_skipped_quietly(site_packages: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records = list(InstalledPackage(site_packages / "broken").read())
    assert [record.line for record in records] == [1]


def test_missing_and_empty_site_packages(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        installed_package_readers(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no installed package"):
        installed_package_readers(tmp_path)


def test_readers_and_records_travel_to_tasks(site_packages: Path, tmp_path: Path) -> None:
    lines = JsonLines(write(tmp_path / "a.jsonl", record_lines(1) + b"bad\n"))
    for reader in (lines, InstalledPackage(site_packages / "zoo")):
        assert pickle.loads(pickle.dumps(reader)) == reader
        records = list(reader.read())
        assert pickle.loads(pickle.dumps(records)) == records


@pytest.mark.slow  # reads all of SciPy
def test_this_environment_is_a_corpus() -> None:
    readers = {reader.path.name: reader for reader in installed_package_readers()}
    assert {"scipy", "numpy", "torch", "ray"} <= set(readers)
    assert readers.keys().isdisjoint({"pip", "setuptools", "_pytest", "axml_ray"})
    documents = [record for record in readers["scipy"].read() if isinstance(record, Document)]
    assert len(documents) > 2000
    assert len({document.id for document in documents}) == len(documents)
    assert all(document.labels[0] == "scipy" for document in documents)
    (expm_multiply,) = (d for d in documents if d.text.startswith("Compute the action of the matrix exponential of A"))
    assert expm_multiply.id.startswith("scipy/sparse/linalg/_expm_multiply.py:")
    assert expm_multiply.labels == (
        *("scipy", "scipy.sparse", "scipy.sparse.linalg"),
        *("A", "B", "start", "stop", "num", "endpoint", "traceA"),
    )
