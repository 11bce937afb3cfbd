"""Run: pytest tests/serving/test_gpus.py

Replicas with GPUs on a cluster that has one as far as Ray knows.
"""

from pathlib import Path

import pytest
import torch
from small_server import PARTS, SMALL

from axml_ray.cluster.capacity import largest_node
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import file_bytes
from axml_ray.core.memory import PREDICTOR_BYTES
from axml_ray.inference.bundle.bundle import Bundle
from serve_app.__main__ import check_fits
from serve_app.app import group_members, members_memory
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
    memory = pytest.approx(PREDICTOR_BYTES + file_bytes(serving_bundle), rel=0.01)
    assert found["ServeReplica:gpus:members"] == {"CPU": 0.1, "GPU": 0.25, "memory": memory}
    assert "GPU" not in found["ServeReplica:gpus:ingress"]


def test_memory_of_the_members_of_a_deployment(ray_cluster: None, serving_bundle: Path) -> None:
    """A bundle's files but those of other members; never more than half a node, on which a roll-out needs it twice."""
    bundle = Bundle.open(serving_bundle)
    groups = group_members(bundle)
    assert len(groups) == PARTS
    sizes = {name: file_bytes(serving_bundle / "members" / name) for names in groups.values() for name in names or ()}
    whole = members_memory(bundle, None)
    assert whole == PREDICTOR_BYTES + file_bytes(serving_bundle)
    for names in groups.values():
        assert names and members_memory(bundle, names) == whole - sum(sizes.values()) + sum(map(sizes.get, names))
    with (serving_bundle / "members" / "large").open("wb") as file:
        file.truncate(1 << 42)  # sparse
    try:
        assert members_memory(bundle, None) == largest_node("memory") // 2
    finally:
        (serving_bundle / "members" / "large").unlink()


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
