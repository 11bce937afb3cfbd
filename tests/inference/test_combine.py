"""Run: pytest tests/inference/test_combine.py"""

import numpy as np
from axml_ray.inference.combining import aligned, combine, ranked
from hypothesis import given
from hypothesis import strategies as st

# exact in float32 and in sums, so that equal scores are equal
SCORES = st.integers(0, 16).map(lambda sixteenth: sixteenth / 16)


@st.composite
def trees(draw):
    documents, count = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    labels, scores = [], []
    for _ in range(count):
        width = draw(st.integers(1, 6))
        rows, points = [], []
        for _ in range(documents):
            row = draw(st.lists(st.integers(0, 7), max_size=width, unique=True))
            rows.append(row + [-1] * (width - len(row)))
            points.append([draw(SCORES) for _ in row] + [0.0] * (width - len(row)))
        labels.append(np.array(rows, dtype=np.int32))
        scores.append(np.array(points, dtype=np.float32))
    return labels, scores


def literal(labels: list[list[int]], scores: list[list[float]], top: int) -> tuple[list[int], list[float]]:
    total: dict[int, float] = {}
    for row, points in zip(labels, scores, strict=True):
        for label, score in zip(row, points, strict=True):
            if label >= 0:
                total[label] = total.get(label, 0.0) + score
    best = sorted(total, key=lambda label: (-total[label], label))[:top]
    missing = top - len(best)
    return best + [-1] * missing, [total[label] for label in best] + [0.0] * missing


@given(trees(), st.integers(1, 30))
def test_is_the_literal_sum(given_trees, top):
    labels, scores = given_trees
    found, total = combine(labels, scores, top)
    assert found.dtype == np.int32 and total.dtype == np.float32
    assert found.shape == total.shape == (len(labels[0]), top)
    for document in range(len(found)):
        rows, points = [one[document].tolist() for one in labels], [one[document].tolist() for one in scores]
        assert (found[document].tolist(), total[document].tolist()) == literal(rows, points, top)


def test_by_hand():
    labels = [np.array([[7, 2, 5]], np.int32), np.array([[5, 9, -1]], np.int32)]
    scores = [np.array([[0.5, 0.25, 0.25]], np.float32), np.array([[0.25, 0.25, 0.0]], np.float32)]
    found, total = combine(labels, scores, 5)
    assert found.tolist() == [[5, 7, 2, 9, -1]]
    assert total.tolist() == [[0.5, 0.5, 0.25, 0.25, 0.0]]


@given(trees())
def test_aligned_says_what_each_ranking_says_of_each_label(given_trees):
    labels, scores = given_trees
    every, of_each = aligned(labels, scores)
    assert of_each.shape == (*every.shape, len(labels))
    for document, row in enumerate(every.tolist()):
        said = [
            dict(zip(one[document].tolist(), points[document].tolist(), strict=True))
            for one, points in zip(labels, scores, strict=True)
        ]
        named = sorted(label for label in set().union(*said) if label >= 0)
        assert [label for label in row if label >= 0] == named
        for label, points in zip(row, of_each[document].tolist(), strict=True):
            assert points == [one.get(label, 0.0) if label >= 0 else 0.0 for one in said]


def test_what_has_no_score_is_left_out():
    labels, scores = ranked(np.array([[4, -1, 2, 7]], np.int32), np.array([[0.1, 9.0, np.nan, 0.3]]), 3)
    assert labels.tolist() == [[7, 4, -1]]
    assert scores.tolist() == [[np.float32(0.3), np.float32(0.1), 0]]
