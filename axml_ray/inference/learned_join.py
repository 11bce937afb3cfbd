"""What networks and linear classifiers are worth together, learned on the validation documents. Not in the paper.

A label that networks and classifiers score alike may be worth more, or less, than one that either is sure of alone, and
it depends on how frequent it is; no weighted mean says that. With `linear.learned_join` an ensemble's scores are

    log-odds = start + Σ_r v_r(m, n, l, f),

where m is the mean over the trees of a label's scores, n of what their networks say, l of what their classifiers say,
f = ln(1 + c) of its c training documents. The start is the log-odds of m, corrected by frequency where that is wished
(see `frequency`). Each v_r is a regression tree of a few leaves, one after the other fitted to what those before leave:
Newton boosting of the log-likelihood, LogitBoost of Friedman, Hastie and Tibshirani (Annals of Statistics 28, 2000).
How many there are is decided by documents that the trees haven't seen, in `PARTS` parts; none is possible.

- **A file** of safetensors, whole or not there, checked when it is opened: plain numbers.
- Unlike a correction by frequency, a learned join may change the places of a label's texts.

Shapes: N documents, k labels a document, L labels, R regression trees, P pairs of a document and a label.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError

from axml_ray.evaluation.rankings import hits
from axml_ray.inference.frequency import Coefficients, FrequencyCorrection
from axml_ray.linear.checked import open_arrays, save_arrays
from axml_ray.ragged import Ragged

if TYPE_CHECKING:
    from sklearn.tree import DecisionTreeRegressor

ABOUT = {"format": "axml-ray learned join", "version": "1"}
COLUMNS = 4
"""m, n, l and f."""
BEST = 60
"""Labels of a document that are learned from."""
ROUNDS, PARTS = 80, 5
"""Regression trees at most, and parts of the documents."""
STEP = 0.05
"""Share of a Newton step that each goes."""
LEAVES, DEPTH, LEAST = 8, 5, 200
"""Of a regression tree: most leaves, most questions on the way to one, fewest pairs in one."""
NODES = 2 * LEAVES - 1
ARRAYS: tuple[tuple[str, type, tuple[int, ...]], ...] = (
    ("asked", np.int64, (NODES,)),
    ("thresholds", np.float64, (NODES,)),
    ("children", np.int64, (NODES, 2)),
    ("values", np.float64, (NODES,)),
)
"""Their types, and shapes after the first R."""
FLATTEST = 1e-9
"""Least weight of a pair, p (1 - p) of its probability."""
PAIRS = 1 << 12
"""Pairs that are taken through the trees at a time."""


@dataclass(frozen=True, eq=False)
class LearnedJoin:
    """The regression trees. A leaf leads to itself.

    Attributes:
        asked: int64 [R, `NODES`], the column that a node asks for.
        thresholds: float64 [R, `NODES`]; what isn't above goes left.
        children: int64 [R, `NODES`, 2], where to, left and right.
        values: float64 [R, `NODES`], what leaves add to the log-odds.
        counts: int [L], training documents of each label.
    """

    asked: np.ndarray
    thresholds: np.ndarray
    children: np.ndarray
    values: np.ndarray
    counts: np.ndarray

    @classmethod
    def fit(
        cls,
        labels: np.ndarray,
        means: np.ndarray,
        truth: Ragged,
        counts: np.ndarray,
        correction: FrequencyCorrection | None = None,
    ) -> "LearnedJoin":
        """From what an ensemble's trees found for documents whose labels are known.

        Args:
            labels: int32 [N, k], best first by m, distinct in a row, -1 for none.
            means: float32 [N, k, 3], m, n and l.
            truth: the true labels of each document.
            counts: int [L].
            correction: that it starts from.
        """
        labels, means = labels[:, :BEST], means[:, :BEST]
        there = labels >= 0
        table, start = _table(labels, means, counts)[there], _start(labels, means, counts, correction)[there]
        true = hits(labels, truth.values, truth.offsets)[there].astype(np.float64)
        part = (np.random.default_rng(0).permutation(len(labels)) % PARTS)[np.nonzero(there)[0]]
        losses = np.zeros(ROUNDS + 1)
        for one in range(PARTS):
            known, new = part != one, part == one
            if not known.any() or not new.any():
                return cls(**_laid_out([]), counts=counts)  # a handful of documents, which teach nothing
            log_odds = start[new]
            losses[0] += _loss(log_odds, true[new])
            for number, tree in enumerate(_boosted(table[known], start[known], true[known]), start=1):
                log_odds = log_odds + STEP * tree.predict(table[new])
                losses[number] += _loss(log_odds, true[new])
        trees = islice(_boosted(table, start, true), int(np.argmin(losses)))
        return cls(**_laid_out(list(trees)), counts=counts)

    def scores(self, labels: np.ndarray, means: np.ndarray, correction: FrequencyCorrection | None) -> np.ndarray:
        """Probabilities, float64 [N, k]; those of a label that isn't there mean nothing.

        Args:
            labels: integer [N, k].
            means: float32 [N, k, 3], m, n and l.
            correction: that it started from.
        """
        pairs = _table(labels, means, self.counts).reshape(-1, COLUMNS)
        steps = [self._steps(pairs[first : first + PAIRS]) for first in range(0, len(pairs), PAIRS)]
        log_odds = _start(labels, means, self.counts, correction)
        found: np.ndarray = 1 / (1 + np.exp(-log_odds - np.concatenate([np.empty(0), *steps]).reshape(labels.shape)))
        return found

    def _steps(self, pairs: np.ndarray) -> np.ndarray:
        """What all trees add for some pairs (float32 [P, `COLUMNS`]), float64 [P]."""
        tree, pair = np.arange(len(self.asked))[:, None], np.arange(len(pairs))
        node = np.zeros((len(self.asked), len(pairs)), dtype=np.int64)
        for _ in range(DEPTH):
            above = pairs[pair, self.asked[tree, node]] > self.thresholds[tree, node]
            node = self.children[tree, node, above.astype(np.int64)]
        total: np.ndarray = self.values[tree, node].sum(axis=0)
        return total

    def save(self, path: Path, fingerprint: str) -> None:
        """Write the regression trees, with the fingerprint of what they depend on."""
        save_arrays({name: getattr(self, name) for name, *_ in ARRAYS}, path, ABOUT, fingerprint)

    @classmethod
    def load(cls, path: Path, counts: np.ndarray) -> "LearnedJoin":
        """Open what `save` wrote.

        Args:
            path: of the file.
            counts: int [L], training documents of each label.

        Raises:
            FileNotFoundError: no such file.
            ValueError: the file doesn't hold a learned join of this version.
        """
        try:
            arrays, _ = open_arrays(path, ABOUT)
            for name, kind, shape in ARRAYS:
                found = arrays[name]
                if found.shape != (len(arrays["values"]), *shape) or found.dtype != kind:
                    raise ValueError(f"its {name} aren't of regression trees of {NODES} nodes")
            asked, thresholds, children, values = (arrays[name] for name, *_ in ARRAYS)
            if asked.min(initial=0) < 0 or asked.max(initial=0) >= COLUMNS:
                raise ValueError(f"it asks for other than {COLUMNS} columns")
            if children.min(initial=0) < 0 or children.max(initial=0) >= NODES:
                raise ValueError("it leads to nodes that aren't there")
            if not (np.isfinite(thresholds).all() and np.isfinite(values).all()):
                raise ValueError("it has values that aren't finite")
        except (ValueError, KeyError, TypeError, IndexError, SafetensorError) as error:
            raise ValueError(f"{path} holds no learned join: {error}") from None
        return cls(asked, thresholds, children, values, counts)


def _start(
    labels: np.ndarray, means: np.ndarray, counts: np.ndarray, correction: FrequencyCorrection | None
) -> np.ndarray:
    """Log-odds, float64 [N, k], by the mean of the scores alone."""
    correction = correction or FrequencyCorrection(Coefficients(), counts)
    return correction.log_odds(labels, means[..., 0])


def _table(labels: np.ndarray, means: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """What regression trees ask for, float32 [N, k, `COLUMNS`]."""
    return np.concatenate([means, np.log1p(counts[labels])[..., None]], axis=-1).astype(np.float32)


def _boosted(table: np.ndarray, log_odds: np.ndarray, true: np.ndarray) -> "Iterator[DecisionTreeRegressor]":
    """Regression trees, one after the other: each is of the Newton steps that those before leave.

    Args:
        table: float32 [P, `COLUMNS`].
        log_odds: float64 [P], to start from.
        true: float64 [P], 1 or 0.
    """
    from sklearn.tree import DecisionTreeRegressor  # slow to import, and only training fits

    for _ in range(ROUNDS):
        chance = 1 / (1 + np.exp(-log_odds))
        weight = np.maximum(chance * (1 - chance), FLATTEST)
        tree = DecisionTreeRegressor(max_leaf_nodes=LEAVES, max_depth=DEPTH, min_samples_leaf=LEAST, random_state=0)
        tree.fit(table, (true - chance) / weight, sample_weight=weight)
        log_odds = log_odds + STEP * tree.predict(table)
        yield tree


def _loss(log_odds: np.ndarray, true: np.ndarray) -> float:
    """Less log-likelihood."""
    return float(np.logaddexp(0, np.where(true > 0, -log_odds, log_odds)).sum())


def _laid_out(trees: "Sequence[DecisionTreeRegressor]") -> dict[str, np.ndarray]:
    """The arrays of a `LearnedJoin`."""
    asked, thresholds, values = (np.zeros((len(trees), NODES), kind) for kind in (np.int64, np.float64, np.float64))
    children = np.tile(np.arange(NODES)[:, None], (len(trees), 1, 2))
    for number, one in enumerate(trees):
        tree = one.tree_
        inner = np.flatnonzero(tree.children_left >= 0)
        leaves = np.flatnonzero(tree.children_left < 0)
        asked[number, inner], thresholds[number, inner] = tree.feature[inner], tree.threshold[inner]
        children[number, inner] = np.column_stack([tree.children_left[inner], tree.children_right[inner]])
        values[number, leaves] = STEP * tree.value[leaves, 0, 0]
    return {"asked": asked, "thresholds": thresholds, "children": children, "values": values}
