import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from axml_ray.files import read_json, save_tensors, whole_directory, whole_file, write_json


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    with whole_file(path) as temporary:
        temporary.write_bytes(b"new")
        assert not path.exists()
        assert temporary.parent == path.parent  # a rename across file systems wouldn't be atomic
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["model.bin"]


def test_a_failure_leaves_the_older_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as temporary:
        temporary.write_bytes(b"ne")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["model.bin"]


def test_a_block_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "model.bin"):
        pass
    assert names(tmp_path) == []


def test_a_directory_appears_when_it_is_whole_and_replaces_the_older_one(tmp_path: Path) -> None:
    path = tmp_path / "new parent" / "corpus"
    for content in ("first", "second"):
        with whole_directory(path) as temporary:
            (temporary / content).write_text(content)
            assert not (path / content).exists()
        assert names(path) == [content]
        assert names(path.parent) == ["corpus"]


def test_a_failure_leaves_the_older_directory_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(KeyboardInterrupt), whole_directory(path) as temporary:
        (temporary / "new").touch()
        raise KeyboardInterrupt
    assert names(path) == ["old"]
    assert names(tmp_path) == ["corpus"]


def test_a_failed_first_directory_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop"), whole_directory(tmp_path / "corpus") as temporary:
        (temporary / "new").touch()
        raise ValueError("stop")
    assert names(tmp_path) == []


def test_json_makes_the_round_trip_as_readable_text(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    content = {"name": "Grüße 🦊", "numbers": [1, 2.5, None]}
    write_json(path, content)
    assert read_json(path) == content
    assert "Grüße 🦊" in path.read_text(encoding="utf-8")
    with pytest.raises(TypeError):
        write_json(path, {"set": {1}})
    assert read_json(path) == content


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\xff\xfe"])
def test_what_is_not_json_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json: not valid JSON") as caught:
        read_json(path)
    assert not isinstance(caught.value, json.JSONDecodeError)


def test_tensors_are_as_readable_as_any_new_file(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain", tmp_path / "some.safetensors"
    plain.touch()
    for _ in range(2):  # the second replaces the first
        save_tensors({"one": torch.arange(3)}, path, {"key": "value"})
        assert path.stat().st_mode == plain.stat().st_mode
    assert torch.equal(load_file(path)["one"], torch.arange(3))
    assert names(tmp_path) == ["plain", "some.safetensors"]


def test_a_link_to_a_directory_stays_and_what_a_kill_left_goes(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "current").symlink_to("v1")
    (tmp_path / ".v1.0123abcd.old").mkdir()
    with whole_directory(tmp_path / "current") as temporary:
        (temporary / "new").touch()
    assert (tmp_path / "current").is_symlink()
    assert names(tmp_path) == ["current", "v1"] and names(tmp_path / "v1") == ["new"]


def test_a_directory_that_cannot_be_replaced_is_told_before_the_work() -> None:
    with pytest.raises(OSError, match="a volume is mounted here; choose a directory in it"), whole_directory(Path("/")):
        pytest.fail("it began")


KILLED = """
import sys, time
from pathlib import Path
from axml_ray.files import whole_directory

with whole_directory(Path(sys.argv[1])) as work:
    (work / "part").touch()
    print("here", flush=True)
    time.sleep(600)
"""


@pytest.mark.processes
def test_what_a_killed_writer_left_is_removed_and_one_that_still_writes_is_let_be(tmp_path: Path) -> None:
    path = tmp_path / "test"
    other = tmp_path / ".test.0123456.old-ish"  # no name of ours
    other.mkdir()
    process = subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    with whole_directory(path) as work:
        assert len(names(tmp_path)) == 3
        (work / "mine").touch()
    [left] = [name for name in names(tmp_path) if name not in ("test", other.name)]
    process.kill()
    process.wait()
    with whole_directory(path) as work:
        assert left not in names(tmp_path)
        (work / "again").touch()
    assert names(path) == ["again"]
    assert names(tmp_path) == sorted(["test", other.name])


def test_a_name_in_json_need_not_be_utf_8(tmp_path: Path) -> None:
    content = {"é": os.fsdecode(b"M\xfcnchen.jsonl")}
    write_json(tmp_path / "job.json", content)
    assert read_json(tmp_path / "job.json") == content
    write_json(tmp_path / "job.json", {"é": "ü"})
    assert "é" in (tmp_path / "job.json").read_text(encoding="utf-8")
