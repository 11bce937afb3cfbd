"""What a person follows: JSON lines and lines of text."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from axml_ray.network.backends.devices import peak_memory_gib
from axml_ray.progress.reporter import format_record
from axml_ray.training.progress import JOURNAL, Follower, Journal

RECORD: dict[str, Any] = {
    "level": 1,
    "levels": 2,
    "nodes": 2048,
    "epoch": 1,
    "epochs": 3,
    "step": 100,
    "loss": 0.25,
    "valid_nDCG@5": 31.5,
    "documents_per_second": 1250.0,
    "seconds": 15.0,
    "seconds_left": 75.0,
    "memory_gib": 1.5,
}


def test_a_record_becomes_a_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path, tree=0)
    journal.write(RECORD)
    journal.write({"level": 1, "levels": 2, "scored": 500, "seconds": 3.0})
    lines = [json.loads(text) for text in journal.path.read_text().splitlines()]
    assert [record.get("step") for record in lines] == [100, None]
    assert all(record["tree"] == 0 and record["time"] > 0 for record in lines)


def test_the_follower_reads_whole_new_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path, tree=0)
    journal.write(RECORD)
    follower = Follower([tmp_path, tmp_path / "none"])
    assert list(follower.new_records()) == []
    journal.write({**RECORD, "step": 200})
    with journal.path.open("a") as file:
        file.write('{"step": ')
    assert [record["step"] for record in follower.new_records()] == [200]
    with journal.path.open("a") as file:
        file.write("300}\n")
    assert [record["step"] for record in follower.new_records()] == [300]


def test_a_record_that_was_cut_short_costs_itself_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path, tree=0)
    follower = Follower([tmp_path])
    journal.write(RECORD)
    with journal.path.open("a") as file:
        file.write('{"step": 20')
    Journal(tmp_path, tree=0).write({**RECORD, "step": 300})
    assert [record["step"] for record in follower.new_records()] == [100, 300]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "(2,048 nodes) · epoch 1/3 · loss 0.2500 · best valid nDCG@5 31.50 · 1,250 docs/s · 1.5 GiB · 1:15 left"),
        ({"valid_nDCG@5": None}, "valid nDCG@5 – · "),
        ({"seconds_left": 3_725.0}, " · 1:02:05 left"),
        ({"seconds_left": None, "documents_per_second": 0.0}, " · 0 docs/s · 1.5 GiB · – left"),
    ],
)
def test_a_line_shows_what_matters(change: dict[str, Any], expected: str) -> None:
    shown = format_record({**RECORD, "tree": 0, **change})
    assert shown.startswith("tree 1 · level 1/2")
    assert expected in shown


def test_memory_is_that_of_this_process() -> None:
    [peak] = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    assert peak_memory_gib(torch.device("cpu")) == pytest.approx(int(peak.split()[1]) / 2**20, rel=0.01)


def test_lines_of_what_is_no_step_name_tree_and_level() -> None:
    common = {"tree": 0, "level": 1, "levels": 2}
    assert format_record({**common, "begun": 2048}).startswith("tree 1 · level 1/2 (2,048 nodes)")
    for what in ("scored", "read"):
        record = {f"{what}_so_far": 512, "documents": 8_000, "documents_per_second": 120.4}
        shown = format_record({**common, **record})
        assert shown.startswith(f"tree 1 · level 1/2 · {what} 512 of 8,000") and "120 docs/s" in shown


@pytest.mark.fault("full disk under the journal", "training", data_lost="records of progress")
@pytest.mark.processes
def test_a_full_disk_costs_records_and_one_warning(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal, follower = Journal(small_disk, tree=0), Follower([small_disk])
    journal.write(RECORD)
    large = {**RECORD, "text": "x" * (1 << 20)}
    for _ in range(3):
        journal.write(large)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with journal.path.open("r+b") as file:
        file.truncate(500)  # there is room again
    journal.write({**RECORD, "step": 200})
    assert [record["step"] for record in follower.new_records()] == [100, 200]


def test_a_journal_that_cannot_be_opened_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / JOURNAL).mkdir()
    journal, follower = Journal(tmp_path, tree=0), Follower([tmp_path, tmp_path / "gone"])
    journal.write(RECORD)
    journal.write(RECORD)
    assert len(caplog.records) == 1
    assert list(follower.new_records()) == []
