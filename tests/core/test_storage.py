"""Files at URLs, on a server of S3: what is published is fetched whole or not at all; other places are refused."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from axml_ray.cluster.shared_state import missing
from axml_ray.core import lease as leases
from axml_ray.core import node_cache, storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import (
    fences,
    file_bytes,
    remove_directory,
    whole_directory,
    whole_file,
    write_json,
    write_json_once,
)
from axml_ray.core.lease import LeaseLostError, own
from axml_ray.core.paths import absolute, cache, portable, uri_of, url_of, with_urls
from axml_ray.core.storage import MANIFEST, StoreError, fetch
from axml_ray.inference.predict.shards import OtherJobError, claim_directory
from axml_ray.settings import Experiment, stored
from axml_ray.settings.configuration import load
from axml_ray.training.progress import Follower, Journal


@pytest.fixture
def forget() -> Callable[[], None]:
    """Return what makes this node another one, which has fetched nothing yet."""
    return lambda: shutil.rmtree(cache())


def contents(directory: Path) -> dict[str, str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_text() for path in files}


def write_directory(path: Path, **files: str) -> None:
    with whole_directory(path) as work:
        for name, text in files.items():
            (work / name).write_text(text)


# URLs


@pytest.mark.parametrize("url", ["s3://bucket/runs/mine", "gs://bucket/a b/ü", "s3://bucket"])
def test_a_url_and_its_path_of_the_cache_are_the_same_place(url: str) -> None:
    path = absolute(url)
    assert path.is_absolute() and path.is_relative_to(cache())
    assert url_of(path) == portable(path) == url and absolute(portable(path)) == path
    assert absolute(path) == path and absolute(Path(url)) == path
    assert with_urls(f"{path / 'x'}: missing") == f"{url}/x: missing"


def test_a_file_url_is_the_local_path() -> None:
    assert absolute("file:///tmp/runs") == Path("/tmp/runs") and url_of(Path("/tmp/runs")) is None


@pytest.mark.parametrize(
    "place",
    [
        "hdfs://host/runs",
        "ftp://host/x",
        "s3://",
        "s3://bucket/../x",
        "s3://b/x?region=y",
        "s3://b/.x/y",
        "s3://b/x/.y",
    ],
)
def test_other_urls_are_an_error_and_not_a_directory(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError):
        absolute(place)
    for key in ("runs", "corpora"):  # pydantic would make it a path, with one slash, before it is looked at
        with pytest.raises(SettingsError, match=f"^{key}"):
            load(None, corpus={"source": "installed_packages"}, **{key: place})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", ["runs", "corpora", "corpus.train"])
def test_credentials_in_a_url_are_refused_and_not_repeated(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    from axml_ray.cli.parser import from_command_line

    with pytest.raises(SystemExit) as ended:
        from_command_line("", ["--corpus.train", "x.jsonl", f"--{key}", "s3://AKIA:secret@bucket/x"])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and "bucket" in error and "secret" not in error and "AKIA" not in error


def test_settings_keep_urls() -> None:
    settings = Experiment(runs="s3://bucket/runs", corpora="s3://bucket/corpora", corpus={"train": ["x"]})
    assert (stored(settings)["runs"], settings.model_dump(mode="json")["corpora"]) == (
        "s3://bucket/runs",
        "s3://bucket/corpora",
    )
    assert Experiment(**stored(settings)).run_directory == absolute("s3://bucket/runs/experiment")


# Files and directories


def test_a_file_is_published_and_follows_the_store(bucket: Any, forget: Callable[[], None]) -> None:
    path = absolute(f"s3://{bucket.name}/runs/mine/state.json")
    write_json(path, 1)
    assert bucket.read("runs/mine/state.json") == b"1\n"
    forget()
    fetch(path)
    assert path.read_text() == "1\n"
    bucket.write("runs/mine/state.json", b"[2, 3]\n")
    fetch(path.parent)
    assert path.read_text() == "[2, 3]\n"
    bucket.delete("runs/mine/state.json")
    fetch(path.parent)
    assert not path.exists()


def test_a_file_of_the_same_size_that_follows_at_once_is_fetched(bucket: Any, forget: Callable[[], None]) -> None:
    path = absolute(f"s3://{bucket.name}/state.json")
    write_json(path, 1)
    forget()
    fetch(path)
    bucket.write("state.json", b"2\n")
    fetch(path)
    assert path.read_text() == "2\n"


def test_nothing_of_a_failed_write_is_published(bucket: Any) -> None:
    path = absolute(f"s3://{bucket.name}/state.json")
    with pytest.raises(KeyError), whole_file(path) as temporary:
        temporary.write_text("half")
        raise KeyError
    with pytest.raises(KeyError), whole_directory(path.with_name("level")) as work:
        (work / "a").write_text("half")
        raise KeyError
    assert bucket.names() == []


def test_a_directory_is_replaced_as_a_whole(bucket: Any, forget: Callable[[], None]) -> None:
    path = absolute(f"s3://{bucket.name}/level")
    write_directory(path, a="1", b="2")
    assert bucket.names() == [f"level/{MANIFEST}", "level/a", "level/b"]
    write_directory(path, a="3", c="4")
    assert file_bytes(path) == 2 and len(bucket.names()) == 3
    forget()
    fetch(path)
    assert contents(path) == {"a": "3", "c": "4"}
    remove_directory(path)
    assert bucket.names() == [] and not path.exists()


def test_a_directory_that_is_replaced_at_once_is_fetched_again(bucket: Any, tmp_path: Path) -> None:
    path = absolute(f"s3://{bucket.name}/level")
    write_directory(path, a="1", b="2")
    shutil.copytree(cache(), tmp_path / "other node")
    write_directory(path, a="3", b="2")
    shutil.rmtree(cache())
    shutil.move(tmp_path / "other node", cache())
    assert contents(path) == {"a": "1", "b": "2"}
    fetch(path)
    assert contents(path) == {"a": "3", "b": "2"}


def test_an_interrupted_replacement_leaves_the_old_directory(
    bucket: Any, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = absolute(f"s3://{bucket.name}/level")
    write_directory(path, a="1", b="2")

    def fail(*arguments: Any) -> None:
        raise OSError("the power fails")

    with monkeypatch.context() as patch, pytest.raises(StoreError):
        patch.setattr(storage, "_write", fail)  # the manifest
        write_directory(path, a="3", b="4")
    forget()
    fetch(path)
    assert contents(path) == {"a": "1", "b": "2"}
    write_directory(path, a="5")  # and keeps what is new, as another writer may just be uploading it
    assert len(bucket.names()) == 4
    with whole_directory(path, "0123abcd") as work:  # whose writer has a lease, and removes what the failed one left
        (work / "a").write_text("5")
    assert len(bucket.names()) == 2
    forget()
    fetch(path)
    assert contents(path) == {"a": "5"} and len(bucket.names()) == 2


def test_two_writers_of_a_directory_at_once_leave_one_of_both_whole(
    bucket: Any, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = absolute(f"s3://{bucket.name}/bundle")
    write_directory(path, a="0", b="0")
    copy, is_second = storage._copy, False

    def slow(*arguments: Any) -> None:
        nonlocal is_second
        copy(*arguments)
        if not is_second:
            is_second = True
            write_directory(path, a="2", b="2")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "_copy", slow)
        patch.setattr(storage, "THREADS", 1)
        with suppress(OSError):  # of the local copy, which the other writer has replaced
            write_directory(path, a="1", b="1")
    forget()
    fetch(path)
    assert contents(path) in ({"a": "1", "b": "1"}, {"a": "2", "b": "2"})


def test_a_file_that_is_replaced_while_it_is_fetched_is_fetched_again(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = absolute(f"s3://{bucket.name}/runs/mine")
    bucket.write("runs/mine/seconds.json", b"1")
    copy = storage._copy

    def replaced(*arguments: Any) -> None:
        monkeypatch.setattr(storage, "_copy", copy)
        bucket.write("runs/mine/seconds.json", b"1, 2")
        copy(*arguments)

    monkeypatch.setattr(storage, "_copy", replaced)
    fetch(path)
    assert contents(path) == {"seconds.json": "1, 2"}


def test_what_was_removed_from_the_store_may_be_written_again(bucket: Any) -> None:
    path = absolute(f"s3://{bucket.name}/predictions")
    claim_directory(path, {"key": 1})
    (path / "members" / "knn").mkdir(parents=True)  # remains in the copy
    bucket.delete("predictions/_job.json")
    assert storage.is_empty(path)
    assert claim_directory(path, {"key": 2}) == {"key": 2}
    bucket.write("data/texts.parquet", b"1")
    with pytest.raises(OtherJobError):
        claim_directory(absolute(f"s3://{bucket.name}/data"), {"key": 1})
    assert not list(cache().rglob("texts.parquet"))


def test_the_nodes_of_a_cluster_read_a_file_of_a_replaced_directory(bucket: Any, forget: Callable[[], None]) -> None:
    path = absolute(f"s3://{bucket.name}/bundle")
    for number in range(2):
        write_directory(path, manifest=str(number))
    forget()
    assert missing({path / "manifest": b"1"}) is None
    assert "another file" in str(missing({path / "manifest": b"0"}))


@pytest.mark.parametrize("name", ["my runs", "Müller", "a%20b", "a+b"])
def test_ray_reads_the_directory_of_a_url_of_any_name(bucket: Any, name: str) -> None:
    path = absolute(f"s3://{bucket.name}/{name}")
    write_json(path / "x.json", 1)
    _, key = fs.FileSystem.from_uri(uri_of(path))
    assert f"{key}/x.json".removeprefix(f"{bucket.name}/") in bucket.names()


def test_only_the_files_that_are_needed_are_fetched(bucket: Any, forget: Callable[[], None]) -> None:
    path = absolute(f"s3://{bucket.name}/run/level")
    write_directory(path, a="1", b="2")
    write_json(path.parent / "run.json", 1)
    forget()
    fetch(path, ["a"])
    assert contents(path.parent) == {"level/a": "1"}
    fetch(path.parent, recursive=False)
    assert contents(path.parent) == {"level/a": "1", "run.json": "1\n"}
    assert storage.sizes(path.parent) == {"level/a": 1, "level/b": 1, "run.json": 2}
    (path / "a").write_text("9")  # as a process that was killed may leave it
    fetch(path.parent)
    assert contents(path.parent) == {"level/a": "1", "level/b": "2", "run.json": "1\n"}


def test_what_is_gone_from_the_store_is_removed_here_and_nothing_fetched(bucket: Any) -> None:
    place = absolute(f"s3://{bucket.name}/group")
    for number in (1, 2):
        bucket.write(f"group/checkpoint_{number}/rows-0", b"1")
    fetch(place)
    bucket.delete("group/checkpoint_1/rows-0")
    bucket.write("group/checkpoint_3/rows-0", b"1")
    fetch(place, ())
    assert [path.name for path in place.iterdir()] == ["checkpoint_2"]


@pytest.mark.parametrize("damage", ["changed", "cut", "missing"])
def test_a_damaged_file_is_refused(
    damage: str, bucket: Any, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "ATTEMPTS", 1)
    path = absolute(f"s3://{bucket.name}/level")
    write_directory(path, a="12", b="34")
    forget()
    if damage == "missing":
        bucket.delete("level/a")
    else:
        bucket.write("level/a", b"1" if damage == "cut" else b"21")
    with pytest.raises(StoreError, match="level"):
        fetch(path)
    assert not (path / "a").exists() and not list(cache().rglob(".a.*"))


def test_a_directory_that_another_program_copied_is_fetched(bucket: Any) -> None:
    path = absolute(f"s3://{bucket.name}/bundles/one")
    bucket.write("bundles/one/manifest.json", b"{}")
    bucket.write("bundles/one/members/knn/arrays", b"1")
    fetch(path)
    assert contents(path) == {"manifest.json": "{}", "members/knn/arrays": "1"}
    write_directory(path, a="1")
    shutil.rmtree(path)
    fetch(path)
    assert (
        contents(path) == {"a": "1"} and "bundles/one/manifest.json" in bucket.names()
    )  # nothing of others is removed


def test_files_of_workers_on_other_nodes_become_part_of_the_directory(bucket: Any, forget: Callable[[], None]) -> None:
    path = absolute(f"s3://{bucket.name}/level-1")
    work = path.with_name(".level-1.0123abcd")
    assert storage.join_directory(work)  # of the second worker, on a node where the first has made none
    (work / "rows-1").write_text("second")
    storage.share(work / "rows-1")
    forget()
    assert storage.shared(work)["rows-1"].size == len("second")
    with whole_directory(path, "0123abcd") as made:
        assert made == work and not storage.join_directory(work)
        (work / "rows-0").write_text("first")
        storage.share(work / "rows-0")  # of a worker on the same node: it is there
    forget()
    fetch(path)
    assert contents(path) == {"rows-0": "first", "rows-1": "second"}
    manifest = json.loads(bucket.read(f"level-1/{MANIFEST}"))["files"]
    assert set(bucket.names()) == {
        f"level-1/{MANIFEST}",
        *(f"level-1/{entry['object']}" for entry in manifest.values()),
    }


def test_shared_files_can_be_collected(bucket: Any, forget: Callable[[], None]) -> None:
    work = absolute(f"s3://{bucket.name}/level-1").with_name(".level-1.0123abcd")
    storage.join_directory(work)
    (work / "rows-1").write_text("second")
    storage.share(work / "rows-1")
    forget()
    work.mkdir(parents=True)
    storage.collect(work)
    assert contents(work) == {"rows-1": "second"} and bucket.names() == []


def test_the_first_decision_is_kept(bucket: Any, forget: Callable[[], None]) -> None:
    path = absolute(f"s3://{bucket.name}/format.json")
    assert write_json_once(path, "bfloat16") == "bfloat16"
    forget()
    assert write_json_once(path, "float32") == "bfloat16"


def test_a_journal_is_followed_from_another_node(bucket: Any, forget: Callable[[], None]) -> None:
    path = absolute(f"s3://{bucket.name}/tree-0")
    follower = Follower([path])
    path.mkdir(parents=True)
    Journal(path).write({"step": 1})
    forget()
    assert [record["step"] for record in follower.new_records()] == [1]
    forget()
    path.mkdir(parents=True)
    Journal(path).write({"step": 2})
    assert [record["step"] for record in follower.new_records()] == [2]


@pytest.mark.parametrize("place", ["s3://there-is-no-such-bucket/x"])
def test_a_store_that_cannot_be_used_is_one_error(place: str, bucket: Any) -> None:
    with pytest.raises(SettingsError, match="there-is-no-such-bucket") as raised:
        write_json(absolute(place), 1)
    assert "\n" not in str(raised.value)
    with pytest.raises(SettingsError, match="there-is-no-such-bucket"):
        fetch(absolute(place))
    assert not absolute(place).exists()


@pytest.mark.processes
def test_the_cache_is_trimmed_by_a_process_that_is_its_only_user(
    bucket: Any, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AXML_RAY_CACHE", str(small_disk / "cache"))
    paths = [absolute(f"s3://{bucket.name}/{number}") for number in range(4)]
    for seconds, path in enumerate(paths):
        bucket.write(path.name, bytes(200_000))
        fetch(path)
        os.utime(path, ns=(seconds * 10**9, path.stat().st_mtime_ns))
    os.utime(paths[0], ns=(9 * 10**9, paths[0].stat().st_mtime_ns))

    def left_by_another_process() -> list[int]:
        node_cache.use_cache.cache_clear()
        storage._file_system.cache_clear()
        storage.read(paths[3])
        return [number for number, path in enumerate(paths) if path.exists()]

    others = [cache() / "thesis" / "results.csv", paths[0].parent / "runs" / "mlflow.db"]
    for path in others:
        path.parent.mkdir()
        path.write_text("nowhere else")
        os.utime(path, ns=(0, 0))
    with (cache() / ".locks" / "users").open() as user:
        fcntl.flock(user, fcntl.LOCK_SH)
        assert left_by_another_process() == [0, 1, 2, 3]
    assert left_by_another_process() == [0, 3]  # 0.4 of 1 MiB
    assert all(path.exists() for path in others)
    fetch(paths[1])
    assert paths[1].stat().st_size == 200_000


# The lease of a run at a URL


def test_a_second_owner_of_a_url_is_refused(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.05)
    run = absolute(f"s3://{bucket.name}/runs/mine")
    with own(run) as lease:
        with pytest.raises(SettingsError, match="s3://"), own(run):
            pass
        lease.check()
        write_json(run / "a.json", 1)
    assert bucket.names() == ["runs/mine/a.json"] and not fences


def test_an_owner_that_lost_a_url_publishes_nothing_more(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LEASE_SECONDS", 2.0)
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.05)
    run = absolute(f"s3://{bucket.name}/runs/mine")
    monkeypatch.setattr(leases, "_machine", lambda: "another machine")  # so that the process counts as unknown
    with pytest.raises(LeaseLostError), own(run) as lease:
        write_json(run / "a.json", 1)
        monkeypatch.setattr(leases.Lease, "_keep", lambda self, stop: None)
        storage.remove(lease.file)  # as a takeover does
        storage.write(lease.beat, b"late")  # and a heartbeat that comes back
        write_json(run / "a.json", 2)
    assert bucket.read("runs/mine/a.json") == b"1\n"
    fences.clear()
    with own(run):
        write_json(run / "a.json", 3)
    assert bucket.read("runs/mine/a.json") == b"3\n"
