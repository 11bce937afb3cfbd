"""Frequency calibration against a literal version of its equation, and fits of simulated data.

Run: pytest tests/ensemble/test_frequency.py
"""

import json
import math

import numpy as np
import pytest
from ensemble.random_rankings import CALIBRATION, COUNTS, literal_calibration, rankings
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from axml_ray.core.ragged import Ragged
from axml_ray.core.topk import TopK
from axml_ray.ensemble.combiner import Mean, MemberWeights, Validation
from axml_ray.ensemble.frequency import FILE, Coefficients, FrequencyCalibration

ONE = MemberWeights(["network_tree"], [1.0])
TWO = MemberWeights(["network_tree", "knn"], [3.0, 1.0])


def literal_scores(labels: np.ndarray, means: np.ndarray, c: Coefficients = CALIBRATION.coefficients) -> np.ndarray:
    """Compute calibrated scores by the equation, float64."""
    pairs = zip(COUNTS[labels].ravel().tolist(), means.ravel().tolist(), strict=True)
    return np.array([literal_calibration(c, mean, count) for count, mean in pairs]).reshape(means.shape)


class TestScores:
    @given(rankings(2), st.integers(1, 9))
    def test_rankings_follow_the_equation(self, of_members: list[TopK], k: int):
        mean = Mean().rank(TWO, of_members, k)
        labels, scores = CALIBRATION.rank(TWO, of_members, k)
        assert (labels.dtype, scores.dtype) == (np.int32, np.float32) and labels.shape == scores.shape == (2, k)
        for row, (best, points) in enumerate(zip(labels.tolist(), scores.tolist(), strict=True)):
            is_ranked = mean.labels[row] >= 0
            of_mean = mean.labels[row][is_ranked]
            expected = dict(zip(of_mean.tolist(), literal_scores(of_mean, mean.scores[row][is_ranked]), strict=True))
            count = len(expected)
            assert set(best[:count]) == set(expected) and best[count:] == [-1] * (k - count)
            assert points[:count] == pytest.approx([expected[label] for label in best[:count]], rel=1e-5)
            assert points == sorted(points, reverse=True) and not any(points[count:])

    def test_scores_of_given_labels(self):
        labels = np.array([6, 0])
        of_members = [np.array([[0.2, 0.5], [0.9, 0.0]], np.float32), np.array([[0.6, 0.1], [1.0, 0.0]], np.float32)]
        scores = CALIBRATION.score(TWO, labels, of_members)
        assert scores.dtype == np.float32
        expected = literal_scores(np.broadcast_to(labels, (2, 2)), 0.75 * of_members[0] + 0.25 * of_members[1])
        np.testing.assert_allclose(scores, expected, rtol=1e-5)


def simulate(c: Coefficients, documents: int = 20_000, seed: int = 0) -> Validation:
    """Draw one label per document, true with the probability of the equation."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, len(COUNTS) - 1, documents)
    scores = random.uniform(0.01, 0.99, documents).astype(np.float32)
    true = random.random(documents) < literal_scores(labels, scores, c)
    truth = Ragged.from_rows([[label] if hit else [] for label, hit in zip(labels.tolist(), true, strict=True)])
    return Validation(ONE, [TopK(labels[:, None].astype(np.int32), scores[:, None])], truth, COUNTS)


class TestFit:
    def test_recovers_the_coefficients(self):
        coefficients = Coefficients(intercept=1.0, score=1.2, both=-0.1, frequency=-0.5)
        fitted = FrequencyCalibration.fit(simulate(coefficients), 1).coefficients
        assert fitted.model_dump() == pytest.approx(coefficients.model_dump(), abs=0.1)

    def test_fits_the_weighted_mean(self):
        coefficients = Coefficients(intercept=1.0, score=1.2, both=-0.1, frequency=-0.5)
        validation = simulate(coefficients)
        (ranking,) = validation.rankings
        # 0.75 · 4/5 s + 0.25 · 8/5 s is s.
        parts = [TopK(ranking.labels, np.float32(factor) * ranking.scores) for factor in (0.8, 1.6)]
        two = Validation(TWO, parts, validation.truth, COUNTS)
        of_two, of_one = (FrequencyCalibration.fit(each, 1).coefficients for each in (two, validation))
        assert of_two.model_dump() == pytest.approx(of_one.model_dump(), rel=1e-3)

    def test_never_reorders_the_documents_of_a_label(self):
        """In the simulated data, frequent labels are less probable the higher they score."""
        coefficients = Coefficients(score=0.5, both=-0.3)
        calibration = FrequencyCalibration.fit(simulate(coefficients), 1)
        rising = np.linspace(0, 1, 50, dtype=np.float32)[:, None]
        for label in range(len(COUNTS) - 1):
            assert (np.diff(calibration.score(ONE, np.array([label]), [rising])[:, 0]) >= 0).all()

    @pytest.mark.parametrize("hits", [[], [0, 1, 2]], ids=["none true", "all true"])
    def test_only_true_or_only_false_labels_leave_scores_unchanged(self, hits):
        ranking = TopK(np.array([[2, 0, 1]], np.int32), np.array([[0.9, 0.5, 0.1]], np.float32))
        calibration = FrequencyCalibration.fit(Validation(ONE, [ranking], Ragged.from_rows([hits]), COUNTS), 3)
        assert calibration.coefficients == Coefficients()
        ranked = calibration.rank(ONE, [ranking], 3)
        assert ranked.labels.tolist() == ranking.labels.tolist()
        np.testing.assert_allclose(ranked.scores, ranking.scores, rtol=1e-5)

    def test_padding_is_ignored(self):
        validation = simulate(Coefficients(intercept=1.0, score=1.2, both=-0.1, frequency=-0.5), 2_000)
        narrow, padded = (FrequencyCalibration.fit(validation, k).coefficients for k in (1, 4))
        assert padded.model_dump() == pytest.approx(narrow.model_dump(), rel=1e-6)


class TestFile:
    def test_load_reads_what_save_wrote(self, tmp_path):
        CALIBRATION.save(tmp_path)
        loaded = FrequencyCalibration.load(tmp_path, COUNTS)
        assert loaded.coefficients == CALIBRATION.coefficients and loaded.counts is COUNTS
        with pytest.raises(FileNotFoundError):
            FrequencyCalibration.load(tmp_path / "none", COUNTS)

    @pytest.mark.parametrize(
        "damage",
        [{"score": "x"}, {"score": None}, {"score": math.nan}, {"extra": 1}, {"format": "else"}],
        ids=["no number", "null", "not finite", "unknown key", "another file"],
    )
    def test_a_damaged_file_raises(self, tmp_path, damage):
        CALIBRATION.save(tmp_path)
        path = tmp_path / FILE
        path.write_text(json.dumps(json.loads(path.read_text()) | damage))
        with pytest.raises(ValueError, match=r"frequency\.json"):
            FrequencyCalibration.load(tmp_path, COUNTS)

    @pytest.mark.parametrize("content", ["[1", "[1]", "null", ""])
    def test_other_content_raises(self, tmp_path, content):
        (tmp_path / FILE).write_text(content)
        with pytest.raises(ValueError, match=r"frequency\.json"):
            FrequencyCalibration.load(tmp_path, COUNTS)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_coefficients_must_be_finite(self, value):
        with pytest.raises(ValidationError):
            Coefficients(score=value)
