"""Run: pytest tests/training/test_continuation.py"""

import numpy as np
import pytest
import torch

from axml_ray.network.attention_xml import AttentionXML
from axml_ray.network.frozen import WORDS
from axml_ray.network.level_network import TABLE
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings
from axml_ray.training.continuation import copy_label_vectors, copy_shared_parameters, previous_words
from axml_ray.tree.growth import previous_leaves
from axml_ray.tree.label_tree import LabelTree

OLD_WORDS, NEW_WORDS = ["<padding>", "<unknown>", "a", "b"], ["<padding>", "<unknown>", "new", "b", "a"]
OLD = LabelTree.from_cuts(np.array([3, 0, 1, 2, 4]), [np.array([0, 2, 5])])
GROWN = LabelTree.from_cuts(np.array([3, 0, 5, 7, 1, 2, 4, 6]), [np.array([0, 4, 8])])
FLAT, GROWN_FLAT = LabelTree.from_cuts(np.arange(3), []), LabelTree.from_cuts(np.arange(5), [])


def network(tree: LabelTree, number: int, words: int, seed: int, shard: Shard = WHOLE, hidden: int = 3) -> AttentionXML:
    torch.manual_seed(seed)
    settings = NetworkSettings(hidden=hidden, fully_connected=(4,))
    return AttentionXML(Level.from_tree(tree, number), torch.randn(words, 5), settings, shard)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(("old", "grown", "number"), [(OLD, GROWN, 1), (OLD, GROWN, 2), (FLAT, GROWN_FLAT, 1)])
def test_vectors_of_old_nodes_are_copied_exactly(old: LabelTree, grown: LabelTree, number: int, workers: int) -> None:
    trained = network(old, number, 4, seed=1)
    copied = 0
    for rank in range(workers):
        fresh = network(grown, number, 5, seed=2, shard=Shard(rank, workers))
        held = fresh.attention.nodes(fresh.first_child)
        before = fresh.attention.vectors(held, fresh.first_child).clone()
        copied += copy_label_vectors(fresh, trained.attention.weight.detach(), old, grown)
        after = fresh.attention.vectors(held, fresh.first_child)
        is_leaf = number > grown.height
        previous = torch.from_numpy(previous_leaves(old, grown))[held] if is_leaf else held
        known = previous >= 0
        assert torch.equal(after[known], trained.attention.vectors(previous[known], trained.first_child))
        assert torch.equal(after[~known], before[~known])
    assert copied == old.level_sizes[number - 1]


def test_shared_parameters_are_copied_and_word_vectors_by_word() -> None:
    words = previous_words(OLD_WORDS, NEW_WORDS)
    assert words.tolist() == [0, 1, -1, 3, 2]
    trained, fresh = network(OLD, 2, 4, seed=1), network(GROWN, 2, 5, seed=2)
    before = {name: value.clone() for name, value in fresh.state_dict().items()}
    state = trained.state_dict()
    copy_shared_parameters(fresh, state, words)
    after = fresh.state_dict()
    assert torch.equal(after[WORDS][[0, 1, 3, 4]], state[WORDS][[0, 1, 3, 2]])
    assert torch.equal(after[WORDS][2], before[WORDS][2])
    assert torch.equal(after[TABLE], before[TABLE])
    others = after.keys() - {WORDS, TABLE}
    assert others and all(torch.equal(after[name], state[name]) for name in others)


def test_a_level_of_another_size_is_refused() -> None:
    words = previous_words(OLD_WORDS, NEW_WORDS)
    with pytest.raises(ValueError, match="is of size"):
        copy_shared_parameters(network(GROWN, 2, 5, 2, hidden=4), network(OLD, 2, 4, 1).state_dict(), words)
