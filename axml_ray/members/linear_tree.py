"""Linear classifiers of a label tree's nodes on TF-IDF features (kind `linear_tree`). Not in the paper.

Every node of a tree has a classifier against its siblings, trained on the documents of its parent, as in Parabel
(Prabhu et al., 2018). Its margin m gives the probability exp(-max(0, 1 - m)²) of the node given its parent. The
probability of a label is the product along its path (the paper's equation 1), and beam search finds the best labels.
The clusters are wider than those of the networks, see `label_clusters.py`. The score of a text does not depend on the
other texts of its batch.

Weights are memory-mapped and shared by the processes of a machine, and those of a large level are read only as texts
need them. Of the first level and of small levels, each process has a transposed copy.

Legend: N documents, F features of a text, n_d nodes of level d.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from safetensors import SafetensorError
from scipy import sparse

from axml_ray.core import storage
from axml_ray.core.array_file import KEY, check_rows, key_of, matrix, open_arrays
from axml_ray.core.files import remove_directory
from axml_ray.core.topk import TopK
from axml_ray.corpus.counts import Counts
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.members.featurizer import Featurizer, feature_texts, matrix_entries
from axml_ray.members.label_clusters import cluster_depths, cluster_labels, kept_terms
from axml_ray.members.member import FitCosts, FitInputs, LoadInputs, Member, MemberSpec, Scope
from axml_ray.settings import Experiment, Settings
from axml_ray.settings.members import FeatureSettings, LinearTreeSettings
from axml_ray.tree.chain_rule import chain_rule
from axml_ray.tree.halving import MapFunction
from axml_ray.tree.label_tree import LabelTree, level_depths

ABOUT = {"format": "axml-ray linear classifiers", "version": "4"}
FILE, RANGES, LABEL_ORDER, FEATURE_COUNT = "classifiers.safetensors", "ranges", "label_order", "features"
BEAM_CHILDREN = 4096
"""Approximate number of nodes of a level that are scored for a text, which sets the beam: this number divided by the
largest number of children of a node."""
MOST_SCORES = 1 << 22
"""Largest number of scores of a level that are in memory at a time."""
DOCUMENTS_OF_PRODUCT = 16
"""Number of documents that are multiplied with a level's classifiers at a time."""
WHOLE_LEVEL = 1 << 16
"""All nodes of a level are scored if there are at most this number, which is faster than gathering the nodes that a
text needs."""


class LinearTreeConfig(Settings):
    """The settings that the fitted classifiers depend on."""

    own: LinearTreeSettings
    features: FeatureSettings


@dataclass(frozen=True, eq=False)
class LinearTree(Member):
    """The classifiers of all nodes of a tree.

    Attributes:
        tree: label tree whose nodes have the classifiers.
        weights: for levels 1 to H + 1, float32 CSR [n_d, F + 1]; the last column is the bias.
        featurizer: featurizer of the run.
    """

    tree: LabelTree
    weights: Sequence[sparse.csr_matrix]
    featurizer: Featurizer

    config_class: ClassVar[type[Settings]] = LinearTreeConfig
    scope: ClassVar[Scope] = "tree"
    uses_features: ClassVar[bool] = True

    @classmethod
    def number_in_run(cls, experiment: Experiment, own: LinearTreeSettings, labels: int) -> int:
        """Return the number of members: without clusters all would be equal, so the first tree alone has one."""
        return experiment.ensemble.trees if levels_of_clusters(experiment, own, labels) else 1

    @classmethod
    def configure(cls, experiment: Experiment, settings: LinearTreeSettings) -> LinearTreeConfig:
        """Return the settings of the kind and of the features, without the weight, which a fit does not depend on."""
        return LinearTreeConfig(own=settings.model_copy(update={"weight": 0.0}), features=experiment.features)

    @classmethod
    def fit(cls, spec: MemberSpec, inputs: FitInputs) -> None:
        """Fit the classifiers on the training documents and write them."""
        from axml_ray.members.linear_fit import LinearFit  # imports scikit-learn, which only fitting needs

        config = spec.config
        assert isinstance(config, LinearTreeConfig)

        def begin() -> LinearFit:
            tree = inputs.label_tree
            texts = feature_texts(inputs.corpus, inputs.train, config.features, inputs.max_tokens)
            rows = inputs.features.matrix(texts.tokens)
            if config.own.flat:
                tree = LabelTree.from_cuts(np.arange(len(tree.label_order)), [])
            elif config.own.cluster_size is not None and tree.height:
                tree = cluster_labels(rows, texts.labels, len(tree.label_order), config.own.cluster_size, inputs.seed)
            return LinearFit.of(tree, rows, texts.labels)

        write_classifiers(spec.directory, spec.key, begin, len(inputs.features), config.own.cost, inputs.parallel_map)

    @classmethod
    def costs(cls, experiment: Experiment, own: LinearTreeSettings, counts: Counts) -> FitCosts:
        """Estimate what the fit of one tree takes: clustering and inputs, then ranges of nodes."""
        from axml_ray.members.linear_costs import range_costs

        labels, entries, terms = counts.labels, matrix_entries(counts, experiment.features), 0.0
        depths = levels_of_clusters(experiment, own, labels)
        if own.cluster_size is not None and depths:
            terms = min(labels * kept_terms(labels), entries * counts.labels_per_document)
        return range_costs([*(2**depth for depth in depths), labels], terms, entries, counts)

    def rank(self, texts: TextViews, k: int) -> TopK:
        """Return the best labels, found by beam search, with their probabilities."""
        return self.rank_rows(self.featurizer.of(texts), k)

    def score(self, texts: TextViews, labels: np.ndarray) -> np.ndarray:
        """Return the probabilities of given labels, whether or not beam search would find them."""
        rows = self.featurizer.of(texts)
        logs = np.zeros((rows.shape[0], len(labels)), dtype=np.float32)
        for level, nodes in enumerate(self.tree.paths(labels)):
            distinct, which = np.unique(nodes, return_inverse=True)  # labels share the nodes above them
            logs = chain_rule(log_probability((rows @ self._classifiers(level, distinct).T).toarray())[:, which], logs)
        scores: np.ndarray = np.exp(logs)
        return scores

    def rank_rows(self, rows: sparse.csr_matrix, k: int, children: int = BEAM_CHILDREN) -> TopK:
        """Return the best k labels of each row of a feature matrix, float32 CSR [N, F + 1].

        `children` is the largest number of nodes of a level that are scored; the children of one node are always
        scored.
        """
        clusters = (self.tree.max_children(level) for level in range(len(self.tree.level_sizes)))
        step = max(1, MOST_SCORES // max(children, *clusters, self._whole_levels[1].shape[1]))
        parts = [self._search(rows[start : start + step], children, k) for start in range(0, rows.shape[0], step)]
        empty = TopK.empty(0, k)
        return TopK(*(np.concatenate([each[part] for each in (empty, *parts)]) for part in (0, 1)))

    def _search(self, rows: sparse.csr_matrix, most: int, k: int) -> TopK:
        document = np.arange(rows.shape[0])[:, None]
        whole_levels = self._margins_of_whole_levels(rows)
        nodes = np.broadcast_to(np.arange(self.tree.level_sizes[0]), (rows.shape[0], self.tree.level_sizes[0]))
        logs = log_probability(whole_levels[0])
        for level, first_child in enumerate(self.tree.first_child[1:], start=1):
            kept = _largest(logs, max(1, most // self.tree.max_children(level)))
            parents, above = nodes[document, kept], logs[document, kept]
            children = first_child[parents][..., None] + np.arange(self.tree.max_children(level))
            missing = (children >= first_child[parents + 1][..., None]).reshape(len(document), -1)
            nodes = np.where(missing, 0, children.reshape(missing.shape))
            if level in whole_levels:
                own = log_probability(np.take_along_axis(whole_levels[level], nodes, axis=1))
            else:
                own = log_probability(self._margins_of_nodes(level, rows, nodes))
            logs = chain_rule(own, np.repeat(above, children.shape[2], axis=1))
            logs[missing] = -np.inf
        kept = _largest(logs, k)
        kept = np.take_along_axis(kept, np.argsort(-logs[document, kept], axis=1, kind="stable"), axis=1)
        labels, best = self.tree.label_order[nodes[document, kept]], logs[document, kept]
        labels = np.where(np.isfinite(best), labels, -1).astype(np.int32)
        return TopK(labels, np.exp(best)).padded(k)

    def _margins_of_nodes(self, level: int, rows: sparse.csr_matrix, nodes: np.ndarray) -> np.ndarray:
        """Return the margins of some nodes (int64 [N, n]) of `weights[level]` for each document, float32 [N, n]."""
        margins = np.empty(nodes.shape, dtype=np.float32)
        # One dense row is reused: filled with a document's features, and cleared at the same places.
        dense = np.zeros(rows.shape[1], dtype=np.float32)
        for document, nodes_of_document in enumerate(nodes):
            inside = slice(rows.indptr[document], rows.indptr[document + 1])
            dense[rows.indices[inside]] = rows.data[inside]
            margins[document] = self._classifiers(level, nodes_of_document) @ dense
            dense[rows.indices[inside]] = 0
        return margins

    def _classifiers(self, level: int, nodes: np.ndarray) -> sparse.csr_matrix:
        """Return the classifiers of some nodes (int64 [n]) of a level (from 0), float32 CSR [n, F + 1]."""
        rows, is_checked = self.weights[level][nodes], self._is_checked[level]
        unchecked = np.flatnonzero(~is_checked[nodes])
        if len(unchecked):
            check_rows(rows[unchecked], f"level {level + 1}")
            is_checked[nodes] = True
        return rows

    @cached_property
    def _is_checked(self) -> list[np.ndarray]:
        """Return for each level which classifiers are checked, bool [n_d]; those of small levels are when opened."""
        return [np.full(size, is_whole_level(level, size)) for level, size in enumerate(self.tree.level_sizes)]

    def _margins_of_whole_levels(self, rows: sparse.csr_matrix) -> dict[int, np.ndarray]:
        """Return the margins of all nodes for each document, float32 [N, n_d], of each level in `_whole_levels`."""
        levels, by_feature = self._whole_levels
        margins = np.empty((rows.shape[0], by_feature.shape[1]), dtype=np.float32)
        # Features of a few documents, as dense rows: up to 3.5 times faster than the product of two sparse matrices.
        for start in range(0, rows.shape[0], DOCUMENTS_OF_PRODUCT):
            part = rows[start : start + DOCUMENTS_OF_PRODUCT]
            features, columns = np.unique(part.indices, return_inverse=True)
            dense = sparse.csr_matrix((part.data, columns, part.indptr), (part.shape[0], len(features))).T.toarray()
            margins[start : start + DOCUMENTS_OF_PRODUCT] = (by_feature[features].T @ dense).T
        ends = np.cumsum([self.tree.level_sizes[level] for level in levels])
        return dict(zip(levels, np.split(margins, ends[:-1], axis=1), strict=True))

    @cached_property
    def _whole_levels(self) -> tuple[list[int], sparse.csr_matrix]:
        """Return the levels (from 0) of which all nodes are scored, and their weights, float32 CSR [F + 1, nodes]."""
        levels = [level for level, size in enumerate(self.tree.level_sizes) if is_whole_level(level, size)]
        # By feature, since a text has few of them.
        return levels, sparse.vstack([self.weights[level] for level in levels]).T.tocsr()

    @classmethod
    def load(cls, directory: Path, config: Any, inputs: LoadInputs) -> "LinearTree":
        """Open classifiers that `fit` wrote.

        Raises:
            OSError, ValueError: the file is missing, has no classifiers of this version, or has other labels.
        """
        path, features = directory / FILE, inputs.features
        try:
            arrays, about = open_arrays(path, ABOUT)
            # Too few features show as columns out of range; too many would put the bias in the wrong column. Files of
            # older versions of the program lack the number.
            if int(about.get(FEATURE_COUNT, len(features))) != len(features):
                raise ValueError(f"fitted with {int(about[FEATURE_COUNT]):,} features, not {len(features):,}")
            order, levels = arrays.pop(LABEL_ORDER), range(1, len(arrays) // 4 + 1)
            if len(order) != inputs.labels:
                raise ValueError(f"it has {len(order):,} labels, not {inputs.labels:,}")
            tree = LabelTree(label_order=order, first_child=tuple(arrays[f"children.{level}"] for level in levels))
            weights = [
                matrix(
                    (arrays[f"{part}.{level}"] for part in ("values", "words", "offsets")),
                    (nodes, len(features) + 1),
                    f"level {level}",
                    check=is_whole_level(level - 1, nodes),
                )
                for level, nodes in zip(levels, tree.level_sizes, strict=True)
            ]
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            raise ValueError(f"{path} holds no linear classifiers of these labels: {error}") from None
        return cls(tree, weights, features)


def write_classifiers(
    directory: Path, key: str, begin: Callable[[], Any], features: int, cost: float, parallel_map: MapFunction = map
) -> None:
    """Fit the classifiers of a tree and write their file into a directory; see `linear_fit`.

    What an interrupted call has fitted is in a directory of its own until the file is complete.

    Args:
        directory: the member's directory.
        key: cache key of everything that the classifiers depend on.
        begin: returns the `LinearFit`; not called if an interrupted call got further.
        features: F, the number of features.
        cost: C of liblinear.
        parallel_map: fits many ranges of nodes.
    """
    from axml_ray.members.linear_fit import fit_ranges, join_ranges

    storage.fetch(directory / FILE)
    if key_of(directory / FILE, ABOUT) != key:
        tree, files = fit_ranges(directory / RANGES, key, begin, cost, parallel_map)
        arrays = {LABEL_ORDER: tree.label_order}
        arrays |= {f"children.{level}": children for level, children in enumerate(tree.first_child, start=1)}
        join_ranges(files, arrays, directory / FILE, {**ABOUT, FEATURE_COUNT: str(features), KEY: key})
    remove_directory(directory / RANGES)


def levels_of_clusters(experiment: Experiment, own: LinearTreeSettings, labels: int) -> Sequence[int]:
    """Return the depths of the binary tree that are levels of clusters, of a tree of their own or of the networks'.

    There are none if the classifiers have no tree, or if all labels fit one cluster.
    """
    depths = () if own.flat else level_depths(labels, experiment.tree.height, experiment.tree.cluster_size)
    return cluster_depths(labels, own.cluster_size) if own.cluster_size is not None and depths else depths


def is_whole_level(level: int, nodes: int) -> bool:
    """Return whether all nodes of a level (from 0) are scored for a text: the first one, and those of few nodes."""
    return level == 0 or nodes <= WHOLE_LEVEL


def log_probability(margins: np.ndarray) -> np.ndarray:
    """Return the log-probability that each margin m gives, -max(0, 1 - m)²."""
    hinge = np.maximum(0, 1 - margins)
    logs: np.ndarray = -hinge * hinge
    return logs


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the columns of the `count` largest values of each row (float32 [N, n]), ascending: int64 [N, count]."""
    if count >= values.shape[1]:
        return np.broadcast_to(np.arange(values.shape[1]), values.shape)
    return np.sort(np.argpartition(-values, count - 1, axis=1)[:, :count], axis=1)
