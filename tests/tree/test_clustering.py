"""Run: pytest tests/tree/test_clustering.py"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from axml_ray.tree import clustering
from axml_ray.tree.clustering import balanced_clusters, cluster_offsets, halve, halve_grams, normalise_rows


def random_features(labels: int, columns: int = 60, nonzeros: int = 8, seed: int = 0) -> sparse.csr_array:
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(labels), nonzeros)
    values = rng.random(rows.size) + 0.1
    coo = sparse.coo_array((values, (rows, rng.integers(columns, size=rows.size))), shape=(labels, columns))
    return normalise_rows(coo.tocsr())


def literal_halve(features: np.ndarray, first: int, second: int) -> tuple[np.ndarray, list[float]]:
    """The paper's 2-means, row by row in float64; also the mean similarity of each round."""
    n = len(features)
    left_centre, right_centre = features[first], features[second]
    means: list[float] = []
    while True:
        differences = [float(row @ right_centre) - float(row @ left_centre) for row in features]
        ranked = sorted(range(n), key=lambda i: differences[i])
        left, right = ranked[: n // 2], ranked[n // 2 :]
        total = sum(features[i] @ left_centre for i in left) + sum(features[i] @ right_centre for i in right)
        means.append(total / n)
        if len(means) > 1 and means[-1] - means[-2] < 1e-4:
            return np.isin(np.arange(n), right), means
        left_centre, right_centre = (
            centre / (np.linalg.norm(centre) or 1.0)
            for centre in (features[left].sum(axis=0), features[right].sum(axis=0))
        )


def literal_clusters(features: np.ndarray, depth: int, seed: int) -> list[list[int]]:
    """Recursive halving with the generator of each node."""

    def split(rows: list[int], level: int, index: int) -> list[list[int]]:
        if level == depth:
            return [rows]
        first, second = clustering._first_centres(len(rows), np.random.default_rng([seed, level, index]))
        right, _ = literal_halve(features[rows], first, second)
        halves = [[row for row, side in zip(rows, right, strict=True) if side == wanted] for wanted in (False, True)]
        return split(halves[0], level + 1, 2 * index) + split(halves[1], level + 1, 2 * index + 1)

    return split(list(range(len(features))), 0, 0)


def test_four_rows_by_hand():
    # Rows 0 and 2 point one way, 1 and 3 another: whichever two rows come first, the halves are these.
    features = normalise_rows(sparse.csr_array([[3.0, 0.0], [0.0, 1.0], [2.0, 0.1], [0.1, 5.0]]))
    for seed in range(5):
        right = halve(features, np.random.default_rng(seed))
        assert right.tolist() in ([False, True, False, True], [True, False, True, False])


@pytest.mark.parametrize("n", [2, 3, 7, 50, 301])
def test_halve_equals_the_literal_version(n):
    features = random_features(n, seed=n)
    first, second = clustering._first_centres(n, np.random.default_rng(9))
    expected, means = literal_halve(features.toarray().astype(np.float64), first, second)
    assert np.array_equal(halve(features, np.random.default_rng(9)), expected)
    assert expected.sum() == n - n // 2
    assert all(after >= before - 1e-12 for before, after in pairwise(means))


def test_nodes_halved_together_equal_nodes_halved_alone():
    nodes = [random_features(12, seed=seed) for seed in range(9)]
    pairs = [clustering._first_centres(12, np.random.default_rng(seed)) for seed in range(9)]
    grams = np.stack([(node.astype(np.float64) @ node.T.astype(np.float64)).toarray() for node in nodes])
    together = halve_grams(grams, np.array(pairs))
    for seed, node in enumerate(nodes):
        assert np.array_equal(together[seed], halve(node, np.random.default_rng(seed)))


@pytest.mark.parametrize("gram_rows", [1, 16, 256])
def test_clusters_equal_the_literal_version(monkeypatch, gram_rows):
    monkeypatch.setattr(clustering, "GRAM_ROWS", gram_rows)
    features = random_features(151, seed=4)
    order, offsets = balanced_clusters(features, 5, seed=3)
    expected = literal_clusters(features.toarray().astype(np.float64), 5, seed=3)
    assert [part.tolist() for part in np.split(order, offsets[1:-1])] == expected


def test_like_labels_share_a_cluster():
    # Eight groups of eight labels; a group's labels share words that no other group has.
    group = np.arange(64) % 8
    words = group[:, None] * 10 + np.random.default_rng(0).integers(0, 10, size=(64, 6))
    coo = sparse.coo_array((np.ones(words.size), (np.repeat(np.arange(64), 6), words.ravel())), shape=(64, 80))
    features = normalise_rows(coo.tocsr())
    best = 0
    for seed in range(10):
        order, offsets = balanced_clusters(features, 3, seed)
        best = max(best, sum(len(set(group[part])) == 1 for part in np.split(order, offsets[1:-1])))
    assert best >= 4


@given(labels=st.integers(1, 90), data=st.data())
@settings(max_examples=40, deadline=None)
def test_sizes_differ_by_one_at_most(labels, data):
    depth = data.draw(st.integers(0, labels.bit_length() - 1))
    order, offsets = balanced_clusters(random_features(labels, nonzeros=2), depth, seed=0)
    assert order.dtype == np.int32 and offsets.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(labels))
    assert offsets[0] == 0 and len(offsets) == 2**depth + 1 and offsets[-1] == labels
    assert set(np.diff(offsets)) <= {labels // 2**depth, -(-labels // 2**depth)}
    assert np.array_equal(offsets, cluster_offsets(labels, depth))


@pytest.mark.parametrize("gram_rows", [1, 256])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_rows_and_rows_without_features_keep_their_order(monkeypatch, gram_rows, value):
    monkeypatch.setattr(clustering, "GRAM_ROWS", gram_rows)
    features = normalise_rows(sparse.csr_array(np.full((21, 3), value)))
    order, offsets = balanced_clusters(features, 3, seed=1)
    assert order.tolist() == list(range(21))
    assert np.array_equal(offsets, cluster_offsets(21, 3))


def test_twins_among_other_rows_are_ties_on_both_paths():
    # Rows i and i + 30 are equal; only a halving's boundary may part them, and then the lower goes left.
    features = sparse.csr_array(sparse.vstack([random_features(30, seed=2)] * 2))
    gram = (features.astype(np.float64) @ features.T.astype(np.float64)).toarray()
    for seed in range(10):
        pair = clustering._first_centres(60, np.random.default_rng(seed))
        right = halve(features, np.random.default_rng(seed))
        assert np.array_equal(right, halve_grams(gram[None], np.array([pair]))[0])
        parted = np.flatnonzero(right[:30] != right[30:])
        assert parted.size <= 1 and not right[parted].any()


def test_some_rows_without_features():
    dense = random_features(40).toarray()
    dense[::3] = 0
    order, _ = balanced_clusters(sparse.csr_array(dense), 4, seed=0)
    assert sorted(order) == list(range(40))


def test_the_seed_decides():
    features = random_features(600)
    first, _ = balanced_clusters(features, 6, seed=5)
    again, _ = balanced_clusters(features, 6, seed=5)
    other, _ = balanced_clusters(features, 6, seed=6)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_deeper_clustering_refines_a_shallower_one():
    features = random_features(300)
    shallow, offsets = balanced_clusters(features, 2, seed=0)
    deep, _ = balanced_clusters(features, 6, seed=0)
    for start, end in pairwise(offsets):
        assert set(shallow[start:end]) == set(deep[start:end])


def test_normalise_rows():
    given_features = sparse.csr_array(np.array([[3.0, 4.0], [0.0, 0.0], [1e-200, 0.0], [1e30, 0.0]]))
    before = given_features.toarray()
    rows = normalise_rows(given_features)
    assert rows.dtype == np.float32
    assert np.allclose(rows.toarray(), [[0.6, 0.8], [0, 0], [0, 0], [1, 0]])
    assert np.array_equal(given_features.toarray(), before)


def test_what_is_refused():
    features = random_features(5)
    with pytest.raises(ValueError, match="at least two rows, got 1"):
        halve(random_features(1), np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"5 labels can't fill 2\*\*3 clusters"):
        balanced_clusters(features, 3, 0)
    with pytest.raises(ValueError, match=r"2\*\*-1"):
        balanced_clusters(features, -1, 0)
    with pytest.raises(ValueError, match="seed is -1"):
        balanced_clusters(features, 1, -1)
    with pytest.raises(ValueError, match="not finite"):
        normalise_rows(sparse.csr_array([[np.nan, 1.0]]))
