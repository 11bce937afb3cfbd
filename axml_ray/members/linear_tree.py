"""Linear classifiers of a label tree's nodes on TF-IDF features (kind `linear_tree`).

Not in the paper, whose networks learn what a rare word means from few texts or not at all. Every node of a tree has a
classifier against its siblings, trained on the documents of its parent, as in Parabel (Prabhu et al., 2018). Its margin
m gives the probability exp(-max(0, 1 - m)²) of the node given its parent, so a label's is the product along its path
(the paper's equation 1), found by beam search.

- The tree's clusters are wider than the networks', see `label_clusters.py`.
- Weights are mapped from their file and shared by the processes of a machine, except those of the first and of small
  levels, of which each process holds a transposed copy.
- Nothing depends on the batch: a text is scored by itself.

Legend: N documents, F features of a text, n_d nodes of level d.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from safetensors import SafetensorError
from scipy import sparse

from axml_ray.corpus.text_views import TextViews
from axml_ray.members.featurizer import Featurizer, feature_texts
from axml_ray.members.label_clusters import cluster_labels
from axml_ray.members.liblinear import fit_classifiers
from axml_ray.members.member import FitInputs, LoadInputs, Member, MemberSpec, Scope
from axml_ray.members.topk import TopK
from axml_ray.settings import Experiment, Settings
from axml_ray.settings.members import FeatureSettings, LinearTreeSettings
from axml_ray.storage.array_file import matrix, open_arrays, save_arrays
from axml_ray.tree.chain_rule import chain_rule
from axml_ray.tree.label_tree import LabelTree

ABOUT = {"format": "axml-ray linear classifiers", "version": "4"}
FILE, LABEL_ORDER = "classifiers.safetensors", "label_order"
BEAM_CHILDREN = 4096
"""Nodes of a level that are scored for a text: the children of as many of its best parents as have about so many."""
MOST_SCORES = 1 << 22
"""Scores of a level that are held at a time."""
WHOLE_LEVEL = 1 << 16
"""Levels of at most this many nodes are scored whole, which takes less time than gathering the nodes that a text
needs."""


class LinearTreeConfig(Settings):
    """What fitted classifiers depend on."""

    own: LinearTreeSettings
    features: FeatureSettings


@dataclass(frozen=True, eq=False)
class LinearTree(Member):
    """The classifiers of all nodes of a tree.

    Attributes:
        tree: its shape.
        weights: for levels 1 to H + 1, float32 CSR [n_d, F + 1]; the last column is the bias.
        featurizer: of the run.
    """

    tree: LabelTree
    weights: Sequence[sparse.csr_matrix]
    featurizer: Featurizer

    config_class: ClassVar[type[Settings]] = LinearTreeConfig
    scope: ClassVar[Scope] = "tree"
    uses_features: ClassVar[bool] = True

    @classmethod
    def configure(cls, experiment: Experiment, settings: LinearTreeSettings) -> LinearTreeConfig:
        """The kind's settings and those of the features; the weight is the ensemble's business."""
        return LinearTreeConfig(own=settings.model_copy(update={"weight": 0.0}), features=experiment.features)

    @classmethod
    def fit(cls, spec: MemberSpec, inputs: FitInputs) -> None:
        """Learn the classifiers from the training documents."""
        config, tree = spec.config, inputs.label_tree
        assert isinstance(config, LinearTreeConfig)
        texts = feature_texts(inputs.corpus, inputs.train, config.features, inputs.max_tokens)
        rows = inputs.features.matrix(texts.tokens)
        if config.own.cluster_size is not None and tree.height:
            tree = cluster_labels(rows, texts.labels, len(tree.label_order), config.own.cluster_size, inputs.seed)
        weights = fit_classifiers(tree, rows, texts.labels, config.own)
        cls(tree, weights, inputs.features).save(spec.directory / FILE, spec.key)

    def rank(self, texts: TextViews, k: int) -> TopK:
        """The best labels by beam search. The scores are probabilities."""
        return self.rank_rows(self.featurizer.of(texts), k)

    def score(self, texts: TextViews, labels: np.ndarray) -> np.ndarray:
        """Probabilities of given labels, whether or not a beam would reach them."""
        rows = self.featurizer.of(texts)
        logs = np.zeros((rows.shape[0], len(labels)), dtype=np.float32)
        for weights, nodes in zip(self.weights, self.tree.paths(labels), strict=True):
            distinct, which = np.unique(nodes, return_inverse=True)  # labels share the nodes above them
            logs = chain_rule(log_probability((rows @ weights[distinct].T).toarray())[:, which], logs)
        scores: np.ndarray = np.exp(logs)
        return scores

    def rank_rows(self, rows: sparse.csr_matrix, k: int, children: int = BEAM_CHILDREN) -> TopK:
        """The best k labels of each row of a feature matrix.

        Args:
            rows: float32 CSR [N, F + 1].
            k: labels wanted.
            children: of the best nodes of a level that are scored, at most, or of one node.
        """
        sizes = self.tree.level_sizes
        clusters = (self.tree.max_children(level) for level in range(len(sizes)))
        whole = (size for size in sizes if size <= WHOLE_LEVEL)
        step = max(1, MOST_SCORES // max(children, *clusters, *whole))
        parts = [self._search(rows[start : start + step], children, k) for start in range(0, rows.shape[0], step)]
        empty = TopK.empty(0, k)
        return TopK(*(np.concatenate([each[part] for each in (empty, *parts)]) for part in (0, 1)))

    def _search(self, rows: sparse.csr_matrix, most: int, k: int) -> TopK:
        document = np.arange(rows.shape[0])[:, None]
        nodes = np.broadcast_to(np.arange(self.tree.level_sizes[0]), (rows.shape[0], self.tree.level_sizes[0]))
        logs = log_probability(self._margins(0, rows, nodes))
        for level, first_child in enumerate(self.tree.first_child[1:], start=1):
            kept = _largest(logs, max(1, most // self.tree.max_children(level)))
            parents, above = nodes[document, kept], logs[document, kept]
            children = first_child[parents][..., None] + np.arange(self.tree.max_children(level))
            missing = (children >= first_child[parents + 1][..., None]).reshape(len(document), -1)
            nodes = np.where(missing, 0, children.reshape(missing.shape))
            own = log_probability(self._margins(level, rows, nodes))
            logs = chain_rule(own, np.repeat(above, children.shape[2], axis=1))
            logs[missing] = -np.inf
        kept = _largest(logs, k)
        kept = np.take_along_axis(kept, np.argsort(-logs[document, kept], axis=1, kind="stable"), axis=1)
        labels, best = self.tree.label_order[nodes[document, kept]], logs[document, kept]
        padding = ((0, 0), (0, k - kept.shape[1]))
        labels = np.where(np.isfinite(best), labels, -1).astype(np.int32)
        return TopK(np.pad(labels, padding, constant_values=-1), np.pad(np.exp(best), padding))

    def _margins(self, level: int, rows: sparse.csr_matrix, nodes: np.ndarray) -> np.ndarray:
        """Margins of some nodes (int64 [N, n]) of `weights[level]` for each document, float32 [N, n]."""
        if level == 0 or self.tree.level_sizes[level] <= WHOLE_LEVEL:
            every = (rows @ self._by_feature[level]).toarray()
            return every if level == 0 else np.take_along_axis(every, nodes, axis=1)
        margins = np.empty(nodes.shape, dtype=np.float32)
        # One dense row is reused: filled with a document's features, and cleared at the same places.
        dense = np.zeros(rows.shape[1], dtype=np.float32)
        for document, wanted in enumerate(nodes):
            inside = slice(rows.indptr[document], rows.indptr[document + 1])
            dense[rows.indices[inside]] = rows.data[inside]
            margins[document] = self.weights[level][wanted] @ dense
            dense[rows.indices[inside]] = 0
        return margins

    @cached_property
    def _by_feature(self) -> list[sparse.csr_matrix]:
        """The weights of levels that are scored whole, transposed: a text has few features."""
        small = (level == 0 or size <= WHOLE_LEVEL for level, size in enumerate(self.tree.level_sizes))
        return [weights.T.tocsr() for weights, whole in zip(self.weights, small, strict=True) if whole]

    def save(self, path: Path, key: str) -> None:
        """Write the classifiers; a reader sees the old file or the new one.

        Args:
            path: where to.
            key: cache key of all that they depend on.
        """
        arrays = {LABEL_ORDER: self.tree.label_order}
        for level, weights in enumerate(self.weights, start=1):
            arrays |= {
                f"children.{level}": self.tree.first_child[level - 1],
                f"values.{level}": weights.data.astype(np.float32),
                f"words.{level}": weights.indices.astype(np.int32),
                f"offsets.{level}": weights.indptr.astype(np.int64),
            }
        save_arrays(arrays, path, ABOUT, key)

    @classmethod
    def load(cls, directory: Path, config: Any, inputs: LoadInputs) -> "LinearTree":
        """Open classifiers that `fit` wrote.

        Raises:
            FileNotFoundError: no such file.
            ValueError: the file holds no classifiers of this version, or of other labels or features.
        """
        path, features = directory / FILE, inputs.features
        try:
            arrays, _ = open_arrays(path, ABOUT)
            order, levels = arrays.pop(LABEL_ORDER), range(1, len(arrays) // 4 + 1)
            if len(order) != inputs.labels:
                raise ValueError(f"it has {len(order):,} labels, not {inputs.labels:,}")
            tree = LabelTree(label_order=order, first_child=tuple(arrays[f"children.{level}"] for level in levels))
            weights = [
                matrix(
                    (arrays[f"{part}.{level}"] for part in ("values", "words", "offsets")),
                    (nodes, len(features) + 1),
                    f"level {level}",
                )
                for level, nodes in zip(levels, tree.level_sizes, strict=True)
            ]
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            raise ValueError(f"{path} holds no linear classifiers of these labels: {error}") from None
        return cls(tree, weights, features)


def log_probability(margins: np.ndarray) -> np.ndarray:
    """The logarithm of the probability that a margin stands for, -max(0, 1 - m)²."""
    short = np.maximum(0, 1 - margins)
    logs: np.ndarray = -short * short
    return logs


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Places of the `count` largest of each row of `values` (float32 [N, n]), or of all, ascending: int64 [N, k]."""
    if count >= values.shape[1]:
        return np.broadcast_to(np.arange(values.shape[1]), values.shape)
    return np.sort(np.argpartition(-values, count - 1, axis=1)[:, :count], axis=1)
