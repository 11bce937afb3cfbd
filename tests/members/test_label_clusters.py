"""The label trees of linear classifiers. Run: pytest tests/members/test_label_clusters.py"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from axml_ray.core.ragged import Ragged
from axml_ray.members import label_clusters as module
from axml_ray.members.label_clusters import cluster_labels, label_vectors


def documents(random: np.random.Generator, count: int, labels: int, features: int) -> tuple[sparse.csr_matrix, Ragged]:
    """Rows with a last column of ones, and labels, some beyond the trained ones."""
    table = random.random((count, features + 1)).astype(np.float32) * (random.random((count, features + 1)) < 0.4)
    table[:, -1] = 1
    return sparse.csr_matrix(table), Ragged.from_rows(random.permutation(labels)[:2] for _ in range(count))


@pytest.mark.parametrize(("at_once", "terms"), [(30, 1 << 28), (1 << 20, 20)])
def test_a_labels_vector_sums_its_documents(monkeypatch: pytest.MonkeyPatch, at_once: int, terms: int) -> None:
    monkeypatch.setattr("axml_ray.corpus.labels.label_features.RANGE_TERMS", at_once)
    monkeypatch.setattr(module, "MOST_TERMS", terms)
    monkeypatch.setattr(module, "FEWEST_TERMS", 1)
    rows, labels = documents(np.random.default_rng(1), 30, 12, 9)
    expected = np.zeros((10, 9))
    for row, given_labels in zip(rows.toarray(), labels, strict=True):
        for label in given_labels[given_labels < 10]:
            expected[label] += row[:-1]
    if terms == 20:  # two a label
        expected[expected < np.sort(expected, axis=1)[:, -2:-1]] = 0
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(label_vectors(rows, labels, 10).toarray(), expected, rtol=1e-6)


@given(labels=st.integers(4, 70), most=st.sampled_from([2, 4, 8, 64]), seed=st.integers(0, 3))
def test_each_label_is_in_one_cluster_of_bounded_size(labels: int, most: int, seed: int) -> None:
    rows, given_labels = documents(np.random.default_rng(0), 20, labels + 2, 6)
    tree = cluster_labels(rows, given_labels, labels, most, seed)
    assert sorted(tree.label_order.tolist()) == list(range(labels))
    assert max(np.diff(first).max() for first in tree.first_child) <= np.ceil(np.sqrt(2) * most)
    again = cluster_labels(rows, given_labels, labels, most, seed)
    assert again.label_order.tolist() == tree.label_order.tolist() and again.level_sizes == tree.level_sizes


def test_similar_labels_share_a_cluster() -> None:
    kind = np.random.default_rng(2).permutation(np.arange(16) % 2)
    table = np.random.default_rng(3).random((16, 3)) * 0.3
    table[np.arange(16), kind] += 1
    rows = sparse.csr_matrix(table.astype(np.float32))
    tree = cluster_labels(rows, Ragged.from_rows([[label] for label in range(16)]), 16, 8, 0)
    assert tree.level_sizes == (2, 16)
    halves = kind[tree.label_order].reshape(2, 8)
    assert (halves == halves[:, :1]).all()
