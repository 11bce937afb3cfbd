"""Run: pytest tests/inference/test_calibration.py

Probabilities and thresholds against counting by hand.
"""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.inference.calibration import Calibration
from axml_ray.ragged import Ragged
from axml_ray.settings import SettingsError

# exact in float32, with ties
SCORES = st.integers(0, 12).map(lambda eighth: eighth / 8)


@st.composite
def predictions(draw):
    documents, width = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    labels = [draw(st.lists(st.integers(0, 8), min_size=1, max_size=width, unique=True)) for _ in range(documents)]
    truth = [sorted(draw(st.sets(st.integers(0, 11), max_size=5))) for _ in range(documents)]
    scores = [[draw(SCORES) for _ in row] for row in labels]
    filled = np.array([row + [-1] * (width - len(row)) for row in labels], np.int32)
    points = np.array([row + [0.0] * (width - len(row)) for row in scores], np.float32)
    return filled, points, truth


def pairs(labels, scores, truth) -> list[tuple[float, bool]]:
    return [
        (score, label in true)
        for row, points, true in zip(labels.tolist(), scores.tolist(), truth, strict=True)
        for label, score in zip(row, points, strict=True)
        if label >= 0
    ]


def fitted(labels, scores, truth) -> Calibration:
    return Calibration.fit(labels, scores, Ragged.from_rows(truth))


@given(predictions())
def test_probabilities_rise_and_add_up_to_the_hits(given_predictions):
    found = pairs(*given_predictions)
    calibration = fitted(*given_predictions)
    probability = calibration.probability(np.array([score for score, _ in found]))
    assert probability.sum() == pytest.approx(sum(hit for _, hit in found), abs=1e-6)
    order = np.argsort([score for score, _ in found])
    assert (np.diff(probability[order]) >= -1e-12).all()
    assert probability.min() >= 0 and probability.max() <= 1


@given(predictions(), st.floats(0, 1))
def test_thresholds_are_those_of_counting(given_predictions, wanted):
    scored, calibration = pairs(*given_predictions), fitted(*given_predictions)
    probabilities = calibration.probability(np.array([score for score, _ in scored])).tolist()
    found = [(probability, hit) for probability, (_, hit) in zip(probabilities, scored, strict=True)]

    def above(cut: float) -> list[bool]:
        return [hit for probability, hit in found if probability >= cut]

    cuts = sorted({probability for probability, _ in found})
    precise = [cut for cut in cuts if sum(above(cut)) / len(above(cut)) >= wanted]
    if precise:
        assert calibration.threshold(precision=wanted) == min(precise)
    else:
        with pytest.raises(SettingsError, match="was not reached on validation"):
            calibration.threshold(precision=wanted)
    documents = len(given_predictions[0])
    count = len(above(cuts[len(cuts) // 2])) / documents
    assert len(above(calibration.threshold(count=count))) / documents == count


def test_by_hand():
    labels = np.array([[4, 2, 7], [2, 4, -1]], np.int32)
    scores = np.array([[0.9, 0.5, 0.1], [0.7, 0.5, 0.0]], np.float32)
    calibration = fitted(labels, scores, [[4, 7], [2, 9]])
    # 0.9 and 0.7 are right, both at 0.5 wrong, 0.1 right: the last three are pooled
    given = np.array([2.0, 0.9, 0.7, 0.5, 0.1, 0.0])
    assert calibration.probability(given) == pytest.approx([1, 1, 1, 1 / 3, 1 / 3, 1 / 3])
    assert calibration.threshold(precision=1) == 1
    assert calibration.threshold(precision=0.6) == pytest.approx(1 / 3)  # those of 1/3 are right with those of 1
    assert calibration.threshold(count=1) == 1
    assert calibration.threshold(count=2) == pytest.approx(1 / 3)


@given(predictions())
def test_survives_json(given_predictions):
    calibration = fitted(*given_predictions)
    assert Calibration.from_json(json.loads(json.dumps(calibration.as_json()))) == calibration


GOOD = {"documents": 2, "scores": [0, 1], "probabilities": [0, 1], "cuts": [1, 0], "precisions": [1, 0.5],
        "counts": [1, 2]}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"scores": [1, 0]},
        {"probabilities": [0, 1.5]},
        {"probabilities": [0]},
        {"cuts": [0, 1]},
        {"precisions": [1, math.nan]},
        {"counts": [2, 1]},
        {"counts": "many"},
        {"counts": 5},
        {"documents": 0},
        {"scores": [], "probabilities": []},
        {"other": 1},
    ],
)
def test_other_numbers_are_refused(change):
    Calibration.from_json(GOOD)
    with pytest.raises(ValueError):
        Calibration.from_json({**GOOD, **change})


def test_mistakes():
    calibration = Calibration.from_json(GOOD)
    for wrong in ({}, {"precision": 0.5, "count": 1}):
        with pytest.raises(SettingsError, match="give either precision"):
            calibration.threshold(**wrong)
    for count in (0, 2.5, -1):
        with pytest.raises(SettingsError, match=r"out of reach; ask for 0 to 2\.0"):
            calibration.threshold(count=count)
    awkward = Calibration.from_json({**GOOD, "precisions": [0.96777 for _ in GOOD["precisions"]]})
    with pytest.raises(SettingsError, match=r"ask for at most 0\.967$"):
        awkward.threshold(precision=0.97)
    assert awkward.threshold(precision=0.967) == GOOD["probabilities"][0]
    with pytest.raises(ValueError, match="nothing was predicted"):
        fitted(np.full((2, 3), -1, np.int32), np.zeros((2, 3), np.float32), [[1], [2]])
