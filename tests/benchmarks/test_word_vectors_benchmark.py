from pathlib import Path

import pytest
import word_vectors

from axml_ray.settings import configuration

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def test_runs_differ_in_vectors_and_seed_only() -> None:
    settings = configuration.load(CONFIG)
    ppmi, again, other = (
        word_vectors.experiment(settings, kind, vectors, seed)
        for kind, vectors, seed in (("ppmi", "train", 0), ("ppmi", "train", 1), ("skip_gram", "/v.npy", 0))
    )
    assert len({each.run_directory for each in (ppmi, again, other)}) == 3
    assert ppmi.corpus == again.corpus and ppmi.corpus_directory != other.corpus_directory
    assert (ppmi.network, ppmi.training, ppmi.tree) == (other.network, other.training, other.tree)
    assert (ppmi.network, ppmi.training) == (settings.network, settings.training)
    assert (ppmi.ensemble.trees, ppmi.ensemble.combiner) == (1, "mean")
    assert {name: group.weight for name, group in ppmi.members if group.weight} == {"network_tree": 1.0}


def test_figures_are_means_over_seeds() -> None:
    rows = [
        {"kind": kind, "scores": {"P@1": 80.0, "P@5": p5, "nDCG@5": ndcg}, "vector_seconds": seconds}
        for kind, p5, ndcg, seconds in (("ppmi", 50.0, 60.0, 2.0), ("ppmi", 52.0, 61.0, 2.0), ("skip_gram", 49, 58, 9))
    ]
    found = word_vectors.figures(rows)
    assert (found["ppmi_P@5"], found["ppmi_nDCG@5"], found["ppmi_spread"]) == (51.0, 60.5, 1.0)
    assert (found["skip_gram_nDCG@5"], found["skip_gram_spread"]) == (58.0, 0.0)
    assert found["speedup"] == pytest.approx(4.5)
    assert "speedup" not in word_vectors.figures(rows[:2])
