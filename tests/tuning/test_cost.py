"""What prediction costs and how good an ensemble is, on trained trees."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_corpus import experiment, write_corpus

from axml_ray.core.files import read_json
from axml_ray.ensemble.ensemble import Ensemble
from axml_ray.runs.fitting import fit_run
from axml_ray.runs.run import Run
from axml_ray.tuning.cost import milliseconds_a_text
from axml_ray.tuning.trial import ensemble_score


@pytest.mark.parametrize("height", [0, 1])
def test_one_tree_scores_as_its_last_level_did(tmp_path: Path, height: int) -> None:
    corpus = write_corpus(tmp_path / "corpora" / "tiny")
    settings = experiment(tmp_path, tree={"height": height}, epochs=(2,), average_after=(1,), learning_rate=0.02)
    valid, ensembles = corpus.split("valid"), []
    for trees in (1, 4):
        size = settings.ensemble.model_copy(update={"trees": trees, "top_labels": 10})
        run = Run(settings.model_copy(update={"ensemble": size, "name": f"of-{trees}"}), corpus)
        ensembles.append(fit_run(run) if trees == 1 else same_four_times(ensembles[0], run))
    about = read_json(settings.runs / "of-1" / "tree-0" / "network_tree" / f"level-{height + 1}" / "level.json")
    for ensemble in ensembles:
        assert ensemble_score(ensemble, valid, corpus.trained) == pytest.approx(about["valid_nDCG@5"], abs=1e-4)
    torch.set_num_threads(2)
    costs = [milliseconds_a_text(ensemble, valid.tokens) for ensemble in ensembles]
    assert torch.get_num_threads() == 2
    assert 0 < costs[0] < costs[1]
    assert np.isfinite(costs).all()


def same_four_times(alone: Ensemble, run: Run) -> Ensemble:
    (member,) = alone.members.values()
    return Ensemble(run.combination(alone.combination.combiner), {spec.name: member for spec in run.members})
