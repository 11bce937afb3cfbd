"""Run: pytest tests/training/test_checkpoints_of_groups.py

Checkpoints of several workers, of preempted groups, and of groups of another number of workers.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from hypothesis import given
from hypothesis import strategies as st
from interrupted_training import (
    BOTH,
    LEVELS,
    MARK,
    TENSORS,
    Interruption,
    Stopping,
    assert_same_end,
    finish,
    training_of,
)
from s3 import Bucket
from safetensors.torch import load_file
from tiny_corpus import WIDE, curve_of

from axml_ray.core.files import copy_files
from axml_ray.core.paths import absolute, cache
from axml_ray.network.level_network import TABLE
from axml_ray.network.sharding import Shard
from axml_ray.training.checkpoints import MANIFEST, Checkpoints
from axml_ray.training.distributed import CPU, DistributedContext
from axml_ray.training.level_files import MODEL, ROWS, load_rows, save_rows


class Group:
    """A group of one worker, which gets the notice of a preemption at step 10, and is ended then."""

    def __init__(self, storage: Path):
        self.storage, self.is_storing = storage, False

    def store(self, files: Path, metrics: dict[str, Any], done: Callable[[], None]) -> None:
        copy_files(files, self.storage / f"checkpoint_{metrics['step']}")
        done()

    def is_preempted(self) -> bool:
        return True

    def wait_for_restart(self) -> None:
        raise Interruption


@BOTH
def test_a_preempted_group_goes_on_where_it_was_told(name, tmp_path):
    """Between two evaluations, and by another kind of workers."""
    expected = finish(training_of(LEVELS[name]))
    group = Group(tmp_path / "network_tree-0")
    told = Checkpoints(tmp_path / "level-1.checkpoint", MARK, 3_600, group)
    with pytest.raises(Interruption):
        training_of(LEVELS[name], told).run()
    assert [path.name for path in group.storage.iterdir()] == ["checkpoint_10"]
    again = Stopping(tmp_path / "level-1.checkpoint")
    resumed = training_of(LEVELS[name], again, seed=5)
    assert again.resume(resumed) and resumed.state.step == 10
    assert_same_end(finish(resumed), expected)
    # The newest counts, of any kind of workers: the last evaluation that was saved is of step 12.
    other = training_of(LEVELS[name], seed=6)
    assert Checkpoints(tmp_path / "level-1.checkpoint", MARK, 0, group).resume(other) and other.state.step == 12


class OneOfSeveral(DistributedContext):
    """A worker whose group is not there: it takes what it has for what rank 0 has."""

    def from_first(self, values: torch.Tensor) -> torch.Tensor:
        return values


@pytest.fixture
def of_four(bucket: Bucket, tmp_path: Path) -> Path:
    """The newest checkpoint of a group of four workers at a URL, of step 10; nothing of it is on this node."""
    group = Group(tmp_path / "network_tree-0")
    with pytest.raises(Interruption):
        training_of(WIDE, Checkpoints(tmp_path / "level-1.checkpoint", MARK, 3_600, group)).run()
    [stored] = group.storage.iterdir()
    tables, about = load_file(stored / ROWS.format(0)), json.loads((stored / MANIFEST).read_text())
    for rank in range(4):
        save_rows(stored, {name: table[rank::4] for name, table in tables.items()}, Shard(rank, 4))
        about["files"][ROWS.format(rank)] = (stored / ROWS.format(rank)).stat().st_size
    (stored / MANIFEST).write_text(json.dumps({**about, "workers": 4}))
    member = absolute(f"s3://{bucket.name}/tree-0/network_tree")
    copy_files(stored, member / "network_tree-0" / stored.name)
    shutil.rmtree(cache())
    return member


def test_a_single_worker_on_another_node_goes_on_from_a_groups_checkpoint(of_four):
    resumed = training_of(WIDE, Stopping(of_four / "level-1.checkpoint"), seed=5)
    assert resumed.checkpoints.resume(resumed) and resumed.state.step == 10
    assert_same_end(finish(resumed), finish(training_of(WIDE)))


@pytest.mark.parametrize(("rank", "count", "fetched"), [(1, 2, [1, 3]), (1, 4, [1]), (2, 3, [0, 1, 2, 3]), (5, 8, [1])])
def test_a_worker_fetches_only_the_files_of_its_rows(of_four, rank, count, fetched):
    checkpoints = Checkpoints(of_four / "level-1.checkpoint", MARK, 0)
    training = training_of(WIDE, checkpoints, workers=OneOfSeveral(rank, count))
    assert checkpoints.resume(training) and training.state.step == 10
    files = [path.name for path in cache().rglob("*") if path.is_file() and ".locks" not in path.parts]
    assert sorted(files) == sorted([MANIFEST, MODEL, *map(ROWS.format, fetched)])


@given(rows=st.integers(0, 23), width=st.integers(1, 3), written_by=st.integers(1, 5), read_by=st.integers(1, 5))
def test_rows_are_the_same_table_for_any_workers(tmp_path_factory, rows, width, written_by, read_by):
    directory = tmp_path_factory.mktemp("rows")
    table = torch.arange(1.0, rows * width + 1).view(rows, width)
    tables = {"weight": table, "first": -table}
    for rank in range(written_by):
        save_rows(directory, {name: each[rank::written_by] for name, each in tables.items()}, Shard(rank, written_by))
    for rank in range(read_by):
        for name, each in tables.items():
            expected = each[rank::read_by]
            into = torch.full_like(expected, torch.nan)
            load_rows(directory, name, into, written_by, Shard(rank, read_by))
            assert torch.equal(into, expected)


def go_on(rank: int, home: str, count: int) -> None:
    """A worker of `count` that goes on from the checkpoint, and stops after the next."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{home}/meet-{count}", rank=rank, world_size=count)
    workers = DistributedContext.current(CPU)
    losses = {}
    for name, level in LEVELS.items():
        checkpoints = Stopping(Path(home) / name, last=1)
        training = training_of(level, checkpoints, seed=9, workers=workers, **LONG)
        assert checkpoints.resume(training)
        losses[name] = curve_of(training)
        try:
            training.run()
        except Interruption:
            continue
        raise AssertionError("it was to stop")
    torch.save(losses, Path(home) / f"{rank}-of-{count}.pt")
    dist.destroy_process_group()


LONG = {"epochs": (5,), "eval_every_steps": 7, "average_after": (2,)}  # scorings 1 at step 7, 2 at 14, 3 at 21, 4 at 25


@pytest.fixture(scope="module")
def handed_on(tmp_path_factory) -> Path:
    """Checkpoints of one worker went to two, theirs to three."""
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("workers")
    for name, level in LEVELS.items():
        training = training_of(level, Stopping(home / name, last=1), **LONG)
        losses = curve_of(training)
        with pytest.raises(Interruption):
            training.run()
        torch.save(losses, home / f"{name}.pt")
    for count in (2, 3):
        torch.multiprocessing.spawn(go_on, (str(home), count), nprocs=count)
    return home


@pytest.mark.processes
@BOTH
def test_goes_on_with_another_number_of_workers(handed_on, name):
    expected = finish(training_of(LEVELS[name], **LONG))
    about = json.loads((handed_on / name / MANIFEST).read_text())
    assert about["workers"] == 3 and about["position"]["step"] == 21
    assert {ROWS.format(rank) for rank in range(3)} <= about["files"].keys()
    checkpoints = Stopping(handed_on / name)
    training = training_of(LEVELS[name], checkpoints, seed=9, **LONG)
    assert checkpoints.resume(training)
    found = finish(training)
    parts = [torch.load(handed_on / file)[name] for file in ("0-of-2.pt", "0-of-3.pt")]
    losses = [*torch.load(handed_on / f"{name}.pt"), *parts[0], *parts[1], *found["losses"]]
    assert len(losses) == len(expected["losses"]) == 25
    assert losses == pytest.approx(expected["losses"], rel=1e-4)
    scores = "best_score", "first_loss", "recent"
    assert {k: v for k, v in found["at"].items() if k not in scores} == {
        k: v for k, v in expected["at"].items() if k not in scores
    }
    assert found["at"]["best_score"] == pytest.approx(expected["at"]["best_score"], rel=1e-3)
    for kind in TENSORS:
        for tensor, value in expected[kind].items():
            torch.testing.assert_close(found[kind][tensor], value, rtol=1e-3, atol=1e-4, msg=f"{kind} {tensor}")
    assert found["weights"][TABLE].shape == expected["weights"][TABLE].shape
    assert np.isfinite(losses).all()
