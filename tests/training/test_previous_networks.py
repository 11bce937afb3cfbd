"""Run: pytest tests/training/test_continuation.py"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_corpus import experiment, write_corpus

from axml_ray.core.files import read_json
from axml_ray.corpus.continued import previous_words
from axml_ray.network.fast.attention_xml import FusedAttentionXML
from axml_ray.network.fast.frozen import WORDS
from axml_ray.network.label_table import LabelTable
from axml_ray.network.level_network import TABLE
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings
from axml_ray.training.label_vector_init import START_LENGTH
from axml_ray.training.level_files import read_level
from axml_ray.training.previous_networks import (
    PreviousNetworks,
    copy_label_vectors,
    copy_shared_parameters,
)
from axml_ray.training.tree import NetworkTreeConfig, TrainingInputs, train_tree
from axml_ray.tree.growth import grow_tree, previous_leaves
from axml_ray.tree.label_tree import LabelTree

OLD_WORDS, NEW_WORDS = ["<padding>", "<unknown>", "a", "b"], ["<padding>", "<unknown>", "new", "b", "a"]
OLD = LabelTree.from_cuts(np.array([3, 0, 1, 2, 4]), [np.array([0, 2, 5])])
GROWN = LabelTree.from_cuts(np.array([3, 0, 5, 7, 1, 2, 4, 6]), [np.array([0, 4, 8])])
FLAT, GROWN_FLAT = LabelTree.from_cuts(np.arange(3), []), LabelTree.from_cuts(np.arange(5), [])


def network(
    tree: LabelTree, number: int, words: int, seed: int, shard: Shard = WHOLE, hidden: int = 3
) -> FusedAttentionXML:
    torch.manual_seed(seed)
    settings = NetworkSettings(hidden=hidden, fully_connected=(4,))
    return FusedAttentionXML(Level.from_tree(tree, number), torch.randn(words, 5), settings, shard)


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


def test_a_tree_continues_with_new_labels(tmp_path: Path) -> None:
    """The old tree has the first ten labels; the grown one all, of which only these have trained vectors."""
    torch.set_num_threads(1)
    corpus = write_corpus(tmp_path / "corpora" / "tiny")
    features = corpus.label_features()
    old = LabelTree.build(features[:10], height=1, cluster_size=4, seed=3)
    grown = grow_tree(old, features, 4)
    words = np.arange(len(corpus.tokenizer))

    def train(
        name: str, tree: LabelTree, previous: PreviousNetworks | None = None, **training: Any
    ) -> list[dict[str, Any]]:
        settings = experiment(tmp_path, **training)
        records: list[dict[str, Any]] = []
        config = NetworkTreeConfig(
            network=settings.network, training=settings.training, beam=3, max_tokens=50, checkpoint_minutes=0
        )
        inputs = TrainingInputs(
            corpus, None, 50, seed=3, tree=tree, report=records.append, previous=previous, precision="float32"
        )
        train_tree(config, inputs, tmp_path / name, name)
        return [record["scoring"] | {"level": record["level"]} for record in records if "scoring" in record]

    train("old", old)
    previous = PreviousNetworks(tmp_path / "old", old, words)
    # Without learning, trained vectors stay as they were, and those of new labels as they start: at their features.
    train("still", grown, previous, epochs=(1,), learning_rate=1e-30, average_after=(1,))
    before, still = (read_level(tmp_path / name / "level-2") for name in ("old", "still"))
    levels = [Level.from_tree(tree, 2) for tree in (old, grown)]
    tables = [
        LabelTable(level.nodes, len(state[TABLE]), level.block_size, 20)
        for level, state in zip(levels, (before, still), strict=True)
    ]
    for table, state in zip(tables, (before, still), strict=True):
        table.weight.data.copy_(state[TABLE])
    leaves = torch.from_numpy(previous_leaves(old, grown))
    known, [was, now] = leaves >= 0, (torch.from_numpy(level.first_child) for level in levels)
    vectors = tables[1].vectors(torch.arange(14), now)
    assert torch.equal(vectors[known], tables[0].vectors(leaves[known], was))
    torch.testing.assert_close(vectors[~known].norm(dim=1), torch.full((4,), START_LENGTH))
    assert torch.equal(
        read_level(tmp_path / "still" / "level-1")[TABLE], read_level(tmp_path / "old" / "level-1")[TABLE]
    )
    scores = train("grown", grown, previous, epochs=(3,))
    for level in (1, 2):
        [start, *rest] = [each for each in scores if each["level"] == level]
        assert start["step"] == 0 and rest[0]["step"] == 15
        manifest = read_json(tmp_path / "grown" / f"level-{level}" / "level.json")
        assert manifest["valid_nDCG@5"] == max(each["nDCG@5"] for each in (start, *rest))
    leaf_level = [each["nDCG@5"] for each in scores if each["level"] == 2]
    assert max(leaf_level) > leaf_level[0] + 5  # the new labels are learned
    assert train("grown", grown, previous, epochs=(3,)) == []  # finished levels are opened


def test_new_labels_of_other_kinds_start_at_the_positive_rate(tmp_path: Path) -> None:
    """At a probability of a half they would be the best of every document."""
    torch.set_num_threads(1)
    corpus = write_corpus(tmp_path / "corpora" / "tiny")
    old, grown = (LabelTree.from_cuts(np.arange(labels), []) for labels in (10, 14))
    settings = experiment(tmp_path, epochs=(1,), learning_rate=1e-30, average_after=(1,))
    kind = {"kind": "bilstm", "output_bias": "positive_rate", "evidence": False}
    config = NetworkTreeConfig(
        network=settings.network.model_copy(update=kind),
        training=settings.training,
        beam=3,
        max_tokens=50,
        checkpoint_minutes=0,
    )
    previous = None
    for name, tree in (("old", old), ("grown", grown)):
        inputs = TrainingInputs(
            corpus, None, 50, seed=3, tree=tree, report=print, previous=previous, precision="float32"
        )
        train_tree(config, inputs, tmp_path / name, name)
        previous = PreviousNetworks(tmp_path / name, tree, np.arange(len(corpus.tokenizer)))
    before, after = (read_level(tmp_path / name / "level-1")[TABLE] for name in ("old", "grown"))
    assert torch.equal(after[:10], before[:10])
    assert (after[10:, -1] < -1).all()
