"""Run: pytest tests/inference/test_frequency.py

The correction by label frequency against its equation, one label at a time, and against a law that it is to find.
"""

import json
import math

import numpy as np
import pytest
from axml_ray.inference.frequency import LEAST, Coefficients, FrequencyCorrection
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from axml_ray.evaluation.predictions import Ranking
from axml_ray.ragged import Ragged

COUNTS = np.array([400, 90, 30, 7, 2, 1, 0])
UNEVEN = FrequencyCorrection(Coefficients(intercept=0.3, score=0.9, both=-0.05, frequency=-0.4), COUNTS)


def literal(c: Coefficients, score: float, count: int) -> float:
    inside = min(max(score, LEAST), 1 - LEAST)
    logit, f = math.log(inside / (1 - inside)), math.log(1 + count)
    return 1 / (1 + math.exp(-(c.intercept + (c.score + c.both * f) * logit + c.frequency * f)))


rankings = st.integers(1, 5).flatmap(
    lambda k: st.lists(
        st.tuples(
            st.permutations(range(len(COUNTS))).map(lambda labels: labels[:k]),
            st.lists(st.floats(0, 3, width=32), min_size=k, max_size=k),
            st.integers(0, k),
        ),
        min_size=1,
        max_size=4,
    )
)


class TestScores:
    @given(rankings)
    def test_are_the_equations_and_ranked(self, rows):
        labels = np.array([[label if i < n else -1 for i, label in enumerate(row)] for row, _, n in rows], np.int32)
        summed = np.array([[score if i < n else 0 for i, score in enumerate(row)] for _, row, n in rows], np.float32)
        found, scores = UNEVEN.ranked((labels, summed), trees=3)
        assert found.dtype == np.int32 and scores.dtype == np.float32
        for row, (best, points) in enumerate(zip(found.tolist(), scores.tolist(), strict=True)):
            expected = {
                label: 3 * literal(UNEVEN.coefficients, score / 3, int(COUNTS[label]))
                for label, score in zip(labels[row].tolist(), summed[row].tolist(), strict=True)
                if label >= 0
            }
            real = [label for label in best if label >= 0]
            assert set(real) == set(expected) and best[len(real) :] == [-1] * (len(best) - len(real))
            assert points[: len(real)] == pytest.approx([expected[label] for label in real], rel=1e-5)
            assert points == sorted(points, reverse=True) and not any(points[len(real) :])

    def test_of_given_labels(self):
        labels, summed = np.array([6, 0]), np.array([[0.2, 1.5], [0.9, 0.0]], np.float32)
        expected = [
            [
                2 * literal(UNEVEN.coefficients, float(one) / 2, int(COUNTS[label]))
                for label, one in zip(labels, row, strict=True)
            ]
            for row in summed
        ]
        np.testing.assert_allclose(UNEVEN.scores(labels, summed, 2), expected, rtol=1e-5)


def drawn(c: Coefficients, documents: int = 20_000, seed: int = 0) -> Ranking:
    """One label a document, true with the probability of the equation."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, len(COUNTS) - 1, documents)
    scores = random.uniform(0.01, 0.99, documents).astype(np.float32)
    chance = [literal(c, float(score), int(COUNTS[label])) for score, label in zip(scores, labels, strict=True)]
    true = random.random(documents) < chance
    truth = Ragged.from_rows([[label] if hit else [] for label, hit in zip(labels.tolist(), true, strict=True)])
    return Ranking(labels[:, None].astype(np.int32), 3 * scores[:, None], truth)


class TestFit:
    def test_finds_the_law(self):
        law = Coefficients(intercept=1.0, score=1.2, both=-0.1, frequency=-0.5)
        found = FrequencyCorrection.fit(drawn(law), COUNTS, trees=3).coefficients
        assert found.model_dump() == pytest.approx(law.model_dump(), abs=0.1)

    def test_never_turns_the_texts_of_a_label(self):
        """A law by which frequent labels are the less likely, the higher they score."""
        law = Coefficients(score=0.5, both=-0.3)
        correction = FrequencyCorrection.fit(drawn(law), COUNTS, trees=3)
        rising = np.linspace(0, 3, 50, dtype=np.float32)[:, None]
        for label in range(len(COUNTS) - 1):
            assert (np.diff(correction.scores(np.array([label]), rising, 3)[:, 0]) >= 0).all()

    @pytest.mark.parametrize("hits", [[], [0, 1, 2]], ids=["none true", "all true"])
    def test_of_nothing_to_tell_by(self, hits):
        ranking = Ranking(
            np.array([[2, 0, 1]], np.int32), np.array([[0.9, 0.5, 0.1]], np.float32), Ragged.from_rows([hits])
        )
        correction = FrequencyCorrection.fit(ranking, COUNTS, trees=1)
        assert correction.coefficients == Coefficients()
        np.testing.assert_allclose(correction.scores(ranking.top, ranking.scores, 1), ranking.scores, rtol=1e-5)

    def test_missing_labels_teach_nothing(self):
        law = Coefficients(intercept=1.0, score=1.2, both=-0.1, frequency=-0.5)
        ranking = drawn(law, 2_000)
        wide = Ranking(
            np.pad(ranking.top, ((0, 0), (0, 3)), constant_values=-1),
            np.pad(ranking.scores, ((0, 0), (0, 3))),
            ranking.truth,
        )
        narrow, padded = (FrequencyCorrection.fit(one, COUNTS, 3).coefficients for one in (ranking, wide))
        assert padded.model_dump() == pytest.approx(narrow.model_dump(), rel=1e-6)


class TestFile:
    def test_is_read_back_for_the_same_fingerprint_alone(self, tmp_path):
        UNEVEN.save(tmp_path / "f.json", "abc")
        assert FrequencyCorrection.load(tmp_path / "f.json", "abc", COUNTS).coefficients == UNEVEN.coefficients
        assert FrequencyCorrection.load(tmp_path / "f.json", "other", COUNTS) is None
        assert FrequencyCorrection.load(tmp_path / "none.json", "abc", COUNTS) is None

    @pytest.mark.parametrize(
        "damage",
        [{"score": "x"}, {"score": None}, {"extra": 1}, {"format": "else"}],
        ids=["no number", "null", "unknown key", "another file"],
    )
    def test_damage_is_no_correction(self, tmp_path, damage):
        UNEVEN.save(tmp_path / "f.json", "abc")
        content = json.loads((tmp_path / "f.json").read_text()) | damage
        (tmp_path / "f.json").write_text(json.dumps(content))
        assert FrequencyCorrection.load(tmp_path / "f.json", "abc", COUNTS) is None
        (tmp_path / "f.json").write_text("[1")
        assert FrequencyCorrection.load(tmp_path / "f.json", "abc", COUNTS) is None

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_coefficients_are_finite(self, value):
        with pytest.raises(ValidationError):
            Coefficients(score=value)
