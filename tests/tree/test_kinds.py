"""The kinds of trees, on a prepared corpus and without Ray. Run: pytest tests/tree/test_kinds.py"""

from pathlib import Path

import numpy as np
import pytest
from tiny_corpus import LABELS, experiment, train_tree, write_corpus

from axml_ray.corpus.store import Corpus
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.tree.clustering import cluster_offsets
from axml_ray.tree.kinds import build_tree
from axml_ray.tree.label_tree import LabelTree

KINDS = ("balanced", "random")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("kinds")
    write_corpus(path / "corpora" / "tiny")
    return path


def of_kind(home: Path, kind: str, **tree: object) -> Experiment:
    return experiment(home, tree={"kind": kind, **tree})


def open_corpus(home: Path) -> Corpus:
    return Corpus.open(home / "corpora" / "tiny")


def same(one: LabelTree, other: LabelTree) -> bool:
    return np.array_equal(one.label_order, other.label_order) and one.level_sizes == other.level_sizes


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_trains_and_predicts_with_nothing_else_changed(home, tmp_path, kind):
    chosen = of_kind(home, kind).model_copy(update={"runs": tmp_path})
    corpus = open_corpus(home)
    tree = build_tree(corpus, chosen.tree, chosen.seed)
    assert len(tree.level_sizes) == 2 and tree.level_sizes[-1] == LABELS
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
    assert all(tree.max_children(level) <= 2 for level in range(tree.height, min(tree.height, 1), -1))


def test_random_trees_have_the_shape_of_balanced_ones_and_differ_by_seed(home):
    corpus = open_corpus(home)
    balanced, random = (of_kind(home, kind, cluster_size=2, height=2).tree for kind in ("balanced", "random"))
    one, other, third = build_tree(corpus, random, 0), build_tree(corpus, random, 1), build_tree(corpus, balanced, 0)
    assert one.level_sizes == third.level_sizes
    assert all(np.array_equal(a, b) for a, b in zip(one.first_child, third.first_child, strict=True))
    assert not same(one, other)


def test_cuts_that_do_not_nest_are_refused_and_needless_levels_left_out():
    with pytest.raises(ValueError, match="must have the starts of the level above"):
        LabelTree.from_cuts(np.arange(6), [np.array([0, 3, 6]), np.array([0, 2, 4, 6])])
    tree = LabelTree.from_cuts(np.arange(6), [np.array([0, 6]), np.array([0, 3, 6]), np.array([0, 3, 6]), np.arange(7)])
    assert tree.level_sizes == (2, 6)
    assert LabelTree.from_cuts(np.arange(1), [np.array([0, 1])]).level_sizes == (1,)
    example = LabelTree.from_cuts([3, 0, 1, 2, 4], [np.array([0, 2, 5])])
    assert [offsets.tolist() for offsets in example.first_child] == [[0, 2], [0, 2, 5]]
    assert cluster_offsets(5, 1).tolist() == [0, 2, 5]
