"""The kinds of trees, on a prepared corpus and without Ray. Run: pytest tests/tree/test_kinds.py"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from tiny_corpus import LABELS, experiment, train_tree, write_corpus

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.store import Corpus
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.tree.clustering import cluster_offsets, normalise_rows
from axml_ray.tree.features import clustering_features, name_ngrams, vector_centroids
from axml_ray.tree.kinds import build_tree
from axml_ray.tree.label_tree import LabelTree
from axml_ray.tree.shallow_kmeans import SLACK, kmeans, kmeans_levels

KINDS = ("balanced", "kmeans", "hierarchy", "random")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("kinds")
    write_corpus(path / "corpora" / "tiny")
    families = "".join(f"label-{i}\tfamily-{i % 5}\n" for i in range(LABELS))
    (path / "parents.tsv").write_text(families + "family-1\tfamily-0\n")
    return path


def of_kind(home: Path, kind: str, **tree: object) -> Experiment:
    hierarchy = {"hierarchy": home / "parents.tsv"} if kind == "hierarchy" else {}
    return experiment(home, tree={"kind": kind, **hierarchy, **tree})


def open_corpus(home: Path) -> Corpus:
    return Corpus.open(home / "corpora" / "tiny")


def random_features(labels: int, seed: int = 0) -> sparse.csr_array:
    rng = np.random.default_rng(seed)
    return normalise_rows(sparse.random_array((labels, 40), density=0.1, rng=rng, format="csr"))


def same(one: LabelTree, other: LabelTree) -> bool:
    return np.array_equal(one.label_order, other.label_order) and one.level_sizes == other.level_sizes


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_trains_and_predicts_with_nothing_else_changed(home, tmp_path, kind):
    chosen = of_kind(home, kind).model_copy(update={"runs": tmp_path})
    corpus = open_corpus(home)
    tree = build_tree(corpus, chosen.tree, chosen.seed)
    assert len(tree.level_sizes) == 2 and tree.level_sizes[-1] == LABELS
    assert len(set(np.diff(tree.first_child[1]))) > 1 or kind in ("balanced", "random")
    run = Run(chosen, corpus)
    run.keep_tree(0, tree)
    train_tree(chosen, corpus, build=False)
    spec = run.spec("network_tree-0")
    spec.mark_fitted()
    test = corpus.split("test")
    labels, _ = run.open_member(spec, None).rank(TextViews(test.tokens), 5)
    best = [labels[row, 0] in test.labels[row] for row in range(len(test))]
    assert np.mean(best) > 0.5  # by chance it would be 0.14


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("height", [0, 1, 2])
def test_a_kind_is_a_tree_of_all_labels_the_same_for_a_seed(home, kind, height):
    corpus = open_corpus(home)
    shape = of_kind(home, kind, height=height, cluster_size=2).tree
    tree = build_tree(corpus, shape, 1)
    assert sorted(tree.label_order) == list(range(LABELS))
    assert same(tree, build_tree(corpus, shape, 1))
    assert tree.height <= height
    if height == 0:
        assert tree.label_order.tolist() == list(range(LABELS))
    bound = SLACK * 2 if kind == "kmeans" else 2
    assert all(tree.max_children(level) <= bound for level in range(tree.height, min(tree.height, 1), -1))


def test_random_trees_have_the_shape_of_balanced_ones_and_differ_by_seed(home):
    corpus = open_corpus(home)
    balanced, random = (of_kind(home, kind, cluster_size=2, height=2).tree for kind in ("balanced", "random"))
    one, other, third = build_tree(corpus, random, 0), build_tree(corpus, random, 1), build_tree(corpus, balanced, 0)
    assert one.level_sizes == third.level_sizes
    assert all(np.array_equal(a, b) for a, b in zip(one.first_child, third.first_child, strict=True))
    assert not same(one, other)


def test_a_given_hierarchy_keeps_families_together(home):
    corpus = open_corpus(home)
    tree = build_tree(corpus, of_kind(home, "hierarchy").tree, 0)
    numbers = [int(label.removeprefix("label-")) for label in corpus.labels.labels[:LABELS]]
    clusters = [set(part.tolist()) for part in np.split(tree.label_order, tree.first_child[-1][1:-1])]
    families = [{i for i, number in enumerate(numbers) if number % 5 == family} for family in range(5)]
    # Families of three labels, in clusters of at most four: none is torn in more than two.
    assert all(sum(bool(family & cluster) for cluster in clusters) <= 2 for family in families)
    assert sum(any(family <= cluster for cluster in clusters) for family in families) >= 3


@given(
    labels=st.integers(1, 200),
    depths=st.lists(st.integers(0, 7), min_size=1, max_size=3, unique=True),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=40)
def test_unbalanced_clusters_nest_and_are_bounded(labels, depths, seed):
    wanted = tuple(sorted({min(2**depth, labels) for depth in depths}))
    order, cuts = kmeans_levels(random_features(labels, seed), wanted, seed)
    assert sorted(order) == list(range(labels))
    for above, below in pairwise(cuts):
        assert np.isin(above, below).all()
    for clusters, starts in zip(wanted, cuts, strict=True):
        sizes = np.diff(starts)
        assert sizes.min() > 0 and sizes.max() <= SLACK * -(-labels // clusters)
    tree = LabelTree.from_cuts(order, cuts)
    assert tree.level_sizes[-1] == labels


def test_many_clusters_are_made_in_steps(monkeypatch):
    monkeypatch.setattr("axml_ray.tree.shallow_kmeans.MOST_PARTS", 4)
    _, (starts,) = kmeans_levels(random_features(600), (60,), 0)
    assert 30 <= len(starts) - 1 <= 120


def test_kmeans_equals_a_literal_version():
    rows = random_features(80)
    found = kmeans(rows, 7, np.random.default_rng(5))
    dense = rows.toarray()
    centres = dense[np.sort(np.random.default_rng(5).choice(80, 7, replace=False))]
    mean = -np.inf
    while True:
        similarities = np.array([[row @ centre for centre in centres] for row in dense])
        side = similarities.argmax(axis=1)
        last, mean = mean, similarities.max(axis=1).mean()
        if mean - last < 1e-5:
            break
        sums = [dense[side == k].sum(axis=0) for k in range(7)]
        centres = [total / (np.linalg.norm(total) or 1) for total in sums]
    assert np.array_equal(found, side)


def test_like_labels_share_a_cluster_of_any_size():
    # 30 labels of one kind, 3 of another, 3 of a third
    kinds = np.array([0] * 30 + [1] * 3 + [2] * 3)
    features = normalise_rows(sparse.csr_array(np.eye(3)[kinds] + 0.01))
    best = [np.unique(kmeans(features, 3, np.random.default_rng(seed)), return_counts=True)[1] for seed in range(30)]
    assert any(sorted(sizes) == [3, 3, 30] for sizes in best)


def test_cuts_that_do_not_nest_are_refused_and_needless_levels_left_out():
    with pytest.raises(ValueError, match="must have the starts of the level above"):
        LabelTree.from_cuts(np.arange(6), [np.array([0, 3, 6]), np.array([0, 2, 4, 6])])
    tree = LabelTree.from_cuts(np.arange(6), [np.array([0, 6]), np.array([0, 3, 6]), np.array([0, 3, 6]), np.arange(7)])
    assert tree.level_sizes == (2, 6)
    assert LabelTree.from_cuts(np.arange(1), [np.array([0, 1])]).level_sizes == (1,)
    example = LabelTree.from_cuts([3, 0, 1, 2, 4], [np.array([0, 2, 5])])
    assert [offsets.tolist() for offsets in example.first_child] == [[0, 2], [0, 2, 5]]
    assert cluster_offsets(5, 1).tolist() == [0, 2, 5]


# Features


def test_labels_are_clustered_by_what_the_setting_says(home):
    corpus = open_corpus(home)
    trees = {
        kind: build_tree(corpus, of_kind(home, "balanced", features=kind).tree, 0)
        for kind in ("tfidf", "word_vectors", "label_text")
    }
    assert not same(trees["tfidf"], trees["label_text"])
    assert not same(trees["tfidf"], trees["word_vectors"])
    assert (clustering_features(corpus, "tfidf") != corpus.label_features()).nnz == 0


def test_names_that_share_parts_of_words_are_alike():
    rows = name_ngrams(("Woodland", "wood-fuel", "steel", "—", "stainless steel"))
    alike = (rows @ rows.T).toarray()
    assert alike[0, 1] > 0.1 and alike[2, 4] > 0.3 and alike[0, 2] == 0
    assert rows[3].nnz == 0
    assert name_ngrams(("—", "")).nnz == 0


def test_vector_centroids_are_mean_word_vectors_less_what_all_share():
    vectors = np.array([[0, 0], [9, 9], [3, 4], [3, -4]], np.float32)
    centroids = sparse.csr_matrix(np.array([[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]], np.float32))
    assert np.allclose(vector_centroids(centroids, vectors).toarray(), [[0, 0.8], [0, -0.8], [0, 0]])


# Settings


def test_a_changed_hierarchy_is_another_tree_and_a_moved_one_is_not(home, tmp_path):
    corpus = open_corpus(home)
    path = tmp_path / "moved.tsv"
    path.write_bytes((home / "parents.tsv").read_bytes())
    here, moved = of_kind(home, "hierarchy"), of_kind(home, "hierarchy", hierarchy=path)
    assert Run(here, corpus).tree_key(0) == Run(moved, corpus).tree_key(0)
    path.write_text(path.read_text() + "label-0\tfamily-0\n")
    assert Run(here, corpus).tree_key(0) != Run(moved, corpus).tree_key(0)
    path.unlink()
    with pytest.raises(SettingsError, match=r"moved\.tsv cannot be read"):
        Run(moved, corpus).tree_key(0)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"kind": "hierarchy"}, "tree.hierarchy: give a file of label, tab, parent for kind hierarchy"),
        ({"hierarchy": "x.tsv"}, "tree.hierarchy: is read for kind hierarchy only, kind is balanced; leave it out"),
        ({"kind": "bonsai"}, "tree.kind: Input should be 'balanced', 'kmeans', 'hierarchy' or 'random'"),
    ],
)
def test_wrong_settings(home, tree, expected):
    with pytest.raises(SettingsError) as caught:
        experiment(home, tree=tree)
    assert str(caught.value).startswith(expected)
