"""Run: pytest tests/tree/test_clustering.py"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from axml_ray.tree import clustering, halving
from axml_ray.tree.clustering import balanced_clusters, normalise_rows
from axml_ray.tree.halving import BlockedRows
from axml_ray.tree.subtree import Subtree, cluster_offsets, first_centres


def random_features(labels: int, columns: int = 60, nonzeros: int = 8, seed: int = 0) -> sparse.csr_array:
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(labels), nonzeros)
    values = rng.random(rows.size) + 0.1
    coo = sparse.coo_array((values, (rows, rng.integers(columns, size=rows.size))), shape=(labels, columns))
    return normalise_rows(coo.tocsr())


@contextmanager
def cut_as(subtree_terms: int, block_terms: int = 1 << 21, wide_terms: int = 1 << 24) -> Iterator[None]:
    """Other sizes at which work is cut into jobs and blocks."""
    with (
        patch.object(clustering, "SUBTREE_TERMS", subtree_terms),
        patch.object(clustering, "WIDE_TERMS", wide_terms),
        patch.object(halving, "BLOCK_TERMS", block_terms),
    ):
        yield


class TieOfDifferentRows(Exception):
    """Rows that differ are equally similar to both centres: the errors of rounding decide which of them goes left."""


def literal_halve(features: np.ndarray, first: int, second: int) -> tuple[np.ndarray, list[float]]:
    """The paper's 2-means, row by row in float64; also the mean similarity of each round."""
    n = len(features)
    left_centre, right_centre = features[first], features[second]
    means: list[float] = []
    while True:
        differences = [round(float(row @ right_centre) - float(row @ left_centre), 12) for row in features]
        ranked = sorted(range(n), key=lambda i: differences[i])
        left, right = ranked[: n // 2], ranked[n // 2 :]
        tied = features[np.equal(differences, differences[right[0]])]
        # Products that are zero have no error: many rows share no column with the first two centres.
        rounded = (tied @ left_centre).any() or (tied @ right_centre).any()
        if differences[left[-1]] == differences[right[0]] and (tied != tied[0]).any() and rounded:
            raise TieOfDifferentRows
        total = sum(features[i] @ left_centre for i in left) + sum(features[i] @ right_centre for i in right)
        means.append(total / n)
        if len(means) > 1 and means[-1] - means[-2] < halving.MIN_GAIN:
            return np.isin(np.arange(n), right), means
        left_centre, right_centre = (
            centre / (np.linalg.norm(centre) or 1.0)
            for centre in (features[left].sum(axis=0), features[right].sum(axis=0))
        )


def literal_clusters(features: np.ndarray, depth: int, seed: int) -> list[list[int] | None]:
    """Recursive halving, node by node; None for the clusters of a node whose halving the errors of rounding decide."""

    def split(rows: list[int], level: int, index: int) -> list[list[int] | None]:
        if level == depth:
            return [rows]
        first, second = first_centres(np.array([len(rows)]), seed, level, np.array([index]))[0]
        try:
            right, means = literal_halve(features[rows], first, second)
        except TieOfDifferentRows:
            return [None] * 2 ** (depth - level)
        assert all(after >= before - 1e-12 for before, after in pairwise(means))
        halves = [[row for row, side in zip(rows, right, strict=True) if side == wanted] for wanted in (False, True)]
        return split(halves[0], level + 1, 2 * index) + split(halves[1], level + 1, 2 * index + 1)

    return split(list(range(len(features))), 0, 0)


def parts(order: np.ndarray, offsets: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(order, offsets[1:-1])]


def test_four_rows_by_hand():
    # Rows 0 and 2 point one way, 1 and 3 another: whichever two rows come first, the halves are these.
    features = normalise_rows(sparse.csr_array([[3.0, 0.0], [0.0, 1.0], [2.0, 0.1], [0.1, 5.0]]))
    for seed in range(5):
        assert sorted(parts(*balanced_clusters(features, 1, seed))) == [[0, 2], [1, 3]]


@pytest.mark.parametrize("n", [2, 3, 7, 50, 301])
def test_one_halving_equals_the_literal_version(n):
    features = random_features(n, seed=n)
    assert parts(*balanced_clusters(features, 1, seed=9)) == literal_clusters(features.toarray(), 1, seed=9)


@given(
    labels=st.integers(2, 150),
    columns=st.sampled_from([3, 40, 400]),
    nonzeros=st.integers(1, 12),
    seed=st.integers(0, 2**40),
    subtree_terms=st.sampled_from([1, 100, 1 << 20]),
    block_terms=st.sampled_from([30, 1 << 21]),
    wide_terms=st.sampled_from([1, 1 << 24]),
    threads=st.integers(1, 3),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_clustering_equals_the_literal_version(
    labels, columns, nonzeros, seed, subtree_terms, block_terms, wide_terms, threads, data
):
    depth = data.draw(st.integers(0, labels.bit_length() - 1))
    features = random_features(labels, columns, nonzeros, seed=seed)
    with cut_as(subtree_terms, block_terms, wide_terms):
        found = parts(*balanced_clusters(features, depth, seed, threads=threads))
    expected = literal_clusters(features.toarray(), depth, seed)
    assert len(found) == len(expected) and sorted(chain.from_iterable(found)) == list(range(labels))
    assert all(part == other for part, other in zip(found, expected, strict=True) if other is not None)


def test_threads_and_who_does_the_jobs_change_nothing():
    features = random_features(900, columns=300, nonzeros=20)
    with cut_as(600, block_terms=500, wide_terms=4_000):
        one, _ = balanced_clusters(features, 8, seed=1)
        for threads in (2, 3):
            assert np.array_equal(one, balanced_clusters(features, 8, seed=1, threads=threads)[0])

        def from_the_last(work, jobs):
            return reversed([work(job) for job in reversed(list(jobs))])

        assert np.array_equal(one, balanced_clusters(features, 8, seed=1, parallel_map=from_the_last)[0])


def test_a_job_is_large_or_alone():
    features = random_features(512, nonzeros=8)
    sizes = []

    def count(work, jobs):
        for job in jobs:
            assert isinstance(job, Subtree)
            sizes.append(job.rows.nnz)
            yield work(job)

    with cut_as(500):
        balanced_clusters(features, 6, seed=0, parallel_map=count)
    assert sum(sizes) == features.nnz and len(sizes) == 8
    sizes.clear()
    balanced_clusters(features, 6, seed=0, parallel_map=count)
    assert sizes == [features.nnz]


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_in_blocks(threads):
    features = random_features(100)
    rng = np.random.default_rng(0)
    vector, weights = rng.random(60), rng.random(100)
    with cut_as(1, block_terms=60), ThreadPoolExecutor(threads) as pool:
        rows = BlockedRows(features, pool.map)
        assert len(rows.blocks) > 5
        assert np.allclose(rows.dot(vector), features.toarray() @ vector)
        assert np.allclose(rows.sum(weights), weights @ features.toarray())
        for chosen in (np.arange(0, 100, 2), np.array([0, 41, 99]), np.array([], dtype=np.int64)):
            assert np.array_equal(rows.take(chosen).toarray(), features.toarray()[chosen])
            signs, sums = rng.choice([-1.0, 1.0], len(chosen)), np.ones(60)
            rows.add_to(sums, chosen, signs)
            assert np.allclose(sums, 1 + signs @ features.toarray()[chosen])


def test_first_centres_are_distinct_and_every_pair_is_as_likely():
    sizes = np.full(60_000, 4)
    pairs = first_centres(sizes, 7, 3, np.arange(len(sizes)))
    assert (pairs[:, 0] != pairs[:, 1]).all() and pairs.min() == 0 and pairs.max() == 3
    counts = np.bincount(pairs[:, 0] * 4 + pairs[:, 1])
    assert np.allclose(counts[counts > 0], 5_000, rtol=0.06) and np.count_nonzero(counts) == 12
    # A node's pair depends on its place only, not on the nodes drawn together.
    assert np.array_equal(first_centres(sizes[:1], 7, 3, np.array([41])), pairs[41:42])
    for other in ((8, 3), (7, 4)):
        assert not np.array_equal(first_centres(sizes, *other, np.arange(len(sizes))), pairs)


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


@pytest.mark.parametrize("subtree_terms", [1, 1 << 20])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_rows_and_rows_without_features_keep_their_order(subtree_terms, value):
    features = normalise_rows(sparse.csr_array(np.full((21, 3), value)))
    with cut_as(subtree_terms):
        order, offsets = balanced_clusters(features, 3, seed=1)
    assert order.tolist() == list(range(21))
    assert np.array_equal(offsets, cluster_offsets(21, 3))


@pytest.mark.parametrize("subtree_terms", [1, 1 << 20])
def test_twins_among_other_rows_are_ties(subtree_terms):
    # Rows i and i + 30 are equal; only a halving's boundary may part them, and then the lower goes left.
    features = sparse.csr_array(sparse.vstack([random_features(30, seed=2)] * 2))
    for seed in range(10):
        with cut_as(subtree_terms):
            order, offsets = balanced_clusters(features, 1, seed)
        right = np.isin(np.arange(60), order[offsets[1] :])
        parted = np.flatnonzero(right[:30] != right[30:])
        assert parted.size <= 1 and not right[parted].any()


def test_some_rows_without_features():
    dense = random_features(40).toarray()
    dense[::3] = 0
    assert parts(*balanced_clusters(sparse.csr_array(dense), 4, seed=0)) == literal_clusters(dense, 4, seed=0)


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
    given_features.indices, given_features.indptr = (
        array.astype(np.int64) for array in (given_features.indices, given_features.indptr)
    )
    before = given_features.toarray()
    rows = normalise_rows(given_features)
    assert rows.dtype == np.float64 and rows.indices.dtype == np.int32
    assert np.allclose(rows.toarray(), [[0.6, 0.8], [0, 0], [1, 0], [1, 0]])
    assert np.array_equal(given_features.toarray(), before)


def test_what_is_refused():
    features = random_features(5)
    with pytest.raises(ValueError, match=r"5 labels can't fill 2\*\*3 clusters"):
        balanced_clusters(features, 3, 0)
    with pytest.raises(ValueError, match=r"2\*\*-1"):
        balanced_clusters(features, -1, 0)
    with pytest.raises(ValueError, match="seed is -1"):
        balanced_clusters(features, 1, -1)
    with pytest.raises(ValueError, match="not finite"):
        normalise_rows(sparse.csr_array([[np.nan, 1.0]]))
