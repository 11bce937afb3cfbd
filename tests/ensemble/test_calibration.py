"""Run: pytest tests/inference/test_calibration.py

Probabilities and thresholds against counting by hand.
"""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.ensemble.calibration import Calibration

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


ANY_SCORES = st.lists(st.floats(2**-100, 2**100, width=32), min_size=2, max_size=30, unique=True)


@given(predictions(), ANY_SCORES)
def test_a_higher_score_has_a_higher_probability(given_predictions, scores):
    calibration = fitted(*given_predictions)
    observed = {score for score, _ in pairs(*given_predictions)}
    probability = calibration.probability(np.array(sorted({*scores, *observed}), np.float32))
    assert (np.diff(probability) > 0).all()


@given(predictions(), ANY_SCORES)
def test_no_probability_is_surer_than_the_number_of_predictions_allows(given_predictions, scores):
    calibration = fitted(*given_predictions)
    bound = 1 / (len(pairs(*given_predictions)) + 2)
    limits = 0, np.finfo(np.float32).max
    probability = calibration.probability(np.array([*scores, *limits], np.float32))
    assert bound - 1e-12 <= probability.min() <= probability.max() <= 1 - bound + 1e-12


def test_neighbouring_float32_scores_have_different_probabilities():
    scores = np.linspace(0.01, 2.9, 40_000, dtype=np.float32).reshape(-1, 100)
    truth = [list(range(60, 100))] * 400
    calibration = fitted(np.tile(np.arange(100, dtype=np.int32), (400, 1)), scores, truth)
    some = np.concatenate([scores.ravel()[::97], np.float32([1e-30, 1e-6, 2.95, 3, 100])])
    after = np.nextafter(some, np.float32(np.inf))
    assert (calibration.probability(after) > calibration.probability(some)).all()


def test_forty_texts_give_no_certainty():
    """Each text's best label is true, and no other is."""
    random = np.random.default_rng(0)
    scores = np.sort(random.uniform(0, 1, (40, 20)).astype(np.float32))[:, ::-1]
    scores[:, 0] += 1
    calibration = fitted(np.tile(np.arange(20, dtype=np.int32), (40, 1)), scores, [[0]] * 40)
    best = calibration.probability(np.quantile(scores[:, 0], [0, 0.25, 0.5, 0.75, 1]).astype(np.float32))
    assert 0.9 < best.min() < best.max() < 1 - 1 / 200
    assert len({f"{share:.2%}" for share in best}) == 5


def simulated(random: np.random.Generator, documents: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores, and which of them are of true labels, of rankings of 100 labels by three trees that are too sure."""
    best = random.beta(4, 1, (documents, 1))
    share = best * np.exp(-np.arange(100) * random.uniform(0.2, 1, (documents, 1)))
    share = np.clip(share * np.exp(random.normal(0, 0.3, share.shape)), 1e-7, 0.995)
    scores = 3 * expit(1.4 * logit(share) + 0.3 + random.normal(0, 0.4, share.shape))
    return scores.astype(np.float32), random.random(share.shape) < share


def simulated_sharply(random: np.random.Generator, documents: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores below which nearly no label is true, and above which nearly all are."""
    share = np.clip(random.beta(0.08, 2.5, (documents, 100)), 1e-7, 1 - 1e-7)
    return (3 * share).astype(np.float32), random.random(share.shape) < expit(30 * (logit(share) + 0.5))


def calibration_error(probability: np.ndarray, hit: np.ndarray) -> float:
    """Expected calibration error over 20 bins of equal width."""
    bins = np.minimum((probability * 20).astype(int), 19)
    return float(np.abs(np.bincount(bins, probability - hit, 20)).sum() / len(hit))


def log_loss(probability: np.ndarray, hit: np.ndarray) -> float:
    inside = np.clip(probability, 1e-6, 1 - 1e-6)
    return float(-np.where(hit, np.log(inside), np.log(1 - inside)).mean())


@pytest.mark.parametrize("simulate", [simulated, simulated_sharply])
@pytest.mark.parametrize("documents", [40, 400])
def test_calibrates_new_texts_at_least_as_well_as_plain_isotonic_regression(documents, simulate):
    errors = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        scores, hit = simulate(random, documents)
        new_scores, new_hit = (one.ravel() for one in simulate(random, 1_000))
        truth = [np.flatnonzero(row).tolist() for row in hit]
        calibration = fitted(np.tile(np.arange(100, dtype=np.int32), (documents, 1)), scores, truth)
        isotonic = IsotonicRegression(out_of_bounds="clip").fit(scores.ravel(), hit.ravel())
        both = calibration.probability(new_scores), isotonic.predict(new_scores)
        errors.append([[measure(one, new_hit) for one in both] for measure in (calibration_error, log_loss)])
    (error, isotonic_error), (loss, isotonic_loss) = np.mean(errors, axis=0)
    assert error < 1.1 * isotonic_error  # one tenth is within the noise of twelve samples
    assert loss < isotonic_loss


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
    # 0.9 and 0.7 are right, both at 0.5 wrong, 0.1 right: blocks of 1 of 3 and 2 of 2, by Jeffreys' prior 1.5 / 4 and
    # 2.5 / 3, or odds of 0.6 and 5; half and twice that at the ends, and within the bounds of 5 predictions
    low, high = calibration.probability(np.array([0.1, 0.9], np.float32))
    assert [low, high] == pytest.approx([1 / 7 + 5 / 7 * 0.3 / 1.3, 1 / 7 + 5 / 7 * 10 / 11])
    ends = calibration.probability(np.array([0.5, 0.7], np.float32))
    assert ends == pytest.approx([1 / 7 + 5 / 7 * 1.2 / 2.2, 1 / 7 + 5 / 7 * 2.5 / 3.5])
    between = calibration.probability(np.array([math.sqrt(0.5 * 0.7)], np.float32))
    assert logit(between) == pytest.approx(logit(ends).mean())
    assert calibration.threshold(precision=1) == pytest.approx(ends[1])
    assert calibration.threshold(precision=0.6) == pytest.approx(low)
    assert calibration.threshold(count=2) == pytest.approx(ends[0])


@given(predictions())
def test_survives_json(given_predictions):
    calibration = fitted(*given_predictions)
    assert Calibration.from_json(json.loads(json.dumps(calibration.as_json()))) == calibration


GOOD = {"version": 2, "documents": 2, "scores": [0.5, 1], "probabilities": [0.25, 0.75], "cuts": [1, 0],
        "precisions": [1, 0.5], "counts": [1, 2]}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"scores": [1, 0]},
        {"scores": [0, 1]},
        {"scores": [1, 1]},
        {"probabilities": [0.5, 0.5]},
        {"probabilities": [0.5, 1]},
        {"probabilities": [0, 0.5]},
        {"probabilities": [0.5]},
        {"cuts": [0, 1]},
        {"precisions": [1, math.nan]},
        {"counts": [2, 1]},
        {"counts": "many"},
        {"counts": 5},
        {"documents": 0},
        {"scores": [], "probabilities": []},
        {"other": 1},
        {"version": 1},
    ],
)
def test_other_numbers_are_refused(change):
    Calibration.from_json(GOOD)
    with pytest.raises(ValueError):
        Calibration.from_json({**GOOD, **change})


def test_an_older_version_is_refused_by_name():
    older = {name: value for name, value in GOOD.items() if name != "version"}
    with pytest.raises(ValueError, match="version 1"):
        Calibration.from_json(older)


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
