"""Recorded scorings replayed to ASHA.

python -m pytest tests/benchmarks/test_tuning_benchmark.py
"""

from pathlib import Path

import pytest
import tuning

from axml_ray.settings.configuration import load
from axml_ray.tuning.records import Scoring, Trial
from axml_ray.tuning.space import Space
from axml_ray.tuning.sweep import Sweep

EPOCH = 100


def trial(number: int, *levels: tuple[str, list[float]]) -> Trial:
    """Scored after each epoch of ten steps."""
    curve = [
        Scoring(tree=0, level=level, levels=len(levels), group=group, step=10 * epoch, documents=EPOCH * epoch,
                score=score)
        for level, (group, scores) in enumerate(levels, 1)
        for epoch, score in enumerate(scores, 1)
    ]  # fmt: skip
    score = max(one.score for one in curve if one.is_of_labels)
    return Trial(number=number, parameters={}, state="finished", score=score, seconds=1.0, curve=tuple(curve))


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    settings = load(Path(__file__).parents[2] / "configs" / "quickstart.yaml")
    return Sweep(settings=settings, space=Space.load(["tune_spaces.tree"]), name="x")


GOOD = trial(0, ("same tree", [50.0, 60.0]), ("labels", [30.0, 40.0, 45.0]))
WORSE = trial(1, ("same tree", [49.0, 55.0]), ("labels", [20.0, 35.0, 36.0]))
OTHER = trial(2, ("another tree", [10.0, 20.0]), ("labels", [20.0, 39.0, 40.0]))


def test_a_trial_after_a_better_one_is_stopped_at_the_first_rung(sweep: Sweep) -> None:
    assert tuning.replay([GOOD, WORSE], EPOCH, 1, sweep) == {0: 50, 1: 10}
    assert tuning.replay([WORSE, GOOD], EPOCH, 1, sweep) == {0: 50, 1: 50}
    # Its clusters are its own; its labels are worse than the other's after as many documents.
    assert tuning.replay([GOOD, OTHER], EPOCH, 1, sweep) == {0: 50, 2: 30}


def test_side_by_side_the_better_one_may_come_too_late(sweep: Sweep) -> None:
    # Both are at the first rung at once, WORSE is asked second by its number; then its place is free.
    assert tuning.replay([WORSE, GOOD, OTHER], EPOCH, 2, sweep) == {0: 50, 1: 10, 2: 30}


def test_means_over_orders(sweep: Sweep) -> None:
    figures = tuning.replayed([GOOD, WORSE], EPOCH, 1, sweep)
    share = figures["replayed_saved_share"] / (40 / 100)  # of the orders in which GOOD is first
    assert 0.4 < share < 0.6
    assert figures["replayed_best_kept_share"] == 1 and figures["replayed_lost_nDCG@5"] == 0


def test_figures(sweep: Sweep) -> None:
    stopped = Trial(**{**vars(WORSE), "state": "stopped", "score": None, "curve": WORSE.curve[:1]})
    figures = tuning.summary({"full": [GOOD, WORSE], "asha": [GOOD, stopped]})
    assert figures["full_steps"] == 100 and figures["asha_steps"] == 60
    assert figures["saved_share"] == pytest.approx(0.4)
    assert figures["full_nDCG@5"] == figures["asha_nDCG@5"] == 45.0
    assert tuning.shown(figures).row_count == len(figures)
