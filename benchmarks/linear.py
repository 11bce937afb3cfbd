"""Seconds and validation scores of one tree's linear classifiers, next to `LinearSVC` on all documents of each parent.

    python benchmarks/linear.py --corpus corpora/docstrings [--cost 1] [--network-tree] [--only-ours] [--json PATH]

The corpus is a prepared one. Features are plain TF-IDF, and the tree has 512 children a node, as by default.

- `ours`: `axml_ray/members/linear_fit.py`.
- `literal`: scikit-learn's `LinearSVC` with the same tolerance and cost, one node after the other, on all documents of
  the node's parent: what axml-ray did before working sets.
- `network_tree`, `literal_network_tree` (only if asked for, they are slow): both on a tree of one level of clusters of
  16 labels, as the networks have it and as `members.linear_tree.cluster_size: null` uses it: at its first level, each
  cluster has a classifier on all documents.

Seconds are CPU seconds of this process, which runs one thread. Figures: `ours_seconds`, `ours_P@1` and so on;
`planned_seconds`, what `axml-ray plan` expects of `ours`; and `speedup` and `speedup_network_tree`, the literal seconds
over ours.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from rich import box
from rich.console import Console
from rich.table import Table
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.counts import counts_of
from axml_ray.corpus.store import Corpus
from axml_ray.evaluation.metrics.metrics import Scores
from axml_ray.members.featurizer import Featurizer
from axml_ray.members.label_clusters import cluster_labels, label_vectors
from axml_ray.members.liblinear import ROUNDS, TOLERANCE
from axml_ray.members.linear_costs import fit_seconds
from axml_ray.members.linear_fit import LinearFit, NodeRange, smallest_weight
from axml_ray.members.linear_tree import LinearTree
from axml_ray.network.backends.precision import use_threads
from axml_ray.settings import CorpusSettings, Experiment
from axml_ray.settings.members import FeatureSettings, LinearTreeSettings
from axml_ray.tree.clustering import balanced_clusters, normalise_rows
from axml_ray.tree.label_tree import LabelTree
from axml_ray.tree.subtree import cluster_offsets

COLUMNS = ("P@1", "P@3", "P@5", "nDCG@5", "R@10")
CERTAIN = 10.0
Fit = Callable[[LabelTree, sparse.csr_matrix, Ragged, LinearTreeSettings], list[sparse.csr_matrix]]


def main() -> None:
    """Fit, score, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="directory of a prepared corpus")
    parser.add_argument("--cost", type=float, default=1.0, help="members.linear_tree.cost")
    parser.add_argument("--network-tree", action="store_true", help="also fit on a tree as wide as a network's")
    parser.add_argument(
        "--only-ours", action="store_true", help="without the fits by LinearSVC, which take several times as long"
    )
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/linear-CORPUS.json")
    options = parser.parse_args()
    use_threads(1)
    corpus, settings = Corpus.open(options.corpus), LinearTreeSettings(cost=options.cost)
    train = corpus.split("train")
    featurizer = Featurizer.fit(train.tokens, corpus.tokenizer.words, FeatureSettings())
    rows = featurizer.matrix(train.tokens)
    assert settings.cluster_size is not None
    tree = cluster_labels(rows, train.labels, corpus.trained, settings.cluster_size, seed=0)
    trees = {"": tree}
    if options.network_tree:
        trees["_network_tree"] = tree_of_one_level(rows, train.labels, corpus.trained)
    systems: dict[str, tuple[LabelTree, Fit]] = {}
    for name, shape in trees.items():
        systems[name.removeprefix("_") or "ours"] = (shape, fit_ours)
        if not options.only_ours:
            systems[f"literal{name}"] = (shape, fit_literally)
    results: list[dict[str, Any]] = []
    for name, (shape, fit) in systems.items():
        began = time.process_time()
        weights = fit(shape, rows, train.labels, settings)
        seconds = time.process_time() - began
        scores = score(LinearTree(shape, weights, featurizer), corpus)
        results.append({"system": name, "seconds": seconds, "nodes": list(shape.level_sizes), "scores": scores})
        Console().print(table(results))
    figures: dict[str, float] = {f"{row['system']}_seconds": row["seconds"] for row in results}
    figures |= {f"{row['system']}_{name}": row["scores"][name] for row in results for name in COLUMNS}
    counts = counts_of(corpus, Experiment(corpus=CorpusSettings(train=(options.corpus,))))
    figures["planned_seconds"] = fit_seconds(tree.level_sizes, rows.nnz, counts)
    if not options.only_ours:
        for name in trees:
            ours = figures[f"{name.removeprefix('_') or 'ours'}_seconds"]
            figures[f"speedup{name}"] = figures[f"literal{name}_seconds"] / ours
    results_file.write(options.json or results_file.RESULTS / f"linear-{options.corpus.name}.json", figures, results)


def fit_ours(
    tree: LabelTree, rows: sparse.csr_matrix, labels: Ragged, settings: LinearTreeSettings
) -> list[sparse.csr_matrix]:
    """Return the classifiers of levels 1 to H + 1, float32 CSR [n_d, F + 1]."""
    linear = LinearFit.of(tree, rows, labels)
    return [
        linear.fit(NodeRange(level, 0, size), settings.cost) for level, size in enumerate(tree.level_sizes, start=1)
    ]


def fit_literally(
    tree: LabelTree, rows: sparse.csr_matrix, labels: Ragged, settings: LinearTreeSettings
) -> list[sparse.csr_matrix]:
    """Fit each node by `LinearSVC` on all documents of its parent; arguments and result of `fit_ours`."""
    rows = rows.astype(np.float64)
    weights, parent_nodes = [], None
    for level, size in enumerate(tree.level_sizes, start=1):
        nodes = Ragged(*tree.node_labels(level, labels.values, labels.offsets))
        documents = np.repeat(np.arange(len(nodes)), nodes.lengths)
        fitted = sparse.lil_matrix((size, rows.shape[1]), dtype=np.float32)
        for first, last in pairwise(tree.first_child[level - 1].tolist()):
            inside = (
                np.arange(rows.shape[0])
                if parent_nodes is None
                else np.unique(documents[(nodes.values >= first) & (nodes.values < last)])
            )
            some = rows[inside]
            columns, places = np.unique(some.indices, return_inverse=True)
            some = sparse.csr_matrix((some.data, places.astype(np.int32), some.indptr), (len(inside), len(columns)))
            for node in range(first, last):
                is_true = np.isin(inside, documents[nodes.values == node])
                if not 0 < is_true.sum() < len(is_true):
                    fitted[node, -1] = CERTAIN if is_true.any() else -CERTAIN
                    continue
                machine = LinearSVC(
                    C=settings.cost, dual=True, fit_intercept=False, tol=TOLERANCE, max_iter=ROUNDS, random_state=0
                )
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    coefficients = machine.fit(some, is_true).coef_[0]
                kept = np.flatnonzero(np.abs(coefficients) > smallest_weight(settings.cost))
                fitted.rows[node], fitted.data[node] = (
                    columns[kept].tolist(),
                    coefficients[kept].astype(np.float32).tolist(),
                )
        weights.append(fitted.tocsr())
        parent_nodes = nodes
    return weights


def tree_of_one_level(rows: sparse.csr_matrix, labels: Ragged, trained: int) -> LabelTree:
    """Cluster the labels into one level of clusters of about 16 labels."""
    depth = max(1, round(np.log2(trained / 16)))
    vectors = normalise_rows(sparse.csr_array(label_vectors(rows, labels, trained)))
    return LabelTree.from_cuts(balanced_clusters(vectors, depth, 0)[0], [cluster_offsets(trained, depth)])


def score(member: LinearTree, corpus: Corpus) -> dict[str, float]:
    """Return the scores on the validation documents, in percent."""
    valid = corpus.split("valid")
    ranking = member.rank_rows(member.featurizer.matrix(valid.tokens), 50)
    scores = Scores(np.ones(len(corpus.labels)))
    scores.add(ranking.labels, valid.labels.values, valid.labels.offsets)
    return scores.result()


def table(results: list[dict[str, Any]]) -> Table:
    """Return the results as a table for a rich console."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in ("system", "seconds", *COLUMNS):
        shown.add_column(name, justify="left" if name == "system" else "right")
    for row in results:
        scores = (f"{row['scores'][name]:.2f}" for name in COLUMNS)
        shown.add_row(row["system"], f"{row['seconds']:.1f}", *scores)
    return shown


if __name__ == "__main__":
    results_file.run(main)
