"""Frequency bands, the curve over label frequency and the reliability curve, by hand and against loops.

python -m pytest tests/evaluation/test_bands.py
"""

import numpy as np
import pytest

from axml_ray.evaluation.metrics.bands import FrequencyCurve, frequency_bands
from axml_ray.evaluation.metrics.reliability import BINS, ReliabilityCurve


def test_every_label_is_in_one_band():
    counts = np.array([500, 100, 99, 10, 9, 1, 0, 0])
    bands = frequency_bands(counts)
    assert [band.name for band in bands] == ["head", "torso", "tail", "unseen"]
    assert [np.flatnonzero(band.is_member).tolist() for band in bands] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [(band.min_count, band.max_count) for band in bands] == [(100, None), (10, 99), (1, 9), (0, 0)]
    # A band may be empty.
    assert not frequency_bands(np.array([3, 2]))[0].is_member.any()


def test_precision_and_recall_by_frequency_by_hand():
    #                  label  0  1  2  3  4
    frequency = FrequencyCurve(np.array([9, 4, 3, 1, 0]))
    frequency.add(
        np.array([[0, 1, 2, -1, -1, 3], [1, 3, 0, 2, -1, -1]]), np.array([0, 3, 4, 1, 2]), np.array([0, 3, 5])
    )
    rows = {row["from"]: row for row in frequency.result()}
    assert [(row["from"], row["to"], row["labels"]) for row in rows.values()] == [
        (0, 0, 1),
        (1, 1, 1),
        (2, 3, 1),
        (4, 7, 1),
        (8, 15, 1),
    ]
    # The sixth rank is not in the top five, so the first document's label 3 is missed.
    assert (rows[1]["predicted"], rows[1]["true"], rows[1]["precision"], rows[1]["recall"]) == (1, 1, 0, 0)
    assert (rows[8]["precision"], rows[8]["recall"]) == (50, 100)
    assert (rows[4]["precision"], rows[4]["recall"]) == (50, 100)
    assert (rows[0]["precision"], rows[0]["recall"]) == (None, 0)


def test_bins_double_without_rounding_errors():
    counts = np.array([0, 1, 2, 3, 4, 2**20 - 1, 2**20, 2**40])
    frequency = FrequencyCurve(counts)
    frequency.add(np.empty((0, 5), int), np.empty(0, int), np.zeros(1, int))
    for row in frequency.result():
        assert sum((counts >= row["from"]) & (counts <= row["to"])) == row["labels"]
    assert sum(row["labels"] for row in frequency.result()) == len(counts)


def test_reliability_agrees_with_a_loop():
    random = np.random.default_rng(0)
    probability = np.append(random.random(500), [0, 1, 0.05, 1 + 1e-7])
    true = random.random(504) < probability
    curve = ReliabilityCurve()
    for part in np.array_split(np.arange(504), 3):
        curve.add(probability[part], true[part])
    result = curve.result()
    assert sum(result["labels"]) == 504 and sum(result["true"]) == true.sum()
    error = 0.0
    for bin_ in range(BINS):
        is_inside = (probability * BINS).astype(int).clip(0, BINS - 1) == bin_
        assert result["labels"][bin_] == is_inside.sum() and result["true"][bin_] == true[is_inside].sum()
        assert result["mean_score"][bin_] == pytest.approx(probability[is_inside].mean())
        error += abs(probability[is_inside].mean() - true[is_inside].mean()) * is_inside.sum()
    assert result["expected_error"] == pytest.approx(error / 504)


def test_scores_outside_0_to_1_raise():
    with pytest.raises(ValueError, match=r"0\.2 to 1\.7"):
        ReliabilityCurve().add(np.array([0.2, 1.7]), np.array([True, False]))
    empty = ReliabilityCurve().result()
    assert empty["expected_error"] is None and set(empty["mean_score"]) == {None}
