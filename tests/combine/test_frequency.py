"""Calibration by label frequency against its equation, one label at a time, and against a law that it is to find.

Run: pytest tests/combine/test_frequency.py
"""

import json
import math

import numpy as np
import pytest
from combine.some_rankings import COUNTS, UNEVEN, calibrated, rankings
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from axml_ray.combine.combiner import Mean, Validation, Weighted
from axml_ray.combine.frequency import FILE, Coefficients, FrequencyCalibration
from axml_ray.members.topk import TopK
from axml_ray.ragged import Ragged

ALONE = Weighted(["network_tree"], [1.0])
TWO = Weighted(["network_tree", "knn"], [3.0, 1.0])


def each_score(labels: np.ndarray, means: np.ndarray, c: Coefficients = UNEVEN.coefficients) -> np.ndarray:
    """float64, by the equation."""
    pairs = zip(COUNTS[labels].ravel().tolist(), means.ravel().tolist(), strict=True)
    return np.array([calibrated(c, mean, count) for count, mean in pairs]).reshape(means.shape)


class TestScores:
    @given(rankings(2), st.integers(1, 9))
    def test_are_the_equations_and_ranked(self, of_members: list[TopK], k: int):
        mean = Mean().rank(TWO, of_members, k)
        labels, scores = UNEVEN.rank(TWO, of_members, k)
        assert (labels.dtype, scores.dtype) == (np.int32, np.float32) and labels.shape == scores.shape == (2, k)
        for row, (best, points) in enumerate(zip(labels.tolist(), scores.tolist(), strict=True)):
            there = mean.labels[row] >= 0
            of_mean = mean.labels[row][there]
            expected = dict(zip(of_mean.tolist(), each_score(of_mean, mean.scores[row][there]), strict=True))
            count = len(expected)
            assert set(best[:count]) == set(expected) and best[count:] == [-1] * (k - count)
            assert points[:count] == pytest.approx([expected[label] for label in best[:count]], rel=1e-5)
            assert points == sorted(points, reverse=True) and not any(points[count:])

    def test_of_given_labels(self):
        labels = np.array([6, 0])
        own = [np.array([[0.2, 0.5], [0.9, 0.0]], np.float32), np.array([[0.6, 0.1], [1.0, 0.0]], np.float32)]
        scores = UNEVEN.score(TWO, labels, own)
        assert scores.dtype == np.float32
        expected = each_score(np.broadcast_to(labels, (2, 2)), 0.75 * own[0] + 0.25 * own[1])
        np.testing.assert_allclose(scores, expected, rtol=1e-5)


def drawn(c: Coefficients, documents: int = 20_000, seed: int = 0) -> Validation:
    """One label a document, true with the probability of the equation."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, len(COUNTS) - 1, documents)
    scores = random.uniform(0.01, 0.99, documents).astype(np.float32)
    true = random.random(documents) < each_score(labels, scores, c)
    truth = Ragged.from_rows([[label] if hit else [] for label, hit in zip(labels.tolist(), true, strict=True)])
    return Validation(ALONE, [TopK(labels[:, None].astype(np.int32), scores[:, None])], truth, COUNTS)


class TestFit:
    def test_finds_the_law(self):
        law = Coefficients(intercept=1.0, score=1.2, both=-0.1, frequency=-0.5)
        found = FrequencyCalibration.fit(drawn(law), 1).coefficients
        assert found.model_dump() == pytest.approx(law.model_dump(), abs=0.1)

    def test_learns_from_the_weighted_mean(self):
        law = Coefficients(intercept=1.0, score=1.2, both=-0.1, frequency=-0.5)
        validation = drawn(law)
        (ranking,) = validation.rankings
        # 0.75 · 4/5 s + 0.25 · 8/5 s is s.
        parts = [TopK(ranking.labels, np.float32(factor) * ranking.scores) for factor in (0.8, 1.6)]
        two = Validation(TWO, parts, validation.truth, COUNTS)
        found, alone = (FrequencyCalibration.fit(each, 1).coefficients for each in (two, validation))
        assert found.model_dump() == pytest.approx(alone.model_dump(), rel=1e-3)

    def test_never_changes_the_order_of_a_labels_texts(self):
        """A law by which frequent labels are the less likely, the higher they score."""
        law = Coefficients(score=0.5, both=-0.3)
        calibration = FrequencyCalibration.fit(drawn(law), 1)
        rising = np.linspace(0, 1, 50, dtype=np.float32)[:, None]
        for label in range(len(COUNTS) - 1):
            assert (np.diff(calibration.score(ALONE, np.array([label]), [rising])[:, 0]) >= 0).all()

    @pytest.mark.parametrize("hits", [[], [0, 1, 2]], ids=["none true", "all true"])
    def test_nothing_to_learn_from_leaves_scores_as_they_are(self, hits):
        ranking = TopK(np.array([[2, 0, 1]], np.int32), np.array([[0.9, 0.5, 0.1]], np.float32))
        calibration = FrequencyCalibration.fit(Validation(ALONE, [ranking], Ragged.from_rows([hits]), COUNTS), 3)
        assert calibration.coefficients == Coefficients()
        same = calibration.rank(ALONE, [ranking], 3)
        assert same.labels.tolist() == ranking.labels.tolist()
        np.testing.assert_allclose(same.scores, ranking.scores, rtol=1e-5)

    def test_missing_labels_teach_nothing(self):
        validation = drawn(Coefficients(intercept=1.0, score=1.2, both=-0.1, frequency=-0.5), 2_000)
        narrow, padded = (FrequencyCalibration.fit(validation, k).coefficients for k in (1, 4))
        assert padded.model_dump() == pytest.approx(narrow.model_dump(), rel=1e-6)


class TestFile:
    def test_is_read_back(self, tmp_path):
        UNEVEN.save(tmp_path)
        again = FrequencyCalibration.load(tmp_path, COUNTS)
        assert again.coefficients == UNEVEN.coefficients and again.counts is COUNTS
        with pytest.raises(FileNotFoundError):
            FrequencyCalibration.load(tmp_path / "none", COUNTS)

    @pytest.mark.parametrize(
        "damage",
        [{"score": "x"}, {"score": None}, {"score": math.nan}, {"extra": 1}, {"format": "else"}],
        ids=["no number", "null", "not finite", "unknown key", "another file"],
    )
    def test_damage_is_refused(self, tmp_path, damage):
        UNEVEN.save(tmp_path)
        path = tmp_path / FILE
        path.write_text(json.dumps(json.loads(path.read_text()) | damage))
        with pytest.raises(ValueError, match=r"frequency\.json holds no frequency calibration"):
            FrequencyCalibration.load(tmp_path, COUNTS)

    @pytest.mark.parametrize("content", ["[1", "[1]", "null", ""])
    def test_another_files_content_is_refused(self, tmp_path, content):
        (tmp_path / FILE).write_text(content)
        with pytest.raises(ValueError, match=r"frequency\.json"):
            FrequencyCalibration.load(tmp_path, COUNTS)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_coefficients_are_finite(self, value):
        with pytest.raises(ValidationError):
            Coefficients(score=value)
