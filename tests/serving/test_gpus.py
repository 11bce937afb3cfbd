"""Run: pytest tests/serving/test_gpus.py

Replicas with GPUs on a cluster that has one as far as Ray knows.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from s3 import Bucket
from small_server import PARTS, SMALL

from axml_ray.cluster.capacity import largest_node
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import file_bytes, whole_directory
from axml_ray.core.memory import PREDICTOR_BYTES
from axml_ray.core.paths import absolute
from axml_ray.inference.bundle.bundle import Bundle
from axml_ray.inference.bundle.manifest import LABELS, MANIFEST
from axml_ray.network.backends import devices
from serve_app.__main__ import check_fits
from serve_app.app import deployments, members_memory
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


def test_memory_of_the_members_of_a_deployment(ray_cluster: None, serving_bundle: Path, bucket: Bucket) -> None:
    """A bundle's files but those of other members, also at a URL where it was replaced; never more than half a node."""
    bundle = Bundle.open(serving_bundle)
    apart = ApplicationSettings(bundle=serving_bundle, colocate_members=False, gpus=0.5)
    groups = {part: names or [] for part, (names, _) in deployments(apart, bundle).items()}
    assert len(groups) == PARTS
    sizes = {name: file_bytes(serving_bundle / "members" / name) for names in groups.values() for name in names}
    whole = members_memory(bundle, None)
    assert whole == PREDICTOR_BYTES + file_bytes(serving_bundle) - (serving_bundle / MANIFEST).stat().st_size
    expected = {part: whole - sum(sizes.values()) + sum(map(sizes.get, names)) for part, names in groups.items()}
    place = absolute(f"s3://{bucket.name}/bundle")
    for _ in range(2):
        with whole_directory(place) as work:
            shutil.copytree(serving_bundle, work, dirs_exist_ok=True)
    for opened in (bundle, Bundle.open(place)):
        assert {part: members_memory(opened, names) for part, names in groups.items()} == expected
    large = {**bundle.manifest.files, LABELS: bundle.manifest.files[LABELS].model_copy(update={"bytes": 1 << 42})}
    bundle = replace(bundle, manifest=bundle.manifest.model_copy(update={"files": large}))
    assert members_memory(bundle, None) == largest_node("memory") // 2


def test_only_networks_use_gpus(serving_bundle: Path) -> None:
    bundle = Bundle.open(serving_bundle)
    networks = {entry.name for entry in bundle.manifest.members if entry.kind == "network_tree"}
    for together in (True, False):
        chosen = ApplicationSettings(bundle=serving_bundle, colocate_members=together, gpus=0.5)
        found = deployments(chosen, bundle)
        assert len(found) > 1 or together
        for names, gpus in found.values():
            assert gpus == (0.5 if names is None or networks & set(names) else 0)


class TestBeforeTheStart:
    """Of a server with a cluster of its own."""

    def test_gpus_of_all_replicas(
        self, ray_cluster: None, serving_bundle: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(devices, "reserved_device", lambda gpus: None)
        check_fits(ApplicationSettings(bundle=serving_bundle, cpus=0.1, gpus=0.5, replicas=2))
        with pytest.raises(SettingsError, match=r"^gpus: 3 replicas of members × 0\.4 GPUs .* room for 2; lower"):
            check_fits(ApplicationSettings(bundle=serving_bundle, cpus=0.1, gpus=0.4, replicas=3))

    @pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch sees a GPU")
    def test_a_gpu_that_pytorch_does_not_see(self, ray_cluster: None, serving_bundle: Path) -> None:
        with pytest.raises(SettingsError, match=r"^device: 'cuda' is required"):
            check_fits(ApplicationSettings(bundle=serving_bundle, gpus=0.5))

    def test_a_gpu_and_a_half(self, serving_bundle: Path) -> None:
        with pytest.raises(SettingsError, match=r"gpus is 1\.5; above 1, take a whole number"):
            ApplicationSettings.from_arguments({"bundle": str(serving_bundle), "gpus": 1.5})
