"""Run: pytest tests/benchmarks/test_inference_benchmark.py

What inference is compared with predicts the same; and the benchmark's own trees are what it says.
"""

import json

import numpy as np
import pytest
import torch
from inference import equality_of, failures, main, networks_of, predict, random_tree, table
from literal_inference import LiteralTree
from tiny_run import train_run


@pytest.fixture(scope="module", params=[0, 1], ids=["H=0", "H=1"])
def run(request, tmp_path_factory):
    torch.set_num_threads(1)
    return train_run(tmp_path_factory.mktemp("home"), trees=1, height=request.param, epochs=2)


def test_the_literal_tree_predicts_the_same(run):
    ours = networks_of(run, 0)
    tokens = run.corpus.split("valid").tokens
    labels, scores = predict(ours, tokens, 8)
    for batch_size in (64, 5):
        literal_labels, literal_scores = LiteralTree.like(ours, evidence=True).predict(tokens, 8, batch_size)
        found = [dict(zip(*row, strict=True)) for row in zip(labels.tolist(), scores.tolist(), strict=True)]
        expected = [
            dict(zip(*row, strict=True)) for row in zip(literal_labels.tolist(), literal_scores.tolist(), strict=True)
        ]
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-4)


def test_without_evidence_it_is_the_papers(run):
    ours = networks_of(run, 0)
    tokens = run.corpus.split("valid").tokens
    plain = LiteralTree.like(ours, evidence=False).predict(tokens, 8)[1]
    assert not np.allclose(plain, predict(ours, tokens, 8).scores)


def test_a_random_tree_has_the_shape_of_the_settings(run):
    tree = random_tree(run.settings, run.corpus.trained, torch.from_numpy(run.corpus.word_vectors()), 0)
    assert tree.tree.level_sizes == run.open_tree(0).level_sizes
    assert sorted(tree.tree.label_order.tolist()) == list(range(run.corpus.trained))
    labels, _ = predict(tree, run.corpus.split("valid").tokens, 5)
    assert labels.shape == (24, 5)


@pytest.mark.processes
def test_equality_is_of_the_networks_alone(tmp_path):
    """In a run whose networks read two words of a text, its other members all."""
    members = {"network_tree": {"weight": 0.5}, "linear_tree": {"weight": 0.25}, "knn": {"weight": 0.25}}
    run = train_run(tmp_path / "home", trees=1, epochs=2, members=members, max_tokens=2)
    path = tmp_path / "equality.json"
    directory = str(run.settings.run_directory)
    main(["--only", "equality", "--run", directory, "--threads", "1", "--json", str(path)])
    figures = json.loads(path.read_text())["figures"]
    assert figures["equal_labels_share"] == 1.0
    assert figures["P@5_ours"] == figures["P@5_literal"] > 0
    tokens = run.corpus.split("test").tokens
    alone, ensemble = predict(networks_of(run, 0), tokens, 5).labels, run.open_ensemble().rank(tokens).labels
    assert (alone != ensemble[:, :5]).any()


@pytest.mark.processes
def test_different_labels_are_a_failure(run, monkeypatch, tmp_path, capsys):
    ours = networks_of(run, 0)
    literal = LiteralTree.like(ours, evidence=True)
    with torch.no_grad():
        literal.levels[-1].attention.weight.mul_(-1)
    figures, _ = equality_of(ours, literal, run.corpus.split("test"), len(run.corpus.labels))
    assert figures["equal_labels_share"] < 0.9
    assert "equal_labels_share" in failures(figures)
    assert failures({"P@5_ours": 1.0}) is None

    like = LiteralTree.like

    def changed(member, **named):
        tree = like(member, **named)
        tree.labels = tree.labels.flip(0)
        return tree

    monkeypatch.setattr(LiteralTree, "like", changed)
    path = tmp_path / "equality.json"
    with pytest.raises(SystemExit) as stopped:
        main(["--only", "equality", "--run", str(run.settings.run_directory), "--threads", "1", "--json", str(path)])
    assert stopped.value.code == 1
    assert "equal_labels_share" in capsys.readouterr().err
    assert json.loads(path.read_text())["figures"]["equal_labels_share"] < 0.9  # what was measured is kept


def test_the_table_shows_rows_of_every_kind():
    rows = [{"part": "a", "system": "ours", "speedup": 2.0}, {"part": "b", "trees": 3, "ms_per_text": 1.5}]
    assert table(rows).row_count == 2
