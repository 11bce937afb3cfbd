"""Runs of Weights & Biases offline: what it stored for the server is read back."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_run import CLOSED, RECORDS, experiment, log_all

from axml_ray.tracking import tracked_run
from axml_ray.tracking.tracked_run import track, tracked_ids

wandb = pytest.importorskip("wandb")
pytestmark = pytest.mark.processes  # wandb starts its own


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {
        "MODE": "offline", "ERROR_REPORTING": "false",
        "CONFIG_DIR": tmp_path / "config", "CACHE_DIR": tmp_path / "cache", "DATA_DIR": tmp_path / "data",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"WANDB_{name}", str(value))
    yield
    wandb.teardown()  # else it keeps these variables for the next test


def stored(directory: Path) -> list[Any]:
    """The records of each start, in order."""
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # its process may still be writing
    paths = sorted((directory / "wandb").glob("offline-run-*/run-*.wandb"))
    return [[Record.FromString(data) for data in chunks(path.read_bytes())] for path in paths]


def chunks(content: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format: blocks of 32 KiB, in which a record may continue."""
    assert content[:4] == b":W&B"
    position, parts = 7, []
    while position + 7 <= len(content):
        if 32_768 - position % 32_768 < 7:  # the rest of a block has no room for a header
            position += 32_768 - position % 32_768
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        parts.append(content[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_a_run_and_its_next_start(tmp_path: Path) -> None:
    settings = experiment(tmp_path, tracker="wandb", project="team/toys")
    with track(settings) as tracked:
        log_all(tracked, tmp_path)
    time.sleep(1)  # directories of starts are named by the second
    with pytest.raises(RuntimeError), track(settings) as tracked:
        tracked.record(RECORDS[3])
        raise RuntimeError("a member failed")
    first, second = stored(settings.run_directory)
    [run] = [each.run for each in first if each.WhichOneof("record_type") == "run"]
    assert (run.entity, run.project, run.display_name, run.job_type) == ("team", "toys", "toy", "train")
    assert tracked_ids(settings.run_directory) == {"wandb": run.run_id}
    [again] = [each.run for each in second if each.WhichOneof("record_type") == "run"]
    assert again.run_id == run.run_id

    config = {}
    for each in first:
        config |= values(each.config.update)
    assert config["tree.height"] == 1 and config["training.epochs"] == [4, 3]
    rows = [values(each.history.item) for each in first if each.WhichOneof("record_type") == "history"]
    losses = [(row["tree-1/level-1/step"], row["tree-1/level-1/loss"]) for row in rows if "tree-1/level-1/loss" in row]
    assert losses == [(100, 0.25), (200, 0.125)]
    assert [row["tree-1/level-2/valid_nDCG@5"] for row in rows if "tree-1/level-2/step" in row] == [20.0]
    metrics = {each.metric.glob_name: each.metric.step_metric for each in first if each.HasField("metric")}
    assert metrics["tree-1/level-1/*"] == "tree-1/level-1/step"
    summary = {}
    for each in first:
        summary |= values(each.summary.update)
    assert summary["test/ensemble/nDCG@5"] == 60.5 and summary["outcome"] == "finished"
    saved = [each.request.log_artifact.artifact for each in first if each.request.HasField("log_artifact")]
    saved += [each.artifact for each in first if each.WhichOneof("record_type") == "artifact"]
    assert {(each.name, each.type) for each in saved} == {("toy-report", "report")}
    exits = [[each.exit.exit_code for each in records if each.HasField("exit")] for records in (first, second)]
    assert exits == [[0], [1]]


def test_trials_are_a_group(tmp_path: Path) -> None:
    sweep = tmp_path / "runs" / "rates"
    settings = experiment(tmp_path, tracker="wandb").model_copy(update={"runs": sweep / "trials", "name": "000"})
    settings.run_directory.mkdir(parents=True)
    with track(settings, sweep=sweep) as tracked:
        tracked.scores({"valid_nDCG@5": 33.0})
    [records] = stored(settings.run_directory)
    [run] = [each.run for each in records if each.WhichOneof("record_type") == "run"]
    assert (run.run_group, run.job_type, run.display_name) == ("rates", "trial", "rates-000")


@pytest.mark.parametrize(("key", "reason"), [("", "No API key"), ("0" * 40, "127.0.0.1")])
def test_no_account_or_no_server_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, key: str, reason: str
) -> None:
    for name, value in {"MODE": "online", "API_KEY": key, "INIT_TIMEOUT": "1"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    settings = experiment(tmp_path, tracker="wandb", uri=CLOSED)
    settings.run_directory.mkdir(parents=True)
    with track(settings) as tracked:
        log_all(tracked, tmp_path)
    [said] = [record.getMessage() for record in caplog.records if record.name == tracked_run.__name__]
    assert "wandb" in said and reason in said
    assert tracked_ids(settings.run_directory) == {}
