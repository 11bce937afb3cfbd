"""How the later passes of preparation run: their results and progress, and what a failure leaves."""

import time
from pathlib import Path

import numpy as np
import pytest

from axml_ray.core.errors import JobError
from axml_ray.corpus.preparation.passes import SAMPLED, count_labels
from axml_ray.corpus.preparation.staging import write_table
from axml_ray.corpus.preparation.tasks import Workspace, group_by_size
from axml_ray.progress.reporter import Activity, Reporter, report_to
from axml_ray.settings import CorpusSettings


class Ends(Reporter):
    """Keeps the activities that ended."""

    def __init__(self) -> None:
        super().__init__()
        self.activities: list[Activity] = []

    def end(self, activity: Activity) -> None:
        super().end(activity)
        self.activities.append(activity)


def workspace(tmp_path: Path, in_process: bool) -> Workspace:
    return Workspace(CorpusSettings.model_construct(), tmp_path, in_process)


def results(space: Workspace) -> None:
    with report_to(ends := Ends()):
        assert space.run(range(9), lambda part, start: start + part, "counting", start=10) == list(range(10, 19))
    assert [(each.what, each.done, each.total) for each in ends.activities] == [("prepare: counting", 9, 9)]


def test_parts_in_this_process(tmp_path: Path) -> None:
    results(workspace(tmp_path, in_process=True))


def test_parts_in_tasks_keep_their_order(ray_cluster: None, tmp_path: Path) -> None:
    results(workspace(tmp_path, in_process=False))


def test_a_failed_part_is_told_and_ends_the_others(ray_cluster: None, tmp_path: Path) -> None:
    def work(part: int) -> None:
        if part == 0:
            raise OSError(28, "No space left on device")
        time.sleep(0.5)
        (tmp_path / f"done-{part}").touch()

    with pytest.raises(JobError, match="No space left"):
        workspace(tmp_path, in_process=False).run(range(50), work, "counting")
    done = set(tmp_path.glob("done-*"))
    assert len(done) <= 8
    time.sleep(1.5)
    assert set(tmp_path.glob("done-*")) == done


def test_groups_are_no_larger_than_the_limit() -> None:
    assert group_by_size("abcde", [3, 3, 9, 1, 2], 6) == [["a", "b"], ["c"], ["d", "e"]]


def test_samples_of_blocks_tell_how_many_labels_they_have_together(tmp_path: Path) -> None:
    paths, rows = [], np.arange(40_000)
    for number in range(3):
        path = tmp_path / str(number)
        path.mkdir()
        write_table(path / "labels.arrow", label=[f"L{row + number * 20_000}" for row in rows])
        np.save(path / "label.npy", rows)
        np.save(path / "label_offsets.npy", np.append(rows, len(rows)))
        paths.append(str(path))
    splits = [np.zeros(len(rows), dtype=np.int8)] * 3
    samples = [count_labels(numbers, paths, splits) for numbers in ([0, 1], [2])]
    assert SAMPLED * len(np.unique(np.concatenate(samples))) == pytest.approx(80_000, rel=0.1)
