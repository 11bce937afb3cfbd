"""The progress of a pass of preparation: its parts, whose rows come in any order."""

from typing import Any

from axml_ray.corpus.preparation.tasks import _count_parts, _run_task, run_tasks
from axml_ray.progress.heartbeat import Heartbeat
from axml_ray.progress.reporter import Activity, Reporter, report_to


def numbers(part: int, start: int) -> list[dict[str, Any]]:
    return [{"number": start + i} for i in range(part)]


def test_a_part_is_done_with_its_last_row() -> None:
    parts = [3, 1]
    rows = [row for number in range(2) for row in _run_task({"number": number}, parts, numbers, {"start": 10})]
    progress = Heartbeat("prepare", len(parts), "parts")
    counted = [(row, progress.done) for row in _count_parts(iter(rows), progress)]
    assert counted == [({"number": 10}, 0), ({"number": 11}, 0), ({"number": 12}, 1), ({"number": 10}, 2)]


class Ends(Reporter):
    """Keeps the activities that ended."""

    def __init__(self) -> None:
        super().__init__()
        self.activities: list[Activity] = []

    def end(self, activity: Activity) -> None:
        super().end(activity)
        self.activities.append(activity)


def test_parts_are_counted_in_this_process() -> None:
    with report_to(ends := Ends()):
        rows = run_tasks([3, 1], numbers, description="counting", in_process=True, start=0)
    assert rows == [{"number": 0}, {"number": 1}, {"number": 2}, {"number": 0}]
    assert [(each.what, each.done, each.total) for each in ends.activities] == [("prepare: counting", 2, 2)]
