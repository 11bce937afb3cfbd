"""ASHA compares what can be compared."""

from types import SimpleNamespace
from typing import Any

import pytest

from axml_ray.tuning.early_stopping import LevelwiseASHA

GRACE = 100


def told(scheduler: LevelwiseASHA, trial: str, documents: int, score: float, group: str = "labels") -> str:
    result = {"group": group, "documents": documents, "score": score}
    return scheduler.on_trial_result(None, SimpleNamespace(trial_id=trial), result)


@pytest.fixture
def scheduler() -> LevelwiseASHA:
    return LevelwiseASHA(GRACE, 2)


def test_the_worse_half_of_a_rung_is_stopped(scheduler: LevelwiseASHA) -> None:
    assert told(scheduler, "a", 100, 50.0) == "CONTINUE"
    assert told(scheduler, "b", 120, 60.0) == "CONTINUE"
    assert told(scheduler, "c", 99, 1.0) == "CONTINUE"  # before the first rung
    assert told(scheduler, "c", 130, 54.0) == "STOP"  # below the median of 50 and 60
    assert told(scheduler, "d", 130, 56.0) == "CONTINUE"
    assert told(scheduler, "d", 150, 10.0) == "CONTINUE"  # a rung asks once
    assert told(scheduler, "a", 200, 70.0) == "CONTINUE"  # the next rung
    assert told(scheduler, "b", 210, 69.0) == "STOP"


def test_groups_are_apart(scheduler: LevelwiseASHA) -> None:
    assert told(scheduler, "a", 100, 90.0, "clusters") == "CONTINUE"
    assert told(scheduler, "b", 100, 20.0, "other clusters") == "CONTINUE"
    assert told(scheduler, "a", 100, 50.0) == "CONTINUE"
    assert told(scheduler, "c", 100, 80.0, "clusters") == "STOP"
    assert told(scheduler, "b", 100, 40.0) == "STOP"


def test_a_long_training_is_not_over_at_a_limit(scheduler: LevelwiseASHA) -> None:
    assert all(told(scheduler, "a", documents, 50.0) == "CONTINUE" for documents in (100, 10**6, 10**9))


def test_what_is_no_scoring_goes_on(scheduler: LevelwiseASHA) -> None:
    result: dict[str, Any] = {"finished": True, "score": 0.0}
    assert scheduler.on_trial_result(None, SimpleNamespace(trial_id="a"), result) == "CONTINUE"
