from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from ports import free_port
from small_server import MEMBERS, SMALL, TREES
from tiny_run import train_run

from axml_ray import Tagger
from axml_ray.inference.bundle.export import export_bundle
from axml_ray.runs.run import Run

WEIGHTS = {"network_tree": 0.4, "linear_tree": 0.3, "knn": 0.2, "label_names": 0.1}


@pytest.fixture(scope="session")
def served_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with members of all kinds, whose scores are calibrated."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    home = tmp_path_factory.mktemp("served")
    members: dict[str, dict[str, Any]] = {kind: {"weight": weight} for kind, weight in WEIGHTS.items()}
    members["linear_tree"]["cluster_size"] = 4  # with more, one cluster would do, and one member
    return train_run(home, trees=TREES, members=members, combiner="calibrated")


@pytest.fixture(scope="session")
def serving_bundle(served_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That run as a bundle; not to be changed."""
    directory = tmp_path_factory.mktemp("bundles") / "bundle"
    export_bundle(served_run, directory)
    return directory


@pytest.fixture(scope="session")
def texts(served_run: Run) -> list[str]:
    """Of the test split."""
    return served_run.corpus.table("test", ["text"])["text"].to_pylist()


@pytest.fixture(scope="session")
def tagger(serving_bundle: Path) -> Tagger:
    """The same bundle in this process."""
    return Tagger.load(serving_bundle)


@pytest.fixture(scope="session")
def serve_address(ray_cluster: None) -> Iterator[str]:
    """Where Serve listens; applications have paths of their own."""
    from ray import serve

    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


@pytest.fixture(scope="module")
def server(serve_address: str, serving_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the application, all members together; ended with the module, as its replicas hold CPUs."""
    from ray import serve

    from serve_app.app import build

    examples = tmp_path_factory.mktemp("examples") / "examples.jsonl"
    examples.write_text('{"text": "w1 w2 w3"}\n{"text": "w4 w5"}\n', encoding="utf-8")
    limits = {"max_body_bytes": 200_000, "examples": str(examples)}
    serve.run(build({"bundle": str(serving_bundle), **SMALL, **limits}), name="served", route_prefix="/")
    assert requests.get(f"{serve_address}/readyz", timeout=60).json()["members_used"] == MEMBERS
    yield serve_address
    serve.delete("served")
