"""Run: pytest tests/benchmarks/test_inference_benchmark.py

What inference is compared with predicts the same; and the benchmark's own trees are what it says.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path[:0] = [str(Path(__file__).parents[1] / room) for room in ("training", "inference")]

from inference import random_tree, table  # noqa: E402
from literal_inference import LiteralTree  # noqa: E402
from tiny_run import train_run  # noqa: E402


@pytest.fixture(scope="module", params=[0, 1], ids=["H=0", "H=1"])
def run(request, tmp_path_factory):
    torch.set_num_threads(1)
    return train_run(tmp_path_factory.mktemp("home"), trees=1, height=request.param, epochs=2)


def test_the_literal_tree_predicts_the_same(run):
    [ours] = run.ensemble().trees
    tokens = run.corpus.split("valid").tokens
    labels, scores = ours.predict(tokens, 8)
    for batch_size in (64, 5):
        literal_labels, literal_scores = LiteralTree.like(ours, evidence=True).predict(tokens, 8, batch_size)
        found = [dict(zip(*row, strict=True)) for row in zip(labels.tolist(), scores.tolist(), strict=True)]
        expected = [
            dict(zip(*row, strict=True)) for row in zip(literal_labels.tolist(), literal_scores.tolist(), strict=True)
        ]
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-4)


def test_without_evidence_it_is_the_papers(run):
    [ours] = run.ensemble().trees
    tokens = run.corpus.split("valid").tokens
    plain = LiteralTree.like(ours, evidence=False).predict(tokens, 8)[1]
    assert not np.allclose(plain, ours.predict(tokens, 8)[1])


def test_a_random_tree_has_the_shape_of_the_settings(run):
    tree = random_tree(run.settings, run.corpus, 0)
    assert tree.tree.level_sizes == run.ensemble().trees[0].tree.level_sizes
    assert sorted(tree.tree.label_order.tolist()) == list(range(run.corpus.trained))
    labels, _ = tree.predict(run.corpus.split("valid").tokens, 5)
    assert labels.shape == (24, 5)


def test_the_table_shows_rows_of_every_kind():
    rows = [{"part": "a", "system": "ours", "speedup": 2.0}, {"part": "b", "trees": 3, "ms_per_text": 1.5}]
    assert table(rows).row_count == 2
