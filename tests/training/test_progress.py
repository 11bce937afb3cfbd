"""What a person follows: JSON lines, lines of text, and TensorBoard events read back as TensorBoard reads them."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event, SessionLog

from axml_ray.reporter import format_record
from axml_ray.training.progress import SCALARS, Follower, Journal, memory_gib

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


def masked(data: bytes) -> int:
    """The checksum of a TFRecord."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def events(path: Path) -> Iterator[Event]:
    """What a file of events holds: for each its length, that length's checksum, the event, its checksum."""
    content = path.read_bytes()
    while content:
        (length,), (crc,) = struct.unpack("<Q", content[:8]), struct.unpack("<I", content[8:12])
        assert crc == masked(content[:8])
        data, (crc,) = content[12 : 12 + length], struct.unpack("<I", content[12 + length : 16 + length])
        assert crc == masked(data)
        yield Event.FromString(data)
        content = content[16 + length :]


def points(directory: Path) -> dict[str, dict[int, float]]:
    """Each scalar's value at each step, as TensorBoard shows them: a start drops older files' points from there on."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(directory.iterdir(), key=lambda path: int(path.suffix[1:])):
        for event in events(path):
            if event.session_log.status == SessionLog.START:
                for tag, steps in found.items():
                    found[tag] = {step: value for step, value in steps.items() if step < event.step}
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def test_a_record_becomes_a_line_and_events(tmp_path: Path) -> None:
    journal = Journal(tmp_path, tree=0)
    journal.write(RECORD)
    journal.write({**RECORD, "step": 200, "loss": 0.125, "valid_nDCG@5": None})
    journal.write({"level": 1, "levels": 2, "scored": 500, "seconds": 3.0})
    journal.write({**RECORD, "level": 2})
    lines = [json.loads(text) for text in journal.path.read_text().splitlines()]
    assert [record.get("step") for record in lines] == [100, 200, None, 100]
    assert all(record["tree"] == 0 for record in lines)

    assert sorted(path.name for path in (tmp_path / "tensorboard").iterdir()) == ["level-1", "level-2"]
    shown = points(tmp_path / "tensorboard" / "level-1")
    assert set(shown) == set(SCALARS)
    assert shown["loss"] == {100: 0.25, 200: 0.125}
    assert shown["valid_nDCG@5"] == {100: 31.5}
    assert shown["memory_gib"] == {100: 1.5, 200: 1.5}
    assert shown["documents_per_second"][200] == 1250
    assert points(tmp_path / "tensorboard" / "level-2")["seconds_left"] == {100: 75.0}


def test_a_restarted_job_takes_the_place_of_what_it_lost(tmp_path: Path) -> None:
    first = Journal(tmp_path, tree=0)
    for step in (100, 200, 300):
        first.write({**RECORD, "step": step, "loss": 1.0})
    again = Journal(tmp_path, tree=0)  # went on from a checkpoint of step 150
    for step in (180, 280):
        again.write({**RECORD, "step": step, "loss": 0.5})
    assert points(tmp_path / "tensorboard" / "level-1")["loss"] == {100: 1.0, 180: 0.5, 280: 0.5}


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
        ({}, "(2,048 nodes) · epoch 1/3 · loss 0.2500 · valid nDCG@5 31.50 · 1,250 docs/s · 1.5 GiB · 1:15 left"),
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
    assert memory_gib(torch.device("cpu")) == pytest.approx(int(peak.split()[1]) / 2**20, rel=0.01)


def test_lines_of_what_is_no_step_name_tree_and_level() -> None:
    common = {"tree": 0, "level": 1, "levels": 2}
    assert format_record({**common, "begun": 2048}).startswith("tree 1 · level 1/2 (2,048 nodes)")
    scored = {"scored_so_far": 512, "documents": 8_000, "documents_per_second": 120.4}
    shown = format_record({**common, **scored})
    assert shown.startswith("tree 1 · level 1/2 · ") and "512 of 8,000" in shown and "120 docs/s" in shown
