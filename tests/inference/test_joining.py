"""Run: pytest tests/inference/test_joining.py

The learned join against its equation, one label at a time in float64, and against a law that it is to find.
"""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from axml_ray.inference.combining import combine
from axml_ray.inference.frequency import LEAST
from axml_ray.inference.joining import KNOTS, Curve, Join, Learned

COUNTS = np.array([400, 90, 30, 7, 2, 1, 0])


def curve(*bends: tuple[int, float], both: float = 0.0) -> Curve:
    """A curve that bends at some knots; at the first it begins."""
    slopes = [0.0] * len(KNOTS)
    for column, value in bends:
        slopes[column] = value
    return Curve(slopes=tuple(slopes), both=both)


UNEVEN = Join(
    0.3,
    Learned(
        knots=KNOTS,
        intercept=-0.5,
        frequency=-0.2,
        mean=curve((0, 0.4), (8, 0.3), both=-0.01),
        networks=curve((0, 0.1), (5, -0.3), (11, 0.7), both=0.02),
        classifiers=curve((3, 0.6), (9, -0.4)),
    ),
    COUNTS,
)


def literal(join: Join, networks: float, classifiers: float, count: int) -> float:
    learned, f = join.learned, math.log(1 + count)
    assert learned is not None
    total = learned.intercept + learned.frequency * f
    mean = (1 - join.share) * networks + join.share * classifiers
    for part, score in ((learned.mean, mean), (learned.networks, networks), (learned.classifiers, classifiers)):
        inside = min(max(score, LEAST), 1 - LEAST)
        x = max(math.log(inside / (1 - inside)), KNOTS[0])
        total += part.slopes[0] * x + part.both * f * x
        total += sum(slope * max(0.0, x - knot) for slope, knot in zip(part.slopes[1:], KNOTS[1:], strict=True))
    return 1 / (1 + math.exp(-total))


@st.composite
def found(draw):
    """What one member found of up to three documents: labels and scores."""
    documents, width = 3, draw(st.integers(1, 6))
    labels, scores = np.full((documents, width), -1, np.int32), np.zeros((documents, width), np.float32)
    for document in range(documents):
        row = draw(st.lists(st.integers(0, len(COUNTS) - 1), max_size=width, unique=True))
        labels[document, : len(row)] = row
        scores[document, : len(row)] = [draw(st.floats(0, 1, width=32)) for _ in row]
    return labels, scores


def as_dictionary(labels: np.ndarray, scores: np.ndarray) -> dict[int, float]:
    return {label: score for label, score in zip(labels.tolist(), scores.tolist(), strict=True) if label >= 0}


class TestRanking:
    @given(found(), found(), st.integers(1, 14))
    def test_is_of_the_equations_scores(self, one, other, top):
        labels, scores = UNEVEN.ranking(one, other, top)
        assert labels.dtype == np.int32 and scores.dtype == np.float32 and labels.shape == scores.shape == (3, top)
        for document in range(3):
            n, c = (as_dictionary(part[0][document], part[1][document]) for part in (one, other))
            expected = {
                label: literal(UNEVEN, n.get(label, 0.0), c.get(label, 0.0), int(COUNTS[label]))
                for label in n.keys() | c.keys()
            }
            best = as_dictionary(labels[document], scores[document])
            assert best == pytest.approx({label: expected[label] for label in best}, rel=1e-5)
            assert len(best) == min(top, len(expected))
            assert list(best.values()) == sorted(best.values(), reverse=True)
            assert all(points <= min(best.values()) + 1e-6 for label, points in expected.items() if label not in best)
            assert not scores[document, len(best) :].any()

    @given(found(), found(), st.integers(1, 14))
    def test_is_the_weighted_mean_where_nothing_is_learned(self, one, other, top):
        expected = combine([one[0], other[0]], [one[1] * np.float64(0.7), other[1] * np.float64(0.3)], top)
        for part, right in zip(Join(0.3).ranking(one, other, top), expected, strict=True):
            np.testing.assert_allclose(part, right, rtol=1e-6)

    def test_of_given_labels(self):
        labels = np.array([6, 0])
        n, c = np.array([[0.2, 0.9], [0.5, 0.0]], np.float32), np.array([[0.1, 1.0], [0.0, 0.3]], np.float32)
        expected = [
            [literal(UNEVEN, *points, int(COUNTS[label])) for label, *points in zip(labels, *rows, strict=True)]
            for rows in zip(n.tolist(), c.tolist(), strict=True)
        ]
        np.testing.assert_allclose(UNEVEN.scores(labels, n, c), expected, rtol=1e-5)


class TestFitted:
    def test_finds_the_law_that_labels_were_drawn_by(self):
        random = np.random.default_rng(0)
        n, c = random.uniform(0, 1, (2, 60_000)) ** 3
        c[::3] = 0  # labels that one member left out
        labels = random.integers(0, len(COUNTS) - 1, len(n))
        chance = UNEVEN.scores(labels, n, c)
        true = random.random(len(n)) < chance
        join = Join(0.3).fitted(labels, n, c, true, COUNTS)
        assert np.abs(join.scores(labels, n, c) - chance).mean() < 0.01
        assert np.abs(Join(0.3).scores(labels, n, c) - chance).mean() > 0.05
        assert join.fitted(labels, n, c, true, COUNTS).learned == join.learned

    @pytest.mark.parametrize("value", [True, False])
    def test_nothing_to_tell_by_leaves_the_mean(self, value):
        scores = np.linspace(0, 1, 9)
        assert Join(0.3).fitted(np.zeros(9, int), scores, scores, np.full(9, value), COUNTS).learned is None

    def test_members_that_say_the_same(self):
        scores, true = np.tile([0.1, 0.9], 500), np.tile([False, True], 500)
        join = Join(0.5).fitted(np.zeros(1000, int), scores, scores, true, COUNTS)
        low, high = join.scores(np.array([0, 0]), *[np.array([[0.1, 0.9]])] * 2)[0]
        assert low < 0.1 and high > 0.9

    def test_a_mistake_of_both_bends_nothing(self):
        random = np.random.default_rng(0)
        n, c = random.beta(0.1, 1, (2, 20_000))
        labels, true = random.integers(0, 6, len(n)), random.random(len(n)) < (n + c) / 2
        n[:3] = c[:3] = 0.9975  # all of them beyond the last knot but one, and wrong
        true[:3] = False
        sure = np.array([0.9, 0.99, 0.999, 0.9999])
        with_mistakes = Join(0.5).fitted(labels, n, c, true, COUNTS).scores(np.array(0), sure, sure)
        without = Join(0.5).fitted(labels[3:], n[3:], c[3:], true[3:], COUNTS).scores(np.array(0), sure, sure)
        assert (np.diff(with_mistakes) > 0).all() and with_mistakes[-1] > 0.9
        np.testing.assert_allclose(with_mistakes, without, atol=0.1)

    def test_labels_that_are_wrong_the_surer_both_are_are_left_as_they_are(self):
        random = np.random.default_rng(0)
        scores = random.random(5_000)
        true = random.random(len(scores)) > scores
        assert Join(0.5).fitted(np.zeros(len(scores), int), scores, scores, true, COUNTS).learned is None


class TestFile:
    @pytest.mark.parametrize("join", [UNEVEN, Join(0.3)])
    def test_round_trip(self, tmp_path, join):
        path = tmp_path / "join.json"
        join.save(path, "mark")
        loaded = Join.load(path, "mark", 0.3, COUNTS)
        assert loaded is not None and loaded.learned == join.learned
        assert Join.load(path, "another", 0.3, COUNTS) is None

    @pytest.mark.parametrize("change", [{"format": "x"}, {"learned": {"intercept": 1}}, {"learned": 3}])
    def test_what_is_wrong_counts_as_none(self, tmp_path, change):
        path = tmp_path / "join.json"
        UNEVEN.save(path, "mark")
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        assert Join.load(path, "mark", 0.3, COUNTS) is None
        path.write_text("{")
        assert Join.load(path, "mark", 0.3, COUNTS) is None
        assert Join.load(tmp_path / "absent.json", "mark", 0.3, COUNTS) is None

    @pytest.mark.parametrize("slopes", [(0.0,), (0.0,) * 20, (math.nan,) * len(KNOTS)])
    def test_curves_are_of_numbers_one_for_each_knot(self, slopes):
        content = UNEVEN.learned.model_dump()
        content["networks"]["slopes"] = slopes
        with pytest.raises(ValidationError):
            Learned.model_validate(content)
