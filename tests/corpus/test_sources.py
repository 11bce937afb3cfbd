"""The readers of given files, directories, globs, links and URLs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from s3 import Handler, Object, Server

from axml_ray.corpus.readers.sources import open_readers
from axml_ray.settings import CorpusSettings


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def listed_readers(patterns: Sequence[str | Path], **settings: Any) -> list[Any]:
    return list(
        open_readers(patterns, CorpusSettings(train=("a",), test=("b",), **({"source": "json_lines"} | settings)))
    )


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
        touch(tmp_path / name)

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
        touch(tmp_path / name)
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
        touch(tmp_path / name)
    found = [reader.path.name for reader in listed_readers([f"{tmp_path}/old [1]/**/*json*", f"{tmp_path}/old [1]/b"])]
    assert found == ["a.jsonl", "c.ndjson"]


def test_missing_places_are_named(tmp_path: Path) -> None:
    touch(tmp_path / "folder" / "notes.txt")
    touch(tmp_path / "good.jsonl")
    with pytest.raises(FileNotFoundError, match=r"'.*/none-\*\.jsonl'"):
        listed_readers([tmp_path / "good.jsonl", f"{tmp_path}/none-*.jsonl"])
    with pytest.raises(FileNotFoundError, match=r"missing\.jsonl"):
        listed_readers([tmp_path / "missing.jsonl"])
    with pytest.raises(FileNotFoundError, match=r"fold\*"):
        listed_readers([f"{tmp_path}/fold*"])
    with pytest.raises(ValueError, match=r"in the directory .*folder"):
        listed_readers([tmp_path / "folder"])
