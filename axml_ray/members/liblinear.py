"""liblinear's solver of linear support vector machines, called through scikit-learn's binding.

`sklearn.svm.LinearSVC` validates and copies its input for a millisecond at each call, ten times as long as liblinear
needs for a label's few hundred documents, and a corpus has tens of thousands of labels. So `fit` calls the function
that `LinearSVC` calls. It is outside of scikit-learn's documented API: `tests/members/test_liblinear.py` compares it
with `LinearSVC`, and pyproject.toml bounds scikit-learn's version.
"""

import numpy as np
from scipy import sparse
from sklearn.svm import _liblinear

TOLERANCE, ROUNDS = 0.1, 40
"""Tolerance and largest number of iterations of the coordinate descent; more iterations change the margins, but hardly
their order."""
_DUAL_SQUARED_HINGE = 1
"""liblinear's solver of L2-regularised L2-loss support vector classification in the dual."""
_SEED = 209652396
"""What `LinearSVC(random_state=0)` draws, so that both give the same weights."""

_liblinear.set_verbosity_wrap(0)


def fit(rows: sparse.csr_matrix, is_positive: np.ndarray, cost: float) -> np.ndarray:
    """Fit a classifier: minimise ½‖w‖² + cost · Σ max(0, 1 ∓ xᵀw)² over the documents x.

    liblinear draws from one random generator of the process, so it must not run in several threads.

    Args:
        rows: float64 CSR [N, F] with int32 indices; a bias is a column of ones.
        is_positive: bool [N], with at least one of each value.
        cost: weight of the documents' losses.

    Returns:
        float64 [F], the weights w.
    """
    targets = is_positive.astype(np.float64)
    is_sparse, no_bias, class_weights, unused = True, -1.0, np.ones(2), 0.1
    solver = is_sparse, _DUAL_SQUARED_HINGE, TOLERANCE, no_bias, cost, class_weights, ROUNDS, _SEED, unused
    weights, _ = _liblinear.train_wrap(rows, targets, *solver, np.ones(len(targets)))
    result: np.ndarray = weights[0]
    return result
