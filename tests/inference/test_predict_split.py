"""Prediction of a split. Run: pytest tests/inference/test_predict_split.py"""

from functools import partial
from itertools import cycle
from pathlib import Path

import pytest
import tiny_run
from tiny_corpus import experiment

from axml_ray.core.files import read_json
from axml_ray.inference.predict import predict_split as module


def test_predictors_of_a_split_share_a_number_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of networks that were trained on GPUs, whose format says nothing about CPUs."""
    monkeypatch.setattr(tiny_run, "experiment", partial(experiment, precision="auto"))
    run = tiny_run.train_run(tmp_path, trees=1, epochs=1)
    run.layout.number_format("cpu").unlink()  # as if they were
    # As each process measures for itself, the answers differ.
    answers = cycle([True, False])
    monkeypatch.setattr("axml_ray.network.backends.cpu_backend.measured_bfloat16_is_faster", lambda: next(answers))
    module.predict_split(run, "test")
    decided = read_json(run.layout.number_format("cpu"))
    for _ in range(2):
        predictor = module.EnsemblePredictor(run.settings, None)
        assert predictor.ensemble.members["network_tree-0"].precision == decided
