"""Bootstrap intervals and paired tests against loops, exact enumeration, SciPy and the normal approximation.

python -m pytest tests/evaluation/test_resampling.py
"""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from axml_ray.evaluation.metrics import resampling
from axml_ray.evaluation.metrics.metrics import MEANS, METRICS, RATIOS, DocumentScores
from axml_ray.evaluation.metrics.resampling import bootstrap_intervals, compare_paired


def document_scores(column, attainable=1.0, collected=None):
    """Build document scores that are equal in all metrics; `collected` are the numerators of ratios."""
    values = np.repeat(np.asarray(column, np.float64)[:, None], len(METRICS), 1)
    if collected is not None:
        values[:, len(MEANS) :] = np.asarray(collected)[:, None]
    return DocumentScores(
        values, np.broadcast_to(np.reshape(attainable, (-1, 1)), (len(values), len(RATIOS))).astype(float)
    )


def test_interval_of_a_mean_agrees_with_the_normal_approximation():
    column = np.random.default_rng(1).random(800)
    low, high = bootstrap_intervals(document_scores(column), resamples=2000, seed=0)["P@1"]
    half = 1.96 * column.std(ddof=1) / 800**0.5
    assert (low, high) == pytest.approx((100 * (column.mean() - half), 100 * (column.mean() + half)), abs=0.15)


def test_interval_of_a_ratio_resamples_numerator_and_denominator():
    random = np.random.default_rng(2)
    attainable = random.random(60) + 0.5
    collected = attainable * random.random(60)
    interval = bootstrap_intervals(document_scores(random.random(60), attainable, collected), resamples=400, seed=3)[
        "PSP@5"
    ]
    generator = np.random.default_rng(3)
    ratios = []
    for _ in range(400):
        rows = generator.integers(0, 60, 60)
        ratios.append(100 * sum(collected[rows]) / sum(attainable[rows]))
    assert interval == pytest.approx(np.quantile(ratios, [0.025, 0.975]).tolist())


def test_block_size_does_not_change_results(monkeypatch):
    random = np.random.default_rng(0)
    one, other = document_scores(random.random(50)), document_scores(random.random(50))
    whole = bootstrap_intervals(one, resamples=100, seed=1), compare_paired(one, other, resamples=100, seed=1)
    monkeypatch.setattr(resampling, "MAX_WEIGHTS", 150)
    parts = bootstrap_intervals(one, resamples=100, seed=1), compare_paired(one, other, resamples=100, seed=1)
    assert parts[0]["P@3"] == pytest.approx(whole[0]["P@3"])
    assert parts[1]["P@3"].p == whole[1]["P@3"].p
    assert bootstrap_intervals(one, resamples=100, seed=2) != whole[0]


@pytest.mark.parametrize("documents", [1_000, 1_001, 1_999, 7_777])
def test_groups_of_documents_vary_as_much_as_the_documents(documents, monkeypatch):
    """Also if neighbours are alike, as in a sorted file: a group has no neighbours."""
    random = np.random.default_rng(7)
    attainable, *scores = np.repeat(random.random((3, documents // 4 + 1)), 4, axis=1)[:, :documents]
    attainable += 0.5
    one, other = (document_scores(each, attainable, attainable * each) for each in (scores[0], scores[1] ** 1.05))
    alone = bootstrap_intervals(one), compare_paired(one, other)
    monkeypatch.setattr(resampling, "MOST_GROUPS", 800)
    grouped = bootstrap_intervals(one), compare_paired(one, other)
    for name in ("P@1", "PSP@5"):
        width = alone[0][name][1] - alone[0][name][0]
        assert grouped[0][name] == pytest.approx(alone[0][name], abs=0.1 * width)
        assert grouped[1][name].points == alone[1][name].points
        assert grouped[1][name].interval == pytest.approx(alone[1][name].interval, abs=0.15 * width)
        assert grouped[1][name].p == pytest.approx(alone[1][name].p, abs=0.1)


def test_p_value_agrees_with_enumerating_all_swaps():
    one = document_scores([0.9, 0.8, 0.7, 0.9, 0.4, 0.6, 0.8, 0.3])
    other = document_scores([0.5, 0.7, 0.6, 0.9, 0.5, 0.2, 0.6, 0.2])
    differences = one.values[:, METRICS.index("P@1")] - other.values[:, METRICS.index("P@1")]
    swaps = [abs(np.dot(signs, differences)) for signs in product((-1, 1), repeat=8)]
    exact = np.mean([swap >= abs(differences.sum()) - 1e-9 for swap in swaps])
    difference = compare_paired(one, other, resamples=20_000, seed=0)["P@1"]
    assert difference.p == pytest.approx(exact, abs=0.01)
    assert difference.points == pytest.approx(100 * differences.mean())
    opposite = compare_paired(other, one, resamples=20_000, seed=0)["P@1"]
    assert (opposite.points, opposite.p) == (pytest.approx(-difference.points), pytest.approx(difference.p))
    assert opposite.interval == pytest.approx((-difference.interval[1], -difference.interval[0]))


def test_p_value_of_a_ratio_agrees_with_scipys_permutation_test():
    random = np.random.default_rng(4)
    attainable = random.random(40) + 0.5
    one, other = (attainable * random.random(40) for _ in range(2))
    difference = compare_paired(
        document_scores(one, attainable, one), document_scores(other, attainable, other), resamples=5000, seed=1
    )["PSP@1"]
    expected = stats.permutation_test(
        (one, other),
        lambda a, b: a.sum() / attainable.sum() - b.sum() / attainable.sum(),
        permutation_type="samples",
        n_resamples=5000,
        vectorized=False,
        rng=np.random.default_rng(2),
    )
    assert difference.points == pytest.approx(100 * expected.statistic)
    assert difference.p == pytest.approx(expected.pvalue, abs=0.04)


def test_equal_rankings_have_p_1_and_better_ones_a_small_p():
    random = np.random.default_rng(5)
    column = random.random(300)
    same = compare_paired(document_scores(column), document_scores(column), resamples=200, seed=0)["nDCG@5"]
    assert (same.points, same.interval, same.p) == (0, (0, 0), 1)
    better = compare_paired(document_scores(column + 0.1), document_scores(column), resamples=200, seed=0)["nDCG@5"]
    assert better.p == pytest.approx(1 / 201)
    assert better.interval == (pytest.approx(10), pytest.approx(10))


def test_false_positive_rate_is_the_significance_level():
    random = np.random.default_rng(6)
    is_significant = [
        compare_paired(document_scores(random.random(60)), document_scores(random.random(60)), resamples=99, seed=each)[
            "P@1"
        ].p
        <= 0.1
        for each in range(300)
    ]
    assert 0.05 < np.mean(is_significant) < 0.16


def test_different_documents_or_propensities_raise():
    with pytest.raises(ValueError, match="different documents"):
        compare_paired(document_scores([0.1, 0.2]), document_scores([0.1, 0.2, 0.3]), resamples=20, seed=0)
    with pytest.raises(ValueError, match="different propensities"):
        compare_paired(document_scores([0.1, 0.2]), document_scores([0.1, 0.2], [1, 2]), resamples=20, seed=0)
