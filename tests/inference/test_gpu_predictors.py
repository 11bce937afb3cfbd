"""Run: pytest tests/inference/test_gpu_predictors.py

Predictors with GPUs on a cluster that has one as far as Ray knows: what they reserve, and what happens if PyTorch sees
no GPU there.
"""

import json
from pathlib import Path

import pytest
import torch

from axml_ray.core.errors import SettingsError
from axml_ray.core.memory import PREDICTOR_BYTES
from axml_ray.corpus.readers.sources import open_readers
from axml_ray.evaluation.metrics.predictions import ENSEMBLE
from axml_ray.inference.predict import shards
from axml_ray.inference.predict.predict_files import PredictionOptions, predict_files
from axml_ray.inference.predict.predict_split import predict_split
from axml_ray.runs.run import Run
from axml_ray.settings import CorpusSettings

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch sees a GPU")


def predict_a_split(run: Run, gpus: float, output: Path) -> None:
    resources = run.settings.resources.model_copy(update={"gpus_per_predictor": gpus})
    predict_split(Run(run.settings.model_copy(update={"resources": resources}), run.corpus), "test", output)


def predict_a_file(bundle: Path, gpus: float, output: Path) -> None:
    path = output.with_suffix(".jsonl")
    path.write_text(json.dumps({"text": "key1"}))
    found = open_readers([path], CorpusSettings.model_construct(), labelled=False)
    predict_files(bundle, found, output, PredictionOptions(), gpus_per_actor=gpus)


@pytest.fixture(params=["split", "file"])
def predict(request, ray_cluster, tiny_run, bundle_directory, tmp_path):
    """A job that uses some GPUs for each actor."""
    if request.param == "split":
        return lambda gpus: predict_a_split(tiny_run, gpus, tmp_path / "out")
    return lambda gpus: predict_a_file(bundle_directory, gpus, tmp_path / "out")


def reservations() -> list[dict[str, float]]:
    """Return what Ray reserved for each predictor so far, those that ended included."""
    import ray
    from ray.util.state import list_actors

    actors = list_actors(address=ray.get_runtime_context().gcs_address, detail=True, limit=1_000)
    return [actor.required_resources for actor in actors if "ShardWriter" in actor.class_name]


def test_ray_reserves_the_gpus_and_the_memory_of_an_actor(predict, monkeypatch):
    """The check before is passed here; the actor then finds in its own process that there is no GPU."""
    monkeypatch.setattr(shards, "reserved_device", lambda gpus: None)
    with pytest.raises(RuntimeError, match="device: 'cuda' is required"):
        predict(0.25)
    expected = {"CPU": 1, "GPU": 0.25, "memory": pytest.approx(PREDICTOR_BYTES, rel=0.01)}
    assert any(reserved == expected for reserved in reservations())


def test_large_members_are_opened_by_an_actor(ray_cluster, tiny_run, tmp_path, monkeypatch):
    here, before = predict_split(tiny_run, "test", tmp_path / "here"), len(reservations())
    monkeypatch.setattr("axml_ray.inference.predict.predict_split.MOST_BYTES_HERE", 1)
    there = predict_split(tiny_run, "test", tmp_path / "there")
    assert len(reservations()) == before + 1
    assert [ranking.labels.tolist() for ranking, _ in there.read(ENSEMBLE)] == [
        ranking.labels.tolist() for ranking, _ in here.read(ENSEMBLE)
    ]


def test_a_gpu_that_pytorch_does_not_see_is_one_error(predict, capfd):
    """Not the pages of tracebacks that an actor would leave: none is started."""
    before = len(reservations())
    with pytest.raises(SettingsError, match=r"^device: 'cuda' is required, but PyTorch \S+ sees 0 GPUs"):
        predict(0.5)
    assert len(reservations()) == before and "Traceback" not in "".join(capfd.readouterr())


def test_more_gpus_than_the_cluster_has(predict):
    with pytest.raises(SettingsError, match=r"^1 predictors × 1 CPUs and 2 GPUs .* room for 0; lower"):
        predict(2)
