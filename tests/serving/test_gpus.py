"""Run: pytest tests/serving/test_gpus.py

Replicas with GPUs on a cluster that has one as far as Ray knows.
"""

from pathlib import Path

import pytest
import torch
from small_server import SMALL

from axml_ray.core.errors import SettingsError
from serve_app.__main__ import check_fits
from serve_app.settings import ApplicationSettings


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch sees a GPU")
def test_ray_reserves_a_replicas_gpus(serve_address: str, serving_bundle: Path) -> None:
    """Not the ingress's; and a GPU that PyTorch does not see is what Serve says of the application."""
    import ray
    from ray import serve
    from ray.util.state import list_actors

    from serve_app.app import build

    with pytest.raises(RuntimeError):
        serve.run(build({"bundle": str(serving_bundle), **SMALL, "gpus": 0.25}), name="gpus", route_prefix="/gpus")
    deployment = serve.status().applications["gpus"].deployments["members"]
    assert "device: 'cuda' is required" in deployment.message
    serve.delete("gpus")
    actors = list_actors(address=ray.get_runtime_context().gcs_address, detail=True, limit=1_000)
    found = {actor.class_name: actor.required_resources for actor in actors}
    assert found["ServeReplica:gpus:members"] == {"CPU": 0.1, "GPU": 0.25}
    assert "GPU" not in found["ServeReplica:gpus:ingress"]


class TestBeforeTheStart:
    """Of a server with a cluster of its own."""

    def test_gpus_of_all_replicas(
        self, ray_cluster: None, serving_bundle: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        check_fits(ApplicationSettings(bundle=serving_bundle, cpus=0.1, gpus=0.5, replicas=2))
        with pytest.raises(SettingsError, match=r"^gpus: 3 replicas of members × 0\.4 GPUs .* room for 2; lower"):
            check_fits(ApplicationSettings(bundle=serving_bundle, cpus=0.1, gpus=0.4, replicas=3))

    def test_a_gpu_that_pytorch_does_not_see(
        self, ray_cluster: None, serving_bundle: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        with pytest.raises(SettingsError, match=r"^device: 'cuda' is required"):
            check_fits(ApplicationSettings(bundle=serving_bundle, gpus=0.5))

    def test_a_gpu_and_a_half(self, serving_bundle: Path) -> None:
        with pytest.raises(SettingsError, match=r"gpus is 1\.5; above 1, take a whole number"):
            ApplicationSettings.from_arguments({"bundle": str(serving_bundle), "gpus": 1.5})
