import errno
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from axml_ray.core.files import (
    clear_leftovers,
    finish_replacement,
    read_json,
    reserve_space,
    save_tensors,
    whole_directory,
    whole_file,
    write_json,
    write_json_once,
)


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


def test_the_first_content_stays(tmp_path: Path) -> None:
    path = tmp_path / "choice.json"
    with ThreadPoolExecutor(8) as threads:
        chosen = set(threads.map(lambda number: write_json_once(path, number), range(8)))
    assert len(chosen) == 1 and chosen == {write_json_once(path, 9)}
    assert names(tmp_path) == [path.name]


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


STOPPED = """
import os, signal, sys
from pathlib import Path
from axml_ray.core.files import whole_directory

renamed, rename = 0, Path.rename

def stop():
    if sys.argv[3] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("stopped")

def counted(path, target):
    global renamed
    renamed += 1
    if renamed > int(sys.argv[2]):
        stop()
    return rename(path, target)

with whole_directory(Path(sys.argv[1])) as work:
    (work / "new").touch()
    Path.rename = counted
if sys.argv[3] == "kill":
    stop()
"""


@pytest.mark.processes
@pytest.mark.parametrize("how", ["kill", "raise"])
@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_stop_between_the_renames_loses_neither_the_old_nor_the_new(tmp_path: Path, renames: int, how: str) -> None:
    path = tmp_path / "corpus"
    path.mkdir()
    (path / "old").touch()
    command = [sys.executable, "-c", STOPPED, str(path), str(renames), how]
    done = subprocess.run(command, stderr=subprocess.PIPE)
    assert done.returncode == (-signal.SIGKILL if how == "kill" else int(renames < 2))
    clear_leftovers(path)
    assert names(tmp_path) == ["corpus"]
    assert names(path) == (["new"] if renames else ["old"])


@pytest.mark.parametrize(
    ("left", "kept"),
    [
        ({".a.0123abcd.old": "old", ".a.0123abcd": "new"}, "new"),
        ({".a.0123abcd.old": "old"}, "old"),
        ({".a.0123abcd.old": "old", ".a.0123abcd": "new", ".a.89abcdef": "half"}, "new"),
        ({".a.0123abcd": "half"}, None),
        ({"a": "new", ".a.0123abcd.old": "old"}, "new"),
        ({"a": "old", ".a.0123abcd": "half"}, "old"),
    ],
)
def test_what_is_left_of_a_replacement_is_finished_or_removed(
    tmp_path: Path, left: dict[str, str], kept: str | None
) -> None:
    for name, content in left.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / content).touch()
    clear_leftovers(tmp_path / "a")
    assert names(tmp_path) == ([] if kept is None else ["a"])
    assert kept is None or names(tmp_path / "a") == [kept]


def test_a_reader_opens_what_a_kill_left_without_a_name(tmp_path: Path) -> None:
    for name, content in ((".a.0123abcd.old", "old"), (".a.0123abcd", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / content).touch()
    finish_replacement(tmp_path / "a")
    assert names(tmp_path / "a") == ["new"]
    (tmp_path / ".a.89abcdef").mkdir()
    finish_replacement(tmp_path / "a")
    assert names(tmp_path) == [".a.89abcdef", "a"]  # a reader has no business with others' copies


def write_with_tensors(path: Path) -> None:
    save_tensors({"one": torch.zeros(1 << 20)}, path)


def write_with_numpy(path: Path) -> None:
    np.save(path.with_suffix(".npy"), np.ones(1 << 20))


def write_with_arrow(path: Path) -> None:
    pq.write_table(pa.table({"a": np.random.default_rng(0).random(1 << 19)}), path)


def write_with_a_map(path: Path) -> None:
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(1 << 20,))
    reserve_space(path)
    array[:] = 1  # would kill the process


def write_bytes(path: Path) -> None:
    path.write_bytes(bytes(4 << 20))


@pytest.mark.processes
@pytest.mark.parametrize(
    "write", [write_with_tensors, write_with_numpy, write_with_arrow, write_with_a_map, write_bytes]
)
@pytest.mark.parametrize("whole", [whole_file, whole_directory])
def test_a_full_disk_keeps_the_old_and_is_named_with_its_space(small_disk: Path, whole: Any, write: Any) -> None:
    path = small_disk / "level-1"
    with whole_directory(path) as work:
        (work / "old").touch()
    other = path if whole is whole_directory else path / "new"
    with pytest.raises(OSError, match=r"MiB are free") as caught, whole(other) as work:
        write(work / "part" if work.is_dir() else work)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(other))
    for left in path.glob("*.npy"):
        left.unlink()  # NumPy adds the ending
    assert names(small_disk) == ["level-1"] and names(path) == ["old"]
    (path / "next").write_bytes(bytes(1 << 18))


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), whole_directory(tmp_path / "a"):
        raise PermissionError(errno.EACCES, "no", "b")


KILLED = """
import sys, time
from pathlib import Path
from axml_ray.core.files import whole_directory

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
