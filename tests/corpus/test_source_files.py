import codecs
import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from axml_ray.corpus.readers.source_files import file_size, list_files, local_path
from axml_ray.corpus.readers.sources import _reader, open_readers
from axml_ray.corpus.readers.text_lines import TextPairs
from axml_ray.corpus.readers.text_streams import open_decompressed
from axml_ray.corpus.records.records import Document, Rejection
from axml_ray.settings import CorpusSettings

LINE = b'{"text": "A cat.", "labels": ["pets"]}\n'


def listed(*patterns: str | Path, labelled: bool = True, **settings: Any) -> list[Any]:
    return open_readers(patterns, CorpusSettings(train=("a",), test=("b",), **settings), labelled=labelled)


def test_urls_are_read_through_file_systems(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.jsonl").write_bytes(LINE)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(LINE * 2))
    (tmp_path / "deep" / "c.jsonl.zst").write_bytes(pa.compress(LINE * 3, "zstd", asbytes=True))
    (tmp_path / "deep" / "pre-a.jsonl").write_bytes(LINE * 9)
    (tmp_path / "notes.txt").write_bytes(b"x")
    url = tmp_path.as_uri()
    for pattern, counts in [
        (f"{url}/a.jsonl", [1]),
        (url, [1, 2]),
        (f"{url}/*.jsonl*", [1, 2]),
        (f"{url}/**/*.jsonl*", [1, 2, 3, 9]),
        (f"{url}/**/a.jsonl", [1]),
        (f"{url}/**/deep/**/c*", [3]),
        (f"{url}/deep/**", [3, 9]),
        (f"{url}/de*/*", [3, 9]),
    ]:
        found = listed(pattern)
        assert [len(list(reader.read())) for reader in found] == counts, pattern
        assert all(reader.path.startswith("file://") for reader in found)
    # Names of files may have characters that a URL must escape; those of ids are the files'.
    (tmp_path / "b c").mkdir()
    (tmp_path / "b c" / "100% d.jsonl").write_bytes(LINE)
    for pattern in (f"{url}/b%20c", f"{url}/**/100*"):
        [reader] = listed(pattern)
        [document] = reader.read()
        assert isinstance(document, Document) and document.id == "100% d.jsonl:1" and file_size(reader.path)
    first = next(iter(listed(f"{url}/a.jsonl")[0].read()))
    assert isinstance(first, Document)
    assert (first.id, first.file) == ("a.jsonl:1", f"{url}/a.jsonl")
    assert local_path(f"{url}/a.jsonl") == tmp_path / "a.jsonl"
    assert file_size(f"{url}/a.jsonl") == file_size(tmp_path / "a.jsonl") == (tmp_path / "a.jsonl").stat().st_size


def test_wrong_urls_are_named(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    with pytest.raises(FileNotFoundError, match=r"no file matches 'file://.*/none\.jsonl'"):
        list_files(f"{url}/none.jsonl", (".jsonl",))
    with pytest.raises(FileNotFoundError, match="no file matches"):
        list_files(f"{url}/*.jsonl", (".jsonl",))
    with pytest.raises(ValueError, match=r"no file to read \(\*\.jsonl\)"):
        list_files(url, (".jsonl",))
    with pytest.raises(ValueError, match="nowhere://x"):
        list_files("nowhere://x/y", (".jsonl",))


def test_streams_are_refused(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe.jsonl")
    for stream in (pipe, "/dev/stdin", "/dev/fd/0"):
        with pytest.raises(ValueError, match="stream"):
            list_files(stream, (".jsonl",))


def test_the_format_is_told_by_the_name(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.parquet", "c.csv.GZ", "d.arrow", "e_raw_texts.txt", "f.TSV", "other"):
        (tmp_path / name).write_bytes(b"")
    kinds = ["JsonLines", "ParquetRows", "SeparatedValues", "ArrowRows", "TextPairs", "SeparatedValues"]
    assert [type(reader).__name__ for reader in listed(tmp_path)] == kinds
    assert type(listed(tmp_path / "other")[0]).__name__ == "JsonLines"
    assert type(listed(tmp_path / "other", source="parquet")[0]).__name__ == "ParquetRows"
    assert [reader.path.name for reader in listed(tmp_path, source="csv")] == ["c.csv.GZ", "f.TSV"]
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(ValueError, match="name the directory of one"):
        listed(tmp_path)


def test_the_repositorys_json_is_known_by_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "trn.json.gz"
    record = b'{"uid": "u", "title": "T", "content": "c", "target_ind": [4], "target_rel": [1.0]}\n'
    path.write_bytes(gzip.compress(b"\n" + record))
    (document,) = listed(path)[0].read()
    assert (document.text, document.labels, document.id) == ("T /SEP/ c", ("4",), "u")
    path.write_bytes(gzip.compress(b'{"uid": "u", "title": "T", "content": "c"}\n'))  # new texts
    (document,) = listed(path, labelled=False)[0].read()
    assert (document.text, document.labels, document.id) == ("T /SEP/ c", (), "u")
    path.write_bytes(gzip.compress(record))
    (document,) = listed(path, title_field="uid", text_field="title", labels_field="content", labelled=False)[0].read()
    assert (document.text, document.labels) == ("u /SEP/ T", ("c",))


def test_pairs_of_texts_and_labels(tmp_path: Path) -> None:
    (tmp_path / "train_raw_texts.txt").write_bytes("Title /SEP/ bödy\n\nna".encode() + b"\xef\nlast\n")
    (tmp_path / "train_labels.txt").write_bytes(b"a b a\n\nc\n")
    (reader,) = listed(tmp_path / "train_raw_texts.txt")
    assert reader == TextPairs(tmp_path / "train_raw_texts.txt", tmp_path / "train_labels.txt", reader.fields)
    first, second, bad, unpaired = reader.read()
    assert (first.text, first.labels, first.id) == ("Title /SEP/ bödy", ("a", "b", "a"), "train_raw_texts.txt:1")
    assert (second.text, second.labels) == ("", ())
    assert isinstance(bad, Rejection)
    assert bad.reason.startswith("not UTF-8: byte 0xef at byte 3")
    assert isinstance(unpaired, Rejection)
    assert (unpaired.line, unpaired.reason) == (4, "train_labels.txt has no such line")
    assert len([r for r in listed(reader.path, labelled=False)[0].read() if isinstance(r, Document)]) == 3
    (tmp_path / "train_labels.txt").write_bytes(codecs.BOM_UTF8 + b"a b\n")
    assert next(iter(reader.read())).labels == ("a", "b")
    store = "s3://bucket/train{}.txt?endpoint_override=store:9000&scheme=http"
    for source in ("auto", "text_pairs"):
        found = _reader(
            store.format("_raw_texts"), CorpusSettings.model_construct(source=source), reader.fields, "plain_text"
        )
        assert isinstance(found, TextPairs) and found.labels_path == store.format("_labels")
    with pytest.raises(ValueError, match="expected a name that ends in _raw_texts"):
        listed(tmp_path / "train_labels.txt", source="text_pairs")


def test_plain_bytes_of_each_compression(tmp_path: Path) -> None:
    for name, content in [
        ("a", LINE),
        ("b", gzip.compress(LINE)),
        ("c", pa.compress(LINE, "zstd", asbytes=True)),
        ("d", b""),
    ]:
        (tmp_path / name).write_bytes(content)
        with open_decompressed(tmp_path / name) as file:
            assert file.read() == (LINE if content else b"")


@pytest.mark.parametrize("as_url", [False, True])
def test_a_glob_takes_the_files_of_a_directory_with_a_suffix(tmp_path: Path, as_url: bool) -> None:
    """Spark writes a table as a directory; one of another name is none."""
    for name in ("2020.jsonl/part-0.jsonl", "2020.jsonl/_SUCCESS", "2021.jsonl", "images/a.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(LINE)
    place = tmp_path.as_uri() if as_url else str(tmp_path)
    for pattern in ("*.jsonl", "*"):
        names = [str(reader.path).removeprefix(f"{place}/") for reader in listed(f"{place}/{pattern}")]
        assert names == ["2020.jsonl/part-0.jsonl", "2021.jsonl"]


def test_a_file_and_its_url_are_one_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINE)
    assert len(listed(tmp_path / "a.jsonl", (tmp_path / "a.jsonl").as_uri())) == 1


def test_two_files_of_texts_with_the_same_labels_are_refused(tmp_path: Path) -> None:
    for name in ("train_raw_texts.txt", "train_labels.txt"):
        (tmp_path / name).write_text("x\n")
    assert len(listed(tmp_path)) == len(listed(f"{tmp_path}/train*")) == 1
    both = [tmp_path / "train_labels.txt", tmp_path / "train_raw_texts.txt"]
    assert len(listed(*both, labelled=False)) == 1
    (tmp_path / "train_texts.txt").write_text("x\n")
    with pytest.raises(ValueError, match=r"train_raw_texts\.txt and .*train_texts\.txt .* name one"):
        listed(tmp_path)
