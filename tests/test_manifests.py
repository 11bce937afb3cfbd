"""The Kubernetes manifests of deploy/, against KubeRay's schemas where they are and, point by point, in any case.

`KUBERAY_CRDS` names a directory with the operator's `ray.io_rayjobs.yaml` and `ray.io_rayservices.yaml`, which its
repository has below `ray-operator/config/crd/bases`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
CLUSTERS = {"rayjob": "rayClusterSpec", "rayservice": "rayClusterConfig"}
"""The key of the cluster in each manifest of the operator."""


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / f"{name}.yaml").read_text(encoding="utf-8")))


def pods(name: str) -> dict[str, dict[str, Any]]:
    """The specification of the head's pod, and of those of each group of workers."""
    [manifest] = manifests(name)
    cluster = manifest["spec"][CLUSTERS[name]]
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]} | {"head": cluster["headGroupSpec"]}
    return {group: spec["template"]["spec"] for group, spec in groups.items()}


EVERY_POD = [pytest.param(pod, id=f"{name}-{group}") for name in CLUSTERS for group, pod in pods(name).items()]


def unknown_keys(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the keys that a schema does not know, which Kubernetes would drop without a word."""
    if isinstance(value, list):
        for entry in value:
            yield from unknown_keys(entry, schema.get("items", {}), path + "[]")
    elif isinstance(value, dict) and "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        for key, entry in value.items():
            if key in schema["properties"]:
                yield from unknown_keys(entry, schema["properties"][key], f"{path}.{key}")
            elif key not in ("apiVersion", "kind", "metadata"):
                yield f"{path}.{key}"


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_operator_knows_all_keys(name: str) -> None:
    directory = os.environ.get("KUBERAY_CRDS")
    if directory is None:
        pytest.skip("KUBERAY_CRDS does not name a directory of KubeRay's schemas")
    definition = yaml.safe_load((Path(directory) / f"ray.io_{name}s.yaml").read_text(encoding="utf-8"))
    [schema] = [v["schema"]["openAPIV3Schema"] for v in definition["spec"]["versions"] if v["name"] == "v1"]
    [manifest] = manifests(name)
    jsonschema_rs.validate(schema, manifest)
    assert list(unknown_keys(manifest, schema)) == []
    manifest["spec"]["suspended"] = True
    assert list(unknown_keys(manifest, schema)) == [".spec.suspended"]


@pytest.mark.parametrize("pod", EVERY_POD)
def test_every_pod(pod: dict[str, Any]) -> None:
    user = pod["securityContext"]
    assert user["runAsNonRoot"] and user["runAsUser"] == user["fsGroup"] == 1000  # else the volume is root's
    assert "USER 1000\n" in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    [container] = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert set(mounts) == {"/data", "/tmp"}  # a volume of ours at /dev/shm would cap Ray's object store
    assert "emptyDir" in mounts["/tmp"]
    assert container["resources"]["requests"] == container["resources"]["limits"]


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_head_runs_no_tasks(name: str) -> None:
    [manifest] = manifests(name)
    assert manifest["spec"][CLUSTERS[name]]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_gpu_workers_have_an_image_and_nodes_with_gpus() -> None:
    pod = pods("rayjob")["gpus"]
    assert pod["containers"][0]["image"].endswith(":cuda")
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_the_logs_of_a_job_outlive_it() -> None:
    [manifest] = manifests("rayjob")
    assert manifest["spec"]["ttlSecondsAfterFinished"] >= 3600


def test_a_new_head_finds_the_replicas() -> None:
    [manifest] = manifests("rayservice")
    options = manifest["spec"]["rayClusterConfig"]["gcsFaultToleranceOptions"]
    service, deployment = manifests("redis")
    [port] = service["spec"]["ports"]
    assert options["redisAddress"] == f"{service['metadata']['name']}:{port['port']}"
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    secret = options["redisPassword"]["valueFrom"]["secretKeyRef"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["env"][0]["valueFrom"]["secretKeyRef"] == secret
    assert f"secret generic {secret['name']} " in (DEPLOY / "rayservice.yaml").read_text(encoding="utf-8")


def test_only_the_server_is_open_to_other_pods() -> None:
    [policy] = manifests("network-policy")
    assert policy["spec"]["podSelector"]["matchLabels"] == {"ray.io/is-ray-node": "yes"}
    open_to_all = [rule["ports"] for rule in policy["spec"]["ingress"] if "from" not in rule]
    assert open_to_all == [[{"port": 8000}]]
