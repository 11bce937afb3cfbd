import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / room) for room in ("training", "inference")]

from tiny_run import train_run  # noqa: E402

from axml_ray.inference.export import export_bundle  # noqa: E402


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="session")
def serving_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of two trees that were trained in seconds; not to be changed."""
    directory = tmp_path_factory.mktemp("served") / "bundle"
    export_bundle(train_run(tmp_path_factory.mktemp("run")).settings, directory)
    return directory


@pytest.fixture(scope="module")
def server(ray_cluster: None, serving_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where that bundle is served with two examples. Of a module, so that other tests have both CPUs back."""
    from ray import serve

    from serve_app.app import build

    examples = tmp_path_factory.mktemp("examples") / "examples.jsonl"
    examples.write_text('{"text": "key3 noise1 key0"}\n{"text": "noise2 key5"}\n', encoding="utf-8")
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(build({"bundle": serving_bundle, "examples": examples, "threads": 1}), name="tiny", route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
