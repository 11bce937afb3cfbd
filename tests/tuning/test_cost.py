"""What prediction costs and how good an ensemble is, on trained trees."""

from pathlib import Path

import numpy as np
import pytest
import torch
from axml_ray.inference.beam import TreePredictor
from axml_ray.inference.combining import Votes
from axml_ray.inference.ensemble import Ensemble
from tiny_corpus import experiment, train_tree, write_corpus

from axml_ray.files import read_json
from axml_ray.tuning.cost import milliseconds_a_text
from axml_ray.tuning.trial import ensemble_score


@pytest.mark.parametrize("height", [0, 1])
def test_one_tree_scores_as_its_last_level_did(tmp_path: Path, height: int) -> None:
    corpus = write_corpus(tmp_path / "corpora" / "tiny")
    settings = experiment(tmp_path, tree={"height": height}, epochs=(2,), average_after=(1,))
    train_tree(settings, corpus)
    tree = TreePredictor.open(settings, corpus, 0)
    valid = corpus.split("valid")
    about = read_json(settings.run_directory / "tree-0" / f"level-{height + 1}" / "level.json")
    one, four = (Ensemble([tree] * trees, Votes(10)) for trees in (1, 4))
    for ensemble in (one, four):
        assert ensemble_score(ensemble, valid, corpus.trained) == pytest.approx(about["valid_nDCG@5"], abs=1e-4)
    torch.set_num_threads(2)
    costs = [milliseconds_a_text(ensemble, valid.tokens) for ensemble in (one, four)]
    assert torch.get_num_threads() == 2
    assert 0 < costs[0] < costs[1]
    assert np.isfinite(costs).all()
