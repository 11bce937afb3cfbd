"""Stacking: boosted regression trees over the members' scores. Not in the paper.

How probable a label is depends on which kinds of members score it highly and on its frequency: a label that all kinds
score alike may be more probable, or less, than one with a high score by a single kind. A weighted mean cannot express
this. The ensemble's score is

    log-odds = start + sum over r of v_r(m, m_1, …, m_K, f),

where m is the label's mean score over all members, m_1 … m_K its mean score over the members of each kind, and
f = ln(1 + c) for the label's c training documents. The start is the log-odds of the frequency calibration
(`frequency.py`). Each v_r is a small regression tree, fitted to the residuals of those before it: Newton boosting of
the log-likelihood, LogitBoost of Friedman, Hastie and Tibshirani (Annals of Statistics 28, 2000). Cross-validation with
`FOLDS` folds chooses the number of trees, which may be 0. Everything is fitted on the validation documents.

Legend: N documents, k ranked labels per document, L labels, K kinds, R regression trees, P (document, label) pairs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError

from axml_ray.core.array_file import open_arrays, save_arrays
from axml_ray.ensemble.combiner import Combiner, MemberWeights, Validation
from axml_ray.ensemble.frequency import FrequencyCalibration
from axml_ray.evaluation.metrics.rankings import hits
from axml_ray.members.topk import TopK, align, best_of

if TYPE_CHECKING:
    from sklearn.tree import DecisionTreeRegressor

FILE = "stacking.safetensors"
METADATA = {"format": "axml-ray stacking", "version": "1"}
KINDS = "kinds"
MAX_DOCUMENTS = 6_000
"""Greatest number of validation documents to fit on."""
LABELS_PER_DOCUMENT = 60
"""Greatest number of ranked labels per document to fit on."""
MAX_TREES, FOLDS = 80, 5
LEARNING_RATE = 0.05
MAX_LEAVES, MAX_DEPTH, MIN_LEAF_PAIRS = 8, 5, 200
NODES = 2 * MAX_LEAVES - 1
ARRAYS: tuple[tuple[str, type, tuple[int, ...]], ...] = (
    ("columns", np.int64, (NODES,)),
    ("thresholds", np.float64, (NODES,)),
    ("children", np.int64, (NODES, 2)),
    ("values", np.float64, (NODES,)),
)
"""Name, dtype, and shape without its first dimension R, of each array of the regression trees."""
MIN_WEIGHT = 1e-9
"""Lower bound of a pair's weight p (1 − p), by which the Newton step is divided."""
PAIRS_PER_CHUNK = 1 << 12
"""Pairs that are evaluated at once, which bounds memory."""


@dataclass(frozen=True, eq=False)
class Stacking(Combiner):
    """Boosted regression trees on top of the frequency calibration.

    Attributes:
        columns: int64 [R, `NODES`], feature that an inner node compares.
        thresholds: float64 [R, `NODES`]; a feature at most as large leads to the left child.
        children: int64 [R, `NODES`, 2], left and right child; both children of a leaf are the leaf itself.
        values: float64 [R, `NODES`], what a leaf adds to the log-odds.
        kinds: kinds of members, in the order of the features m_1 … m_K.
        start: the frequency calibration.
    """

    columns: np.ndarray
    thresholds: np.ndarray
    children: np.ndarray
    values: np.ndarray
    kinds: tuple[str, ...]
    start: FrequencyCalibration

    @classmethod
    def fit(cls, validation: Validation, k: int) -> "Stacking":
        """Fit on at most `MAX_DOCUMENTS` validation documents, evenly spaced."""
        start = FrequencyCalibration.fit(validation, k)
        kinds = tuple(dict.fromkeys(validation.members.kinds))
        labels, means = _rank_by_mean(validation.members, validation.rankings, kinds, k)
        rows = np.arange(0, len(labels), max(1, -(-len(labels) // MAX_DOCUMENTS)))
        labels, means = labels[rows, :LABELS_PER_DOCUMENT], means[rows, :LABELS_PER_DOCUMENT]
        truth = validation.truth.take(rows)
        is_ranked = labels >= 0
        features = _features(labels, means, validation.counts)[is_ranked]
        log_odds = start.log_odds(labels, means[..., 0])[is_ranked]
        targets = hits(labels, truth.values, truth.offsets)[is_ranked].astype(np.float64)
        folds = (np.random.default_rng(0).permutation(len(labels)) % FOLDS)[np.nonzero(is_ranked)[0]]
        number = _choose_number_of_trees(features, log_odds, targets, folds)
        trees = list(islice(_boost(features, log_odds, targets), number))
        return cls(**_as_arrays(trees), kinds=kinds, start=start)

    def rank(self, members: MemberWeights, rankings: Sequence[TopK], k: int) -> TopK:
        """Rank the top k labels by the mean in the order of their stacked scores."""
        labels, means = _rank_by_mean(members, rankings, self.kinds, k)
        return TopK(*best_of(labels, k, self.predict(labels, means)))

    def score(self, members: MemberWeights, labels: np.ndarray, scores: Sequence[np.ndarray]) -> np.ndarray:
        """Compute the stacked scores of given labels."""
        means = _means_by_kind(members, np.stack(scores, axis=2).astype(np.float64), self.kinds).astype(np.float32)
        stacked: np.ndarray = self.predict(np.broadcast_to(labels, means.shape[:2]), means).astype(np.float32)
        return stacked

    def predict(self, labels: np.ndarray, means: np.ndarray) -> np.ndarray:
        """Compute probabilities, float64 [N, k]; they are meaningless where `labels` is padded with -1.

        Args:
            labels: integer [N, k].
            means: float32 [N, k, 1 + K], m and m_1 … m_K.
        """
        features = _features(labels, means, self.start.counts).reshape(-1, means.shape[2] + 1)
        sums = [
            self._sum_of_trees(features[first : first + PAIRS_PER_CHUNK])
            for first in range(0, len(features), PAIRS_PER_CHUNK)
        ]
        log_odds = self.start.log_odds(labels, means[..., 0])
        scores: np.ndarray = 1 / (1 + np.exp(-log_odds - np.concatenate([np.empty(0), *sums]).reshape(labels.shape)))
        return scores

    def _sum_of_trees(self, features: np.ndarray) -> np.ndarray:
        """Evaluate all trees on some pairs (float32 [P, 2 + K]) and return the sums of their leaves, float64 [P]."""
        tree, pair = np.arange(len(self.columns))[:, None], np.arange(len(features))
        node = np.zeros((len(self.columns), len(features)), dtype=np.int64)
        # Leaves lead to themselves, so that all pairs can take `MAX_DEPTH` steps.
        for _ in range(MAX_DEPTH):
            is_right = features[pair, self.columns[tree, node]] > self.thresholds[tree, node]
            node = self.children[tree, node, is_right.astype(np.int64)]
        total: np.ndarray = self.values[tree, node].sum(axis=0)
        return total

    def save(self, directory: Path) -> None:
        """Write the regression trees and the frequency calibration."""
        arrays = {name: getattr(self, name) for name, *_ in ARRAYS}
        save_arrays(arrays, directory / FILE, {**METADATA, KINDS: ",".join(self.kinds)}, "")
        self.start.save(directory)

    @classmethod
    def load(cls, directory: Path, counts: np.ndarray) -> "Stacking":
        """Load what `save` wrote.

        Raises:
            OSError, ValueError: a file is missing or broken.
        """
        path = directory / FILE
        try:
            arrays, metadata = open_arrays(path, METADATA)
            kinds = tuple(metadata[KINDS].split(","))
            _check_arrays(arrays, features=len(kinds) + 2)
        except (ValueError, KeyError, TypeError, IndexError, SafetensorError) as error:
            raise ValueError(f"{path} is not a stacking combiner: {error}") from None
        trees = {name: arrays[name] for name, *_ in ARRAYS}
        return cls(**trees, kinds=kinds, start=FrequencyCalibration.load(directory, counts))


def _check_arrays(arrays: dict[str, np.ndarray], features: int) -> None:
    """Raise a ValueError if arrays from a file are not regression trees over this number of features."""
    for name, dtype, shape in ARRAYS:
        array = arrays[name]
        if array.shape != (len(arrays["values"]), *shape) or array.dtype != dtype:
            raise ValueError(f"{name} has the wrong shape or dtype for regression trees of {NODES} nodes")
    columns, thresholds, children, values = (arrays[name] for name, *_ in ARRAYS)
    if columns.min(initial=0) < 0 or columns.max(initial=0) >= features:
        raise ValueError(f"columns has entries outside the {features} features")
    if children.min(initial=0) < 0 or children.max(initial=0) >= NODES:
        raise ValueError(f"children has entries outside the {NODES} nodes")
    if not (np.isfinite(thresholds).all() and np.isfinite(values).all()):
        raise ValueError("thresholds or values has entries that are not finite")


def _rank_by_mean(
    members: MemberWeights, rankings: Sequence[TopK], kinds: Sequence[str], k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the top k labels by the mean, int32 [N, k], and their means m, m_1 … m_K, float32 [N, k, 1 + K]."""
    labels, scores = align(rankings)
    means = _means_by_kind(members, scores, kinds)
    best, *columns = best_of(labels, k, means[..., 0], *np.moveaxis(means, 2, 0)[1:])
    return best, np.stack(columns, axis=2)


def _means_by_kind(members: MemberWeights, scores: np.ndarray, kinds: Sequence[str]) -> np.ndarray:
    """Compute m and m_1 … m_K, float64 [N, k, 1 + K], from the members' scores, float64 [N, k, M].

    A kind without a member takes the mean of all members.
    """
    mean = scores @ np.array(members.shares)
    columns = [mean]
    for kind in kinds:
        indices = [index for index, member_kind in enumerate(members.kinds) if member_kind == kind]
        shares = np.array([members.shares[index] for index in indices])
        columns.append(scores[..., indices] @ (shares / shares.sum()) if indices else mean)
    return np.stack(columns, axis=2)


def _features(labels: np.ndarray, means: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the features m, m_1 … m_K, f of each pair, float32 [N, k, 2 + K]."""
    return np.concatenate([means, np.log1p(counts[labels])[..., None]], axis=-1).astype(np.float32)


def _choose_number_of_trees(features: np.ndarray, start: np.ndarray, targets: np.ndarray, folds: np.ndarray) -> int:
    """Return the number of regression trees with the least cross-validation loss.

    Args:
        features: float32 [P, 2 + K].
        start: float64 [P], initial log-odds.
        targets: float64 [P], 1 for true pairs, else 0.
        folds: int [P], fold of each pair's document.
    """
    losses = np.zeros(MAX_TREES + 1)
    for fold in range(FOLDS):
        is_train, is_test = folds != fold, folds == fold
        if not is_train.any() or not is_test.any():
            return 0  # too few documents to cross-validate
        log_odds = start[is_test]
        losses[0] += _loss(log_odds, targets[is_test])
        for count, tree in enumerate(_boost(features[is_train], start[is_train], targets[is_train]), start=1):
            log_odds = log_odds + LEARNING_RATE * tree.predict(features[is_test])
            losses[count] += _loss(log_odds, targets[is_test])
    return int(np.argmin(losses))


def _boost(features: np.ndarray, log_odds: np.ndarray, targets: np.ndarray) -> "Iterator[DecisionTreeRegressor]":
    """Yield regression trees, each fitted to the Newton step at the log-odds so far (LogitBoost).

    Arguments as for `_choose_number_of_trees`.
    """
    from sklearn.tree import DecisionTreeRegressor  # slow to import, and needed only here

    for _ in range(MAX_TREES):
        probability = 1 / (1 + np.exp(-log_odds))
        weight = np.maximum(probability * (1 - probability), MIN_WEIGHT)
        tree = DecisionTreeRegressor(
            max_leaf_nodes=MAX_LEAVES, max_depth=MAX_DEPTH, min_samples_leaf=MIN_LEAF_PAIRS, random_state=0
        )
        tree.fit(features, (targets - probability) / weight, sample_weight=weight)
        log_odds = log_odds + LEARNING_RATE * tree.predict(features)
        yield tree


def _loss(log_odds: np.ndarray, targets: np.ndarray) -> float:
    """Compute the negative log-likelihood, summed over pairs."""
    return float(np.logaddexp(0, np.where(targets > 0, -log_odds, log_odds)).sum())


def _as_arrays(trees: "Sequence[DecisionTreeRegressor]") -> dict[str, np.ndarray]:
    """Convert scikit-learn's trees to the arrays of `Stacking`."""
    columns, thresholds, values = (np.zeros((len(trees), NODES), dtype) for dtype in (np.int64, np.float64, np.float64))
    children = np.tile(np.arange(NODES)[:, None], (len(trees), 1, 2))
    for number, regressor in enumerate(trees):
        tree = regressor.tree_
        inner = np.flatnonzero(tree.children_left >= 0)
        leaves = np.flatnonzero(tree.children_left < 0)
        columns[number, inner], thresholds[number, inner] = tree.feature[inner], tree.threshold[inner]
        children[number, inner] = np.column_stack([tree.children_left[inner], tree.children_right[inner]])
        values[number, leaves] = LEARNING_RATE * tree.value[leaves, 0, 0]
    return {"columns": columns, "thresholds": thresholds, "children": children, "values": values}
