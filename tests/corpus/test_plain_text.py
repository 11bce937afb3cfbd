"""Plain text: a line is a text without labels, which predictions read and training refuses."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from axml_ray.corpus.preparation.source_stream import blocks_of
from axml_ray.corpus.readers.sources import open_readers
from axml_ray.corpus.readers.text_lines import PlainText
from axml_ray.corpus.records.records import Document, Rejection
from axml_ray.settings import CorpusSettings

CONTENT = b'A cat, "sat".\r\n\r\n \n{"text": 1}\nna\xefve\n' + "Über\tHunde".encode()


def opened(path: Path | str, **settings: Any) -> list[Any]:
    return list(open_readers([path], CorpusSettings.model_construct(**settings), labelled=False))


def test_a_line_is_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + CONTENT)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(CONTENT))
    for name in ("a.txt", "a.txt.gz"):
        for place in (tmp_path / name, (tmp_path / name).as_uri()):
            [reader] = opened(place, source="plain_text")
            first, brace, bad, last = reader.read()
            assert first == Document(text='A cat, "sat".', labels=(), file=str(place), line=1, id=f"{name}:1")
            assert (brace.text, brace.line, last.text, last.id) == ('{"text": 1}', 4, "Über\tHunde", f"{name}:6")
            assert isinstance(bad, Rejection) and bad.line == 5 and "byte 0xef" in bad.reason


def test_the_blocks_of_a_file_are_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\n".join(b"text %d" % number for number in range(200)))
    reader = PlainText(tmp_path / "a.txt")
    parts = list(blocks_of(reader, 100))
    assert len(parts) > 10
    assert [record for part in parts for record in part.read()] == list(reader.read())


def test_a_damaged_and_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(gzip.compress(b"text\n" * 9)[:-9])
    *texts, damaged = PlainText(tmp_path / "a.txt").read()
    assert len(texts) == 9
    assert isinstance(damaged, Rejection) and damaged.line == 10
    (tmp_path / "b.txt").write_bytes(b"")
    assert list(PlainText(tmp_path / "b.txt").read()) == []


def test_training_needs_labels(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A cat.\n")
    for source in ("plain_text", "auto"):
        with pytest.raises(ValueError, match=r"a\.txt: .*no labels.*corpus\.source"):
            open_readers([tmp_path / "a.txt"], CorpusSettings(train=("a.txt",), source=source))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"A cat.\n", "PlainText"),
        (b'\xef\xbb\xbf\n {"text": "t"}\n', "JsonLines"),
        ("\n{".encode("utf-16"), "JsonLines"),
        (b"[\n", "JsonObjects"),
        (b"[1] A cat.\n", "PlainText"),
        (b"{A} cat.\n", "PlainText"),
        (b"", "JsonLines"),
        (gzip.compress(b"A cat.", mtime=0), "PlainText"),
        (b"%PDF-1.7\n", "JsonLines"),
    ],
)
def test_text_files_are_plain_text_unless_they_begin_like_json(tmp_path: Path, content: bytes, kind: str) -> None:
    for name in ("a.txt", "b.TXT.gz"):
        (tmp_path / name).write_bytes(content)
        [reader] = opened(tmp_path / name)
        assert type(reader).__name__ == kind
    (tmp_path / "a.log").write_bytes(content)
    assert type(opened(tmp_path / "a.log")[0]).__name__ == kind
    assert [reader.path.name for reader in opened(tmp_path, source="plain_text")] == ["a.txt", "b.TXT.gz"]


def test_files_without_a_telling_name(tmp_path: Path) -> None:
    for name, content in [("plain", "A cat.\n"), ("json", '{"text": "a"}\n'), ("b.txt", "text,id\nA cat.,7\n")]:
        (tmp_path / name).write_text(content)
    [plain] = opened(tmp_path / "plain")
    [json_lines] = opened(tmp_path / "json")
    [both] = open_readers([tmp_path / "b.txt"], CorpusSettings.model_construct(), labelled=False, otherwise="csv")
    assert [type(reader).__name__ for reader in (plain, json_lines, both)] == [
        "PlainText", "JsonLines", "SeparatedValues"]  # fmt: skip


def test_a_directory_with_plain_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A cat.\n")
    assert [type(reader).__name__ for reader in opened(tmp_path)] == ["PlainText"]
    with pytest.raises(ValueError, match="no file to read"):
        open_readers([tmp_path], CorpusSettings.model_construct())
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n')
    assert [type(reader).__name__ for reader in opened(tmp_path)] == ["PlainText", "JsonLines"]
    # The labels of a pair of files are no texts.
    for name in ("c_raw_texts.txt", "c_labels.txt"):
        (tmp_path / name).write_text("law\n")
    assert [type(reader).__name__ for reader in opened(tmp_path)] == ["PlainText", "JsonLines", "TextPairs"]
