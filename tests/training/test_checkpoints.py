"""Run: pytest tests/training/test_checkpoints.py

Checkpoints of one worker: it goes on as if it had never stopped, and passes over what is damaged.
"""

import errno
import json
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from interrupted_training import (
    BOTH,
    LEVELS,
    MARK,
    STEPS,
    Interruption,
    Stopping,
    assert_same_end,
    finish,
    training_of,
)
from tiny_corpus import FLAT, WIDE

import axml_ray.training.checkpoints as module
from axml_ray.core.files import copy_files
from axml_ray.network.tree_level import Level
from axml_ray.settings import fingerprint
from axml_ray.training.checkpoints import MANIFEST, Checkpoints
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level_files import MODEL, ROWS


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
