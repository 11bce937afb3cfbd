"""The planned shapes and memory of levels, held against trees that are built and training that is run."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from planning.planned import ROOT, amazon3m, counts, experiment, gpus
from scipy import sparse
from torch.profiler import ProfilerActivity, profile

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.counts import Counts
from axml_ray.corpus.store import Split
from axml_ray.network.fast.attention_xml import FusedAttentionXML
from axml_ray.network.sharding import Shard
from axml_ray.planning import memory
from axml_ray.planning.estimate import make_plan
from axml_ray.planning.shapes import LevelShape, level_shapes
from axml_ray.settings import Experiment, TreeSettings
from axml_ray.settings.configuration import load
from axml_ray.training.batches import LevelData, TrueNodes, make_batch, shuffle_batches
from axml_ray.training.level import LevelTraining
from axml_ray.tree.label_tree import LabelTree


@pytest.mark.parametrize(
    ("labels", "height", "cluster_size", "sizes"),
    [
        (670_091, 3, 8, (2_048, 16_384, 131_072, 670_091)),
        (501_008, 1, 64, (8_192, 501_008)),
        (2_812_281, 3, 8, (8_192, 65_536, 524_288, 2_812_281)),
        (3_956, 0, 8, (3_956,)),
    ],
)
def test_level_sizes_are_the_papers(labels: int, height: int, cluster_size: int, sizes: tuple[int, ...]) -> None:
    tree = TreeSettings(height=height, cluster_size=cluster_size)
    assert tuple(shape.nodes for shape in level_shapes(labels, tree)) == sizes


@pytest.mark.parametrize(("labels", "height"), [(5, 0), (7, 1), (100, 1), (300, 2), (513, 2), (90, 4)])
def test_shapes_are_those_of_a_tree_that_is_built(labels: int, height: int) -> None:
    features = sparse.random_array((labels, 50), density=0.2, rng=np.random.default_rng(labels), format="csr")
    tree = LabelTree.build(features.astype(np.float32), height=height, cluster_size=8, seed=0)
    shapes = level_shapes(labels, TreeSettings(height=height, cluster_size=8, beam=6))
    assert tuple(shape.nodes for shape in shapes) == tree.level_sizes
    for shape in shapes[1:]:
        assert shape.block == tree.max_children(shape.number - 1)
        assert shape.rows == tree.level_sizes[shape.number - 2]


def trained(
    settings: Experiment, of: Counts, shape: LevelShape, workers: int = 1
) -> tuple[LevelTraining, LevelData, np.ndarray]:
    """A level's training, and the rows of a batch of its longest documents. The shard is the first of `workers`."""
    random = np.random.default_rng(0)
    several, tokens = 3 * settings.training.batch_size, of.longest
    offsets = np.arange(several + 1, dtype=np.int64)
    texts = Ragged(random.integers(1, of.words, several * tokens, dtype=np.int32), offsets * tokens)
    true = Ragged(np.arange(several, dtype=np.int32) % shape.nodes, offsets)
    parents = None
    if shape.parents is not None:
        parents = np.stack([random.permutation(shape.rows)[: shape.parents] for _ in range(several)])
    vectors = torch.randn(of.words, of.word_dimension)
    network = FusedAttentionXML(shape.level(), vectors, settings.network, Shard(0, workers))
    data = LevelData(texts, true, parents)
    beam = None
    validation = LevelData(texts.take(np.arange(4)), true.take(np.arange(4)), beam=beam)
    return (
        LevelTraining(network, data, validation, settings.training, 0),
        data,
        np.arange(settings.training.batch_size),
    )


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"network": {"evidence": True, "fully_connected": [24]}},
        {"network": {"train_embeddings": False}},
        {"training": {"epochs": [2], "average_after": [2]}},
        {"tree": {"height": 0}},
    ],
)
def test_what_is_held_is_what_training_holds(change: dict[str, Any], workers: int) -> None:
    settings, of = experiment(**change), counts()
    for shape in level_shapes(of.labels, settings.tree):
        training, data, rows = trained(settings, of, shape, workers)
        shard = Shard(0, workers)
        training.average_after = 0
        training.step(make_batch(data, training.network.level, rows, shard))
        if settings.training.averages_at(shape.number):
            training.average.add(training.network)
        training._keep_best()
        planned = memory.level_memory(settings, of, shape, workers=workers, accelerator=False, width=4)

        def size(tensors: Any) -> int:
            return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

        network, table = training.network, training.network.attention.weight
        assert planned.label_table == size([table])
        weights = size(network.parameters())
        assert planned.label_table + planned.word_table + planned.network == weights
        states = [training.optimizer.state[parameter] for parameter in training.parameters.values()]
        assert planned.moments == size(state[part] for state in states for part in ("first", "second"))
        assert planned.average == size(training.average.mean.values())
        assert planned.best == size(training.best.values())


@pytest.mark.parametrize(("precision", "width"), [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize(("height", "batch", "hidden"), [(0, 16, 64), (1, 16, 64), (1, 96, 48)])
def test_a_steps_memory_is_bounded_and_not_by_much(
    precision: str, width: int, height: int, batch: int, hidden: int
) -> None:
    settings = experiment(
        tree={"height": height, "cluster_size": 16, "beam": 20},
        network={"hidden": hidden, "fully_connected": [64, 32]},
        training={"batch_size": batch, "precision": precision},
    )
    of = counts(labels=4_000, words=3_000, word_dimension=50, longest=96)
    shape = level_shapes(of.labels, settings.tree)[-1]
    training, data, rows = trained(settings, of, shape)
    one = make_batch(data, training.network.level, rows)
    training.step(one)  # makes the moments
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        training.step(one)
    assert seen.profiler is not None
    found = seen.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in found if event.name() == "[memory]")
    peak = np.cumsum([change for _, change in changes]).max()
    planned = memory.level_memory(settings, of, shape, workers=1, accelerator=False, width=width)
    assert 1 <= (planned.gradients + planned.activations) / peak < 1.5


def test_memory_falls_with_workers() -> None:
    settings, of = amazon3m()
    plans = [
        make_plan(load(ROOT / "configs/amazon3m.yaml", corpora="/none", resources={"workers": w}), of, gpus(64, 1e6))
        for w in (1, 2, 4, 8, 16)
    ]
    for level in range(4):
        totals = [plan.levels[level].memory.total for plan in plans]
        assert totals == sorted(totals, reverse=True)
    deepest = [plan.levels[3].memory for plan in plans]
    assert deepest[1].label_table == deepest[0].label_table / 2
    # 2.8 million labels of 1,024 float32, and what blocks of six leave unused
    assert 2_812_281 * 4_096 < deepest[0].label_table < 1.15 * 2_812_281 * 4_096
    assert settings.resources.workers == 8


def test_a_document_takes_its_rows_and_orders_and_not_its_words() -> None:
    """Each worker maps the words and labels of the split, of which part and cut texts are views."""
    documents = 100_000
    split = Split(
        Ragged(np.zeros(4 * documents, np.int32), 4 * np.arange(documents + 1)),
        Ragged(np.zeros(documents, np.int32), np.arange(documents + 1)),
    )
    tree = LabelTree.from_cuts(np.arange(9), [])
    tracemalloc.start()
    try:
        train = split.part(documents - 1).cut(3)
        data = LevelData(train.tokens, TrueNodes(tree, 1, train.labels))
        assert data.positives.lengths.sum() == documents - 1
        batches = shuffle_batches(data.tokens.lengths, 100, seed=0, epoch=0)
        assert len(batches) == documents // 100
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    words, longer = (memory.corpus_bytes(counts(documents=documents, tokens=tokens)) for tokens in (4.0, 400.0))
    assert words == longer
    assert 0.9 * peak < words < 1.2 * peak
