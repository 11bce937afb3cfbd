"""Ids of documents are distinct: those of files by themselves, and repeated ones of the user's own are an error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus.preparing import Prepare, error_of, ids, lines, many

from axml_ray.corpus.readers.json_lines import JsonLines
from axml_ray.corpus.readers.sources import name_apart, open_readers
from axml_ray.settings import CorpusSettings


def names(*paths: str | Path) -> list[str]:
    return [reader.fields.file_name(reader.path) for reader in name_apart([JsonLines(path) for path in paths])]


def test_files_of_one_name_are_told_apart_by_the_directories_that_differ() -> None:
    assert names(Path("/p/a/x.jsonl"), Path("/p/b/y.jsonl")) == ["x.jsonl", "y.jsonl"]
    assert names(Path("/p/a/x.jsonl"), Path("/p/b/x.jsonl"), Path("/p/b/y.jsonl")) == [
        "a/x.jsonl",
        "b/x.jsonl",
        "y.jsonl",
    ]
    assert names(Path("/p/a/v/x.jsonl"), Path("/p/b/v/x.jsonl")) == ["a/v/x.jsonl", "b/v/x.jsonl"]
    assert names(Path("/q/a/v/x.jsonl"), Path("/q/b/v/x.jsonl")) == ["a/v/x.jsonl", "b/v/x.jsonl"]
    assert names(Path("/x.jsonl"), Path("/b/x.jsonl")) == ["/x.jsonl", "b/x.jsonl"]
    assert names("s3://bucket/a/x.jsonl?scheme=http", Path("/b/x.jsonl")) == ["a/x.jsonl", "b/x.jsonl"]
    assert names(Path("/a/load?id=1"), Path("/a/load?id=2")) == ["load?id=1", "load?id=2"]
    assert names("s3://one/x.jsonl", "s3://other/x.jsonl?scheme=http") == ["one/x.jsonl", "other/x.jsonl"]
    assert names() == []


def write(path: Path, content: bytes | pa.Table) -> Path:
    path.parent.mkdir(exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        pq.write_table(content, path)
    return path


def without_ids(count: int, tag: str) -> bytes:
    return b"".join(json.dumps({"text": f"{tag} {i}", "labels": ["all"]}).encode() + b"\n" for i in range(count))


TABLE = pa.table({"text": ["t0", "t1"], "labels": [["all"], ["all"]]})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl", without_ids(2, "t")),
        ("x.json", b"\n" + without_ids(1, "t") + b'{"text": "caf\\ud83d", "labels": ["all"]}\n'),
        ("x.parquet", TABLE),
        ("x.csv", b"text,labels\na,all\nb,all\n"),
        ("x_texts.txt", b"a\nb\n"),
    ],
)
def test_all_formats(tmp_path: Path, name: str, content: Any) -> None:
    for folder in ("a", "b"):
        write(tmp_path / folder / name, content)
        write(tmp_path / folder / "x_labels.txt", b"all\nall\n")
    readers = open_readers([tmp_path / "*" / name], CorpusSettings(train=("a",)), labelled=True)
    found = [(Path(record.file).parent.name, record.id) for reader in readers for record in reader.read()]
    assert len(found) == len({each for _, each in found}) == 4
    assert all(each.startswith(f"{folder}/{name}:") for folder, each in found)


def test_files_of_all_splits_are_told_apart(run: Prepare, tmp_path: Path) -> None:
    files = {split: write(tmp_path / split / "part.jsonl", without_ids(4, split)) for split in ("one", "two", "test")}
    corpus = run(train=(files["one"], files["two"]), test=(files["test"],), valid_documents=1)
    found = sorted([*ids(corpus, "train"), *ids(corpus, "valid")])
    assert found == [f"{folder}/part.jsonl:{i}" for folder in ("one", "two") for i in range(1, 5)]
    assert ids(corpus, "test") == [f"test/part.jsonl:{i}" for i in range(1, 5)]


def test_a_repeated_id_names_both_lines(run: Prepare, tmp_path: Path) -> None:
    one = write(tmp_path / "1.jsonl", b"\n" + lines(many(20)))
    two = write(tmp_path / "2.jsonl", lines(many(20, "other"), 18))
    said = error_of(run, train=(one, two), block_bytes=200)
    assert said.startswith("corpus.train: ") and f"{one}:20 and {two}:1 " in said and "'d18'" in said
    assert "corpus.id_field" in said
    assert len(ids(run(train=(one, two), id_field="none"), "train")) > 20


def test_ids_that_are_repeated_without_harm(run: Prepare, tmp_path: Path) -> None:
    """In files of another split, and of equal texts that are kept once."""
    records = many(20)
    twice = write(tmp_path / "twice.jsonl", lines(records) + lines(records))
    corpus = run(train=(twice,), test=lines(many(5, "test")), drop_duplicates=True)
    assert len(ids(corpus, "test")) == 5 and len({*ids(corpus, "train"), *ids(corpus, "valid")}) == 20
    assert "twice.jsonl:21" in error_of(run, train=(twice,))


def test_equal_hashes_of_different_ids_are_no_repetition(run: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("axml_ray.corpus.preparation.staging.id_hashes", lambda names: np.zeros(len(names), np.uint64))
    assert len(ids(run(train=many(20), test=many(4, "test")), "train")) == 18
