"""Run: pytest tests/inference/test_joining.py

The mean of networks and classifiers against its equation, one label at a time.
"""

import numpy as np
import pytest
from axml_ray.inference.combining import combine
from axml_ray.inference.joining import Join
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def found(draw):
    documents, width = 3, draw(st.integers(1, 6))
    labels, scores = np.full((documents, width), -1, np.int32), np.zeros((documents, width), np.float32)
    for document in range(documents):
        row = draw(st.lists(st.integers(0, 6), max_size=width, unique=True))
        labels[document, : len(row)] = row
        scores[document, : len(row)] = [draw(st.floats(0, 1, width=32)) for _ in row]
    return labels, scores


@given(found(), found(), st.integers(1, 14))
def test_is_the_weighted_mean(one, other, top):
    ballot = Join(0.3).ranking(one, other, top)
    expected = combine([one[0], other[0]], [one[1] * np.float64(0.7), other[1] * np.float64(0.3)], top)
    for part, right in zip(ballot.found, expected, strict=True):
        assert part.dtype == right.dtype
        np.testing.assert_allclose(part, right, rtol=1e-6)
    for document, row in enumerate(ballot.labels.tolist()):
        for member, said in ((one, ballot.networks), (other, ballot.classifiers)):
            points = dict(zip(member[0][document].tolist(), member[1][document].tolist(), strict=True))
            assert said[document].tolist() == [points.get(label, 0.0) if label >= 0 else 0.0 for label in row]


def test_of_given_labels():
    n, c = np.array([[0.2, 0.9], [0.5, 0.0]], np.float32), np.array([[0.1, 1.0], [0.0, 0.3]], np.float32)
    assert Join(0.3).scores(n, c) == pytest.approx(np.array([[0.17, 0.93], [0.35, 0.09]]))
