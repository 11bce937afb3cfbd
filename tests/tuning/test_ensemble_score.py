"""How good the ensemble of a trial is, on trained trees."""

from pathlib import Path

import pytest
from tiny_corpus import experiment, write_corpus

from axml_ray.core.files import read_json
from axml_ray.ensemble.ensemble import Ensemble
from axml_ray.runs.fitting import fit_run
from axml_ray.runs.run import Run
from axml_ray.tuning.trial import ensemble_score


@pytest.mark.parametrize(("height", "evaluated"), [(0, 10), (1, 4_000)])
def test_one_tree_scores_as_its_last_level_did(
    tmp_path: Path, height: int, evaluated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a level is scored on a part of the validation documents."""
    monkeypatch.setattr("axml_ray.training.tree.EVALUATED", evaluated)
    monkeypatch.setattr("axml_ray.tuning.trial.EVALUATED", evaluated)
    corpus = write_corpus(tmp_path / "corpora" / "tiny")
    settings = experiment(tmp_path, tree={"height": height}, epochs=(2,), average_after=(1,), learning_rate=0.02)
    one, four = (
        Run(settings.model_copy(update={"ensemble": settings.ensemble.model_copy(update={"trees": trees})}), corpus)
        for trees in (1, 4)
    )
    alone = fit_run(one)
    (member,) = alone.members.values()
    same = Ensemble(four.combination(alone.combination.combiner), {spec.name: member for spec in four.members})
    level = read_json(one.layout.tree(0) / "network_tree" / f"level-{height + 1}" / "level.json")
    for ensemble in (alone, same):
        score = ensemble_score(ensemble, corpus)
        assert score == pytest.approx(level["valid_nDCG@5"], abs=1e-4)
