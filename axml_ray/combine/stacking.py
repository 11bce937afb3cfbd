"""Stacking: regression trees over the members' scores, boosted on the validation documents. Not in the paper.

A label that members of all kinds score alike may be worth more, or less, than one that a single kind is sure of, and
that depends on how frequent the label is; no weighted mean says so. The ensemble's score is

    log-odds = start + sum over r of v_r(m, m_1, …, m_K, f),

where m is the members' mean score of the label, m_1 … m_K the mean score of each kind of member, and f = ln(1 + c)
of the label's c training documents. The start is the log-odds of the frequency calibration (`frequency.py`). Each
v_r is a regression tree of a few leaves, one after the other fitted to what those before leave: Newton boosting of the
log-likelihood, LogitBoost of Friedman, Hastie and Tibshirani (Annals of Statistics 28, 2000). Their number is chosen by
cross-validation in `PARTS` parts; none is possible.

Legend: N documents, k labels of each, L labels, K kinds, R regression trees, P pairs of a document and a label.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError

from axml_ray.combine.combiner import Combiner, Validation, Weighted
from axml_ray.combine.frequency import FrequencyCalibration
from axml_ray.evaluation.rankings import hits
from axml_ray.members.topk import TopK, align, best_of
from axml_ray.storage.array_file import open_arrays, save_arrays

if TYPE_CHECKING:
    from sklearn.tree import DecisionTreeRegressor

FILE = "stacking.safetensors"
ABOUT = {"format": "axml-ray stacking", "version": "1"}
KINDS = "kinds"
DOCUMENTS = 6_000
"""Validation documents that are learned from, at most."""
BEST = 60
"""Labels of a document that are learned from."""
ROUNDS, PARTS = 80, 5
"""Regression trees at most, and parts of the cross-validation."""
STEP = 0.05
"""Learning rate: the share of a Newton step that each tree goes."""
LEAVES, DEPTH, LEAST = 8, 5, 200
"""Of a regression tree: most leaves, greatest depth, fewest pairs in a leaf."""
NODES = 2 * LEAVES - 1
ARRAYS: tuple[tuple[str, type, tuple[int, ...]], ...] = (
    ("columns", np.int64, (NODES,)),
    ("thresholds", np.float64, (NODES,)),
    ("children", np.int64, (NODES, 2)),
    ("values", np.float64, (NODES,)),
)
"""Name, type, and shape after the first R, of each array of the regression trees."""
FLATTEST = 1e-9
"""Least weight of a pair, p (1 - p) of its probability."""
PAIRS = 1 << 12
"""Pairs that are taken through the trees at a time."""


@dataclass(frozen=True, eq=False)
class Stacking(Combiner):
    """Boosted regression trees on top of the frequency calibration.

    Attributes:
        columns: int64 [R, `NODES`], the feature that an inner node compares.
        thresholds: float64 [R, `NODES`]; what is not above goes left.
        children: int64 [R, `NODES`, 2], left and right; a leaf leads to itself.
        values: float64 [R, `NODES`], what leaves add to the log-odds.
        kinds: of the members, in the order of the features m_1 … m_K.
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
        """Learn from validation documents; at most `DOCUMENTS`, evenly spaced."""
        start = FrequencyCalibration.fit(validation, k)
        kinds = tuple(dict.fromkeys(validation.members.kinds))
        labels, means = _ranked_means(validation.members, validation.rankings, kinds, k)
        rows = np.arange(0, len(labels), max(1, -(-len(labels) // DOCUMENTS)))
        labels, means, truth = labels[rows, :BEST], means[rows, :BEST], validation.truth.take(rows)
        present = labels >= 0
        table = _features(labels, means, validation.counts)[present]
        log_odds = start.log_odds(labels, means[..., 0])[present]
        true = hits(labels, truth.values, truth.offsets)[present].astype(np.float64)
        part = (np.random.default_rng(0).permutation(len(labels)) % PARTS)[np.nonzero(present)[0]]
        trees = islice(_boosted(table, log_odds, true), _best_number(table, log_odds, true, part))
        return cls(**_as_arrays(list(trees)), kinds=kinds, start=start)

    def rank(self, members: Weighted, rankings: Sequence[TopK], k: int) -> TopK:
        """The mean's best k labels, in the order of their stacked scores."""
        labels, means = _ranked_means(members, rankings, self.kinds, k)
        return TopK(*best_of(labels, k, self.stacked(labels, means)))

    def score(self, members: Weighted, labels: np.ndarray, scores: Sequence[np.ndarray]) -> np.ndarray:
        """The stacked scores of given labels."""
        means = _kind_means(members, np.stack(scores, axis=2).astype(np.float64), self.kinds).astype(np.float32)
        stacked: np.ndarray = self.stacked(np.broadcast_to(labels, means.shape[:2]), means).astype(np.float32)
        return stacked

    def stacked(self, labels: np.ndarray, means: np.ndarray) -> np.ndarray:
        """Probabilities, float64 [N, k]; those of labels below 0, which are none, mean nothing.

        Args:
            labels: integer [N, k].
            means: float32 [N, k, 1 + K], m and m_1 … m_K.
        """
        pairs = _features(labels, means, self.start.counts).reshape(-1, means.shape[2] + 1)
        steps = [self._sum_of_leaves(pairs[first : first + PAIRS]) for first in range(0, len(pairs), PAIRS)]
        log_odds = self.start.log_odds(labels, means[..., 0])
        scores: np.ndarray = 1 / (1 + np.exp(-log_odds - np.concatenate([np.empty(0), *steps]).reshape(labels.shape)))
        return scores

    def _sum_of_leaves(self, pairs: np.ndarray) -> np.ndarray:
        """What all trees add for some pairs (float32 [P, 2 + K]), float64 [P]."""
        tree, pair = np.arange(len(self.columns))[:, None], np.arange(len(pairs))
        node = np.zeros((len(self.columns), len(pairs)), dtype=np.int64)
        for _ in range(DEPTH):
            above = pairs[pair, self.columns[tree, node]] > self.thresholds[tree, node]
            node = self.children[tree, node, above.astype(np.int64)]
        total: np.ndarray = self.values[tree, node].sum(axis=0)
        return total

    def save(self, directory: Path) -> None:
        """Write the regression trees and the calibration that they start from."""
        arrays = {name: getattr(self, name) for name, *_ in ARRAYS}
        save_arrays(arrays, directory / FILE, {**ABOUT, KINDS: ",".join(self.kinds)}, "")
        self.start.save(directory)

    @classmethod
    def load(cls, directory: Path, counts: np.ndarray) -> "Stacking":
        """Open what `save` wrote.

        Raises:
            OSError, ValueError: a file is missing or broken.
        """
        path = directory / FILE
        try:
            arrays, about = open_arrays(path, ABOUT)
            kinds = tuple(about[KINDS].split(","))
            for name, kind, shape in ARRAYS:
                found = arrays[name]
                if found.shape != (len(arrays["values"]), *shape) or found.dtype != kind:
                    raise ValueError(f"its {name} are not those of regression trees of {NODES} nodes")
            columns, thresholds, children, values = (arrays[name] for name, *_ in ARRAYS)
            if columns.min(initial=0) < 0 or columns.max(initial=0) >= len(kinds) + 2:
                raise ValueError(f"it compares more than {len(kinds) + 2} features")
            if children.min(initial=0) < 0 or children.max(initial=0) >= NODES:
                raise ValueError("it leads to nodes that do not exist")
            if not (np.isfinite(thresholds).all() and np.isfinite(values).all()):
                raise ValueError("it has values that are not finite")
        except (ValueError, KeyError, TypeError, IndexError, SafetensorError) as error:
            raise ValueError(f"{path} holds no stacking: {error}") from None
        return cls(columns, thresholds, children, values, kinds, FrequencyCalibration.load(directory, counts))


def _ranked_means(
    members: Weighted, rankings: Sequence[TopK], kinds: Sequence[str], k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The best k labels by the mean, int32 [N, k], and their means, float32 [N, k, 1 + K]."""
    labels, scores = align(rankings)
    means = _kind_means(members, scores, kinds)
    best, *columns = best_of(labels, k, means[..., 0], *np.moveaxis(means, 2, 0)[1:])
    return best, np.stack(columns, axis=2)


def _kind_means(members: Weighted, scores: np.ndarray, kinds: Sequence[str]) -> np.ndarray:
    """The weighted mean of all members' scores (float64 [N, k, M]), then that of each kind: float64 [N, k, 1 + K].

    The mean of a kind that is away is that of all.
    """
    mean = scores @ np.array(members.shares)
    columns = [mean]
    for kind in kinds:
        own = [number for number, each in enumerate(members.kinds) if each == kind]
        shares = np.array([members.shares[number] for number in own])
        columns.append(scores[..., own] @ (shares / shares.sum()) if own else mean)
    return np.stack(columns, axis=2)


def _features(labels: np.ndarray, means: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The features of regression trees, float32 [N, k, 2 + K]."""
    return np.concatenate([means, np.log1p(counts[labels])[..., None]], axis=-1).astype(np.float32)


def _best_number(table: np.ndarray, start: np.ndarray, true: np.ndarray, part: np.ndarray) -> int:
    """The number of regression trees with the least loss on the parts that they are not fitted on.

    Args:
        table: float32 [P, 2 + K].
        start: float64 [P], log-odds to start from.
        true: float64 [P], 1 or 0.
        part: int [P], the part that each pair's document is in.
    """
    losses = np.zeros(ROUNDS + 1)
    for number in range(PARTS):
        known, new = part != number, part == number
        if not known.any() or not new.any():
            return 0  # a handful of documents, which teach nothing
        log_odds = start[new]
        losses[0] += _loss(log_odds, true[new])
        for count, tree in enumerate(_boosted(table[known], start[known], true[known]), start=1):
            log_odds = log_odds + STEP * tree.predict(table[new])
            losses[count] += _loss(log_odds, true[new])
    return int(np.argmin(losses))


def _boosted(table: np.ndarray, log_odds: np.ndarray, true: np.ndarray) -> "Iterator[DecisionTreeRegressor]":
    """Regression trees, each fitted to the Newton steps that those before it leave; arguments as of `_best_number`."""
    from sklearn.tree import DecisionTreeRegressor  # slow to import, and only training fits

    for _ in range(ROUNDS):
        probability = 1 / (1 + np.exp(-log_odds))
        weight = np.maximum(probability * (1 - probability), FLATTEST)
        tree = DecisionTreeRegressor(max_leaf_nodes=LEAVES, max_depth=DEPTH, min_samples_leaf=LEAST, random_state=0)
        tree.fit(table, (true - probability) / weight, sample_weight=weight)
        log_odds = log_odds + STEP * tree.predict(table)
        yield tree


def _loss(log_odds: np.ndarray, true: np.ndarray) -> float:
    """The negative log-likelihood."""
    return float(np.logaddexp(0, np.where(true > 0, -log_odds, log_odds)).sum())


def _as_arrays(trees: "Sequence[DecisionTreeRegressor]") -> dict[str, np.ndarray]:
    """The arrays of `Stacking`."""
    columns, thresholds, values = (np.zeros((len(trees), NODES), kind) for kind in (np.int64, np.float64, np.float64))
    children = np.tile(np.arange(NODES)[:, None], (len(trees), 1, 2))
    for number, one in enumerate(trees):
        tree = one.tree_
        inner = np.flatnonzero(tree.children_left >= 0)
        leaves = np.flatnonzero(tree.children_left < 0)
        columns[number, inner], thresholds[number, inner] = tree.feature[inner], tree.threshold[inner]
        children[number, inner] = np.column_stack([tree.children_left[inner], tree.children_right[inner]])
        values[number, leaves] = STEP * tree.value[leaves, 0, 0]
    return {"columns": columns, "thresholds": thresholds, "children": children, "values": values}
