"""Run: pytest tests/training/test_checkpoints.py"""

import errno
import json
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from hypothesis import given
from hypothesis import strategies as st
from s3 import Bucket
from safetensors.torch import load_file
from tiny_corpus import FLAT, WIDE, curve_of, small_network, small_training

import axml_ray.training.checkpoints as module
from axml_ray.core.files import copy_files
from axml_ray.core.paths import absolute, cache
from axml_ray.network.level_network import TABLE
from axml_ray.network.sharding import Shard
from axml_ray.network.tree_level import Level
from axml_ray.settings import fingerprint
from axml_ray.training.checkpoints import MANIFEST, Checkpoints
from axml_ray.training.distributed import CPU, DistributedContext
from axml_ray.training.level import LevelTraining
from axml_ray.training.level_files import MODEL, ROWS, load_rows, save_rows

LEVELS = {"all nodes": FLAT, "candidates": WIDE}
BOTH = pytest.mark.parametrize("name", LEVELS)
MARK = "0123456789ab"
# averaging begins with the second of three epochs of five steps
STEPS, SETTINGS = 15, {"epochs": (3,), "average_after": (1,), "eval_every_steps": 4}


class Interruption(BaseException):
    """As if the worker were killed."""


class Stopping(Checkpoints):
    """Stops training right after the checkpoint of scoring `last` (from 1); never if there is none."""

    def __init__(self, directory: Path, last: int | None = None, seconds: float = 0):
        super().__init__(directory, MARK, seconds)
        self.left = last

    def save(self, training: LevelTraining) -> None:
        super().save(training)
        self.wait()
        if self.left is not None:
            self.left -= 1
            if not self.left:
                raise Interruption


def training_of(
    level: Level,
    checkpoints: Checkpoints | None = None,
    *,
    seed: int = 4,
    network: dict[str, Any] | None = None,
    workers: DistributedContext | None = None,
    **changes: Any,
) -> LevelTraining:
    workers = workers or DistributedContext()
    made = small_network(level, 0.3, workers.shard, seed=seed, **(network or {}))
    return small_training(made, 100, workers=workers, checkpoints=checkpoints, **{**SETTINGS, **changes})


def finish(training: LevelTraining) -> dict[str, Any]:
    """Trains to the end; everything that a level's training leaves behind."""
    losses = curve_of(training)
    training.run()
    at = asdict(training.state) | {"snapshots": training.average.snapshots}
    at.pop("seconds")
    state = training.optimizer.state
    return {
        "losses": losses,
        "at": at,
        "weights": {name: parameter.detach() for name, parameter in training.network.named_parameters()},
        "best": training.best,
        "mean": training.average.mean,
        "moments": {f"{name}.{key}": state[p][key] for name, p in training.parameters.items() for key in state[p]},
        "norms": {"norms": training.clip.norms},
    }


TENSORS = "weights", "best", "mean", "moments", "norms"


def assert_same_end(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """To the last bit; of the losses, those that were left."""
    assert found["at"] == expected["at"]
    assert found["losses"] == expected["losses"][len(expected["losses"]) - len(found["losses"]) :]
    for kind in TENSORS:
        assert found[kind].keys() == expected[kind].keys()
        for name, value in expected[kind].items():
            assert torch.equal(found[kind][name], value), (kind, name)


def stopped(directory: Path, level: Level, last: int, **changes: Any) -> None:
    with pytest.raises(Interruption):
        training_of(level, Stopping(directory, last), **changes).run()


@BOTH
class TestGoesOnAsIfItHadNeverStopped:
    # at an epoch's end and in its middle; scoring 1 is before averaging, scorings 2 and 3 are of a running average
    @pytest.mark.parametrize(("every", "last"), [(4, 1), (4, 2), (4, 3), (5, 1), (5, 2), (5, 3)])
    def test_to_the_last_bit(self, name, every, last, tmp_path):
        expected = finish(training_of(LEVELS[name], eval_every_steps=every))
        assert len(expected["losses"]) == STEPS and expected["at"]["snapshots"] >= 2
        stopped(tmp_path / "checkpoint", LEVELS[name], last, eval_every_steps=every)
        checkpoints = Stopping(tmp_path / "checkpoint")
        # other first weights: all must come from the checkpoint
        resumed = training_of(LEVELS[name], checkpoints, seed=5, eval_every_steps=every)
        assert checkpoints.resume(resumed)
        assert resumed.state.step == every * last
        assert bool(resumed.average.mean) == bool(resumed.average.snapshots) == (every * last > 5)
        found = finish(resumed)
        assert len(found["losses"]) == STEPS - every * last
        assert_same_end(found, expected)

    def test_after_stopping_again_and_again(self, name, tmp_path):
        expected = finish(training_of(LEVELS[name], eval_every_steps=1))
        for step in range(1, STEPS + 1):
            checkpoints = Stopping(tmp_path / "checkpoint", last=1)
            training = training_of(LEVELS[name], checkpoints, seed=step, eval_every_steps=1)
            assert checkpoints.resume(training) == (step > 1)
            if step == 1:
                training = training_of(LEVELS[name], checkpoints, eval_every_steps=1)
            with pytest.raises(Interruption):
                training.run()
        checkpoints = Stopping(tmp_path / "checkpoint")
        last = training_of(LEVELS[name], checkpoints, seed=99, eval_every_steps=1)
        assert checkpoints.resume(last)
        assert_same_end(finish(last), expected)

    @pytest.mark.parametrize("average_after", [1, 40])
    def test_where_patience_was_over(self, name, average_after, tmp_path):
        settings = {
            "patience_steps": 4,
            "epochs": (40,),
            "eval_every_steps": 2,
            "learning_rate": 1e-9,
            "average_after": (average_after,),
        }
        expected = finish(training_of(LEVELS[name], **settings))
        assert expected["at"]["step"] == 6
        stopped(tmp_path / "checkpoint", LEVELS[name], 3, **settings)
        checkpoints = Stopping(tmp_path / "checkpoint")
        resumed = training_of(LEVELS[name], checkpoints, seed=5, **settings)
        assert checkpoints.resume(resumed)
        found = finish(resumed)
        assert found["losses"] == []
        assert_same_end(found, expected)

    def test_with_frozen_word_vectors(self, name, tmp_path):
        frozen = {"network": {"train_embeddings": False, "evidence": True}}
        expected = finish(training_of(LEVELS[name], **frozen))
        stopped(tmp_path / "checkpoint", LEVELS[name], 2, **frozen)
        checkpoints = Stopping(tmp_path / "checkpoint")
        resumed = training_of(LEVELS[name], checkpoints, **frozen)
        assert checkpoints.resume(resumed)
        assert_same_end(finish(resumed), expected)


class TestWhen:
    def test_not_before_its_time(self, tmp_path):
        training_of(FLAT, Stopping(tmp_path / "checkpoint", seconds=3_600)).run()
        assert not list(tmp_path.iterdir())

    def test_when_its_time_has_come(self, tmp_path, monkeypatch):
        now = [100.0]
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
        checkpoints = Checkpoints(tmp_path / "checkpoint", MARK, 60)
        training = training_of(FLAT)
        training._began = 0.0
        for later, written in ((59, 0), (60, 1), (119, 1), (121, 2)):
            now[0] = 100.0 + later
            training.state.step = later
            checkpoints.save(training)
            checkpoints.wait()
            steps = [60, 121][:written]
            found = tmp_path / "checkpoint" / MANIFEST
            assert found.exists() == bool(written)
            if written:
                assert json.loads(found.read_text())["position"]["step"] == steps[-1]

    def test_time_spent_is_counted_on(self, tmp_path):
        stopped(tmp_path / "checkpoint", FLAT, 1)
        manifest = tmp_path / "checkpoint" / MANIFEST
        about = json.loads(manifest.read_text())
        about["position"]["seconds"] = 1_000.0
        manifest.write_text(json.dumps(about))
        checkpoints = Stopping(tmp_path / "checkpoint")
        training = training_of(FLAT, checkpoints)
        assert checkpoints.resume(training)
        training.run()
        assert 1_000 < training.state.seconds < 1_060

    def test_is_dropped_with_all_that_kills_left(self, tmp_path):
        stopped(tmp_path / "level-1.checkpoint", FLAT, 1)
        for name in (".level-1.checkpoint.0123abcd", ".level-1.checkpoint.89abcdef.old", "level-2.checkpoint"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text("large")
        Checkpoints(tmp_path / "level-1.checkpoint", MARK, 0).drop(DistributedContext())
        assert [path.name for path in tmp_path.iterdir()] == ["level-2.checkpoint"]


class TestPassedOver:
    """What isn't a whole checkpoint of the same settings leaves a training as it began."""

    def resumes(self, directory: Path, mark: str = MARK, level: Level = WIDE) -> bool:
        checkpoints = Checkpoints(directory, mark, 0)
        training = training_of(level, checkpoints)
        before = {name: p.detach().clone() for name, p in training.network.named_parameters()}
        found = checkpoints.resume(training)
        if not found:
            assert training.state.step == training.average.snapshots == 0
            assert not training.best and not training.average.mean and not training.optimizer.state
            for name, p in training.network.named_parameters():
                assert torch.equal(p, before[name])
        return found

    def test_none(self, tmp_path):
        assert not self.resumes(tmp_path / "checkpoint")

    @pytest.mark.fault("truncated checkpoint", "files", work_repeated="the level")
    @pytest.mark.parametrize("file", [MODEL, ROWS.format(0), MANIFEST])
    @pytest.mark.parametrize("how", ["cut", "empty", "missing"])
    def test_torn(self, tmp_path, file, how):
        directory = tmp_path / "checkpoint"
        stopped(directory, WIDE, 2)
        assert self.resumes(directory)
        torn = directory / file
        if how == "missing":
            torn.unlink()
        else:
            torn.write_bytes(torn.read_bytes()[:-7] if how == "cut" else b"")
        assert not self.resumes(directory)

    def test_stale(self, tmp_path):
        directory = tmp_path / "checkpoint"
        stopped(directory, WIDE, 2)
        assert self.resumes(directory)
        assert not self.resumes(directory, mark="another one!")

    @pytest.mark.parametrize(
        ("key", "value"), [("format", "axml-ray level"), ("version", 1), ("files", {"lost": 1}), ("workers", 2)]
    )
    def test_another_format(self, tmp_path, key, value):
        directory = tmp_path / "checkpoint"
        stopped(directory, WIDE, 2)
        about = json.loads((directory / MANIFEST).read_text())
        (directory / MANIFEST).write_text(json.dumps({**about, key: value}))
        assert not self.resumes(directory)

    @pytest.mark.parametrize("earlier", [True, False], ids=["second", "first"])
    @pytest.mark.parametrize("name", ["save_rows", "save_tensors"])
    def test_half_written(self, tmp_path, monkeypatch, earlier, name):
        """A failure while it writes leaves the one before and nothing else, and training goes on from that."""
        expected = finish(training_of(WIDE))
        directory = tmp_path / "level-1.checkpoint"
        if earlier:
            stopped(directory, WIDE, 1)
        checkpoints = Stopping(directory)
        training = training_of(WIDE, checkpoints)
        assert checkpoints.resume(training) == earlier
        with monkeypatch.context() as patch:
            save = getattr(module, name)

            def killed(*arguments):
                save(*arguments)
                raise Interruption

            patch.setattr(module, name, killed)
            with pytest.raises(Interruption):
                training.run()
        assert [path.name for path in tmp_path.iterdir()] == ["level-1.checkpoint"] * earlier
        again = training_of(WIDE, checkpoints)
        assert checkpoints.resume(again) == earlier
        assert again.state.step == 4 * earlier
        assert_same_end(finish(again), expected)

    def test_killed_between_the_old_and_the_new(self, tmp_path):
        """A directory can't take another's place in one go: the new one, which is complete, counts."""
        directory = tmp_path / "level-1.checkpoint"
        for position, name in ((1, ".level-1.checkpoint.0123abcd.old"), (2, ".level-1.checkpoint.0123abcd")):
            stopped(tmp_path / "made", WIDE, position)
            (tmp_path / "made").rename(tmp_path / name)
        again, checkpoints = training_of(WIDE), Stopping(directory)
        assert checkpoints.resume(again)
        assert again.state.step == 8
        assert [path.name for path in tmp_path.iterdir()] == ["level-1.checkpoint"]
        assert_same_end(finish(again), finish(training_of(WIDE)))

    def test_seen_by_the_first_worker_alone(self, tmp_path):
        training = training_of(FLAT)
        training.context = SimpleNamespace(from_first=lambda _: torch.tensor([7]), is_first=False)
        with pytest.raises(RuntimeError, match="checkpoint"):
            Checkpoints(tmp_path / "checkpoint", MARK, 0).resume(training)


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


def test_training_goes_on_while_a_checkpoint_is_stored(tmp_path, monkeypatch):
    """Those that fall due meanwhile are left out."""
    slow, stored = threading.Event(), []

    def slow_copy(source: Path, to: Path) -> None:
        assert slow.wait(60)
        stored.append(to)
        copy_files(source, to)

    monkeypatch.setattr(module, "copy_files", slow_copy)
    checkpoints = Checkpoints(tmp_path / "level-1.checkpoint", MARK, 0)
    training_of(WIDE, checkpoints).run()
    assert not (tmp_path / "level-1.checkpoint").exists()
    slow.set()
    checkpoints.wait()
    assert len(stored) == 1
    assert json.loads((tmp_path / "level-1.checkpoint" / MANIFEST).read_text())["position"]["step"] == 4
    assert not list(Path(tempfile.gettempdir()).glob(f".axml-ray-{fingerprint(str(checkpoints.directory))}*"))


@pytest.mark.processes
def test_a_full_disk_is_one_error_and_leaves_nothing(small_disk):
    checkpoints = Checkpoints(small_disk / "level-1.checkpoint", MARK, 0)
    training = training_of(Level(1, 20_000, None), checkpoints)
    training._began = 0.0
    checkpoints.save(training)
    checkpoints.wait()
    with pytest.raises(OSError, match=r"level-1\.checkpoint") as raised:
        checkpoints.save(training)
    assert raised.value.errno == errno.ENOSPC
    assert not list(small_disk.iterdir())


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
