"""Intervals and paired tests against loops, exact enumeration, and what theory says of them.

python -m pytest tests/evaluation/test_resampling.py
"""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from axml_ray.evaluation import resampling
from axml_ray.evaluation.metrics import MEANS, MEASURES, RATIOS, Measured
from axml_ray.evaluation.resampling import compare, intervals


def measured(column, attainable=1.0, collected=None):
    """Values of documents, the same for each measure."""
    values = np.repeat(np.asarray(column, np.float64)[:, None], len(MEASURES), 1)
    if collected is not None:
        values[:, len(MEANS) :] = np.asarray(collected)[:, None]
    return Measured(values, np.broadcast_to(np.reshape(attainable, (-1, 1)), (len(values), len(RATIOS))).astype(float))


def test_an_interval_of_a_mean_is_that_of_theory():
    column = np.random.default_rng(1).random(800)
    low, high = intervals(measured(column), resamples=2000, seed=0)["P@1"]
    half = 1.96 * column.std(ddof=1) / 800**0.5
    assert (low, high) == pytest.approx((100 * (column.mean() - half), 100 * (column.mean() + half)), abs=0.15)


def test_an_interval_of_a_ratio_resamples_both_sums():
    random = np.random.default_rng(2)
    attainable = random.random(60) + 0.5
    collected = attainable * random.random(60)
    got = intervals(measured(random.random(60), attainable, collected), resamples=400, seed=3)["PSP@5"]
    again = np.random.default_rng(3)
    ratios = []
    for _ in range(400):
        rows = again.integers(0, 60, 60)
        ratios.append(100 * sum(collected[rows]) / sum(attainable[rows]))
    assert got == pytest.approx(np.quantile(ratios, [0.025, 0.975]).tolist())


def test_the_memory_for_samples_changes_nothing(monkeypatch):
    random = np.random.default_rng(0)
    one, other = measured(random.random(50)), measured(random.random(50))
    whole = intervals(one, resamples=100, seed=1), compare(one, other, resamples=100, seed=1)
    monkeypatch.setattr(resampling, "WEIGHTS", 150)
    parts = intervals(one, resamples=100, seed=1), compare(one, other, resamples=100, seed=1)
    assert parts[0]["P@3"] == pytest.approx(whole[0]["P@3"])
    assert parts[1]["P@3"].p == whole[1]["P@3"].p
    assert intervals(one, resamples=100, seed=2) != whole[0]


def test_p_is_that_of_all_swaps():
    one = measured([0.9, 0.8, 0.7, 0.9, 0.4, 0.6, 0.8, 0.3])
    other = measured([0.5, 0.7, 0.6, 0.9, 0.5, 0.2, 0.6, 0.2])
    between = one.column("P@1") - other.column("P@1")
    swaps = [abs(np.dot(signs, between)) for signs in product((-1, 1), repeat=8)]
    exact = np.mean([swap >= abs(between.sum()) - 1e-9 for swap in swaps])
    found = compare(one, other, resamples=20_000, seed=0)["P@1"]
    assert found.p == pytest.approx(exact, abs=0.01)
    assert found.points == pytest.approx(100 * between.mean())
    turned = compare(other, one, resamples=20_000, seed=0)["P@1"]
    assert (turned.points, turned.p) == (pytest.approx(-found.points), pytest.approx(found.p))
    assert turned.interval == pytest.approx((-found.interval[1], -found.interval[0]))


def test_p_agrees_with_scipys_permutation_test_on_ratios():
    random = np.random.default_rng(4)
    attainable = random.random(40) + 0.5
    one, other = (attainable * random.random(40) for _ in range(2))
    found = compare(measured(one, attainable, one), measured(other, attainable, other), resamples=5000, seed=1)["PSP@1"]
    expected = stats.permutation_test(
        (one, other),
        lambda a, b: a.sum() / attainable.sum() - b.sum() / attainable.sum(),
        permutation_type="samples",
        n_resamples=5000,
        vectorized=False,
        rng=np.random.default_rng(2),
    )
    assert found.points == pytest.approx(100 * expected.statistic)
    assert found.p == pytest.approx(expected.pvalue, abs=0.04)


def test_equal_rankings_do_not_differ_and_unequal_ones_do():
    random = np.random.default_rng(5)
    column = random.random(300)
    same = compare(measured(column), measured(column), resamples=200, seed=0)["nDCG@5"]
    assert (same.points, same.interval, same.p) == (0, (0, 0), 1)
    better = compare(measured(column + 0.1), measured(column), resamples=200, seed=0)["nDCG@5"]
    assert better.p == pytest.approx(1 / 201)
    assert better.interval == (pytest.approx(10), pytest.approx(10))


def test_chance_is_found_significant_as_often_as_it_should():
    random = np.random.default_rng(6)
    found = [
        compare(measured(random.random(60)), measured(random.random(60)), resamples=99, seed=each)["P@1"].p <= 0.1
        for each in range(300)
    ]
    assert 0.05 < np.mean(found) < 0.16


def test_other_documents_are_refused():
    with pytest.raises(ValueError, match="other documents"):
        compare(measured([0.1, 0.2]), measured([0.1, 0.2, 0.3]), resamples=20, seed=0)
    with pytest.raises(ValueError, match="other propensities"):
        compare(measured([0.1, 0.2]), measured([0.1, 0.2], [1, 2]), resamples=20, seed=0)
