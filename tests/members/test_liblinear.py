"""Run: pytest tests/members/test_liblinear.py

The binding against `LinearSVC`, and classifiers fitted on working sets against those fitted on all documents.
"""

import numpy as np
import pytest
from scipy import sparse
from sklearn.svm import LinearSVC

from axml_ray.core.ragged import Ragged
from axml_ray.members import liblinear, linear_fit
from axml_ray.members.linear_fit import LinearFit, NodeRange
from axml_ray.tree.label_tree import LabelTree

DOCUMENTS, LABELS, WORDS = 1_500, 24, 400


@pytest.fixture(scope="module")
def texts() -> tuple[sparse.csr_matrix, Ragged]:
    """Documents of one or two labels, each of which has words of its own; unit rows and a bias column, float32."""
    rng = np.random.default_rng(0)
    labels = [np.unique(rng.zipf(1.3, 2) % LABELS) for _ in range(DOCUMENTS)]
    counts = np.zeros((DOCUMENTS, WORDS))
    for document, own in enumerate(labels):
        words = np.concatenate([own.repeat(3) * 10 + rng.integers(0, 10, 3 * len(own)), rng.integers(0, WORDS, 12)])
        np.add.at(counts[document], words, 1)
    rows = counts / np.linalg.norm(counts, axis=1, keepdims=True)
    matrix = sparse.csr_matrix(np.hstack([rows, np.ones((DOCUMENTS, 1))]).astype(np.float32))
    return matrix, Ragged.from_rows(labels)


@pytest.mark.parametrize("cost", [0.3, 1.0, 10.0])
def test_fit_is_linear_svc(texts, cost: float) -> None:
    rows, labels = texts
    is_positive = np.array([3 in labels[document] for document in range(DOCUMENTS)])
    machine = LinearSVC(
        C=cost, dual=True, fit_intercept=False, tol=liblinear.TOLERANCE, max_iter=liblinear.ROUNDS, random_state=0
    )
    expected = machine.fit(rows.astype(np.float64), is_positive).coef_[0]
    np.testing.assert_array_equal(liblinear.fit(rows.astype(np.float64), is_positive, cost), expected)


def test_working_sets_reach_the_objective_of_all_documents(texts, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = texts
    linear, level = LinearFit.of(LabelTree.from_cuts(np.arange(LABELS), []), rows, labels), NodeRange(1, 0, LABELS)
    rows_of_fits = []
    fit = liblinear.fit

    def count_rows(rows: sparse.csr_matrix, is_positive: np.ndarray, cost: float) -> np.ndarray:
        rows_of_fits.append(rows.shape[0])
        return fit(rows, is_positive, cost)

    monkeypatch.setattr(liblinear, "fit", count_rows)
    monkeypatch.setattr(linear_fit, "SMALLEST_WEIGHT", 0.0)
    partial = linear.fit(level, cost=1.0)
    rows_partial = sum(rows_of_fits)
    monkeypatch.setattr(linear_fit, "SIMILAR", DOCUMENTS)
    whole = linear.fit(level, cost=1.0)
    rows_whole = sum(rows_of_fits) - rows_partial
    assert rows_whole == LABELS * DOCUMENTS and rows_partial < rows_whole

    is_positive = np.zeros((DOCUMENTS, LABELS), dtype=bool)
    is_positive[np.repeat(np.arange(DOCUMENTS), labels.lengths), labels.values] = True
    for of_partial, of_whole in zip(
        objectives(partial, rows, is_positive), objectives(whole, rows, is_positive), strict=True
    ):
        assert of_partial <= 1.05 * of_whole
    # Both rank the labels of nearly all documents in the same way.
    best = [np.asarray((rows @ weights.T).todense()).argmax(1) for weights in (partial, whole)]
    assert np.mean(best[0] == best[1]) > 0.98


@pytest.mark.parametrize(("cost", "smallest"), [(0.25, 0.05), (1.0, 0.1), (4.0, 0.1)])
def test_weights_are_kept_above_a_value_that_falls_with_small_costs(texts, cost: float, smallest: float) -> None:
    rows, labels = texts
    linear = LinearFit.of(LabelTree.from_cuts(np.arange(LABELS), []), rows, labels)
    weights = np.abs(linear.fit(NodeRange(1, 0, LABELS), cost).data)
    assert smallest < weights.min() < 1.1 * smallest


def objectives(weights: sparse.csr_matrix, rows: sparse.csr_matrix, is_positive: np.ndarray) -> np.ndarray:
    """The objective of each classifier on all documents, with cost 1, float64 [labels]."""
    margins = (rows @ weights.T).toarray() * np.where(is_positive, 1, -1)
    norms = np.asarray(weights.multiply(weights).sum(axis=1)).ravel()
    return norms / 2 + (np.maximum(0, 1 - margins) ** 2).sum(axis=0)


def test_groups_of_siblings_that_fit_into_memory_give_the_same(texts, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = texts
    linear, level = LinearFit.of(LabelTree.from_cuts(np.arange(LABELS), []), rows, labels), NodeRange(1, 0, LABELS)
    whole = linear.fit(level, cost=1.0)
    monkeypatch.setattr(linear_fit, "MOST_MARGINS", 5 * DOCUMENTS)
    parts = linear.fit(level, cost=1.0)
    assert (whole != parts).nnz == 0
