import sys
from pathlib import Path

import pytest
import torch

# the tiny corpus, the literal network
sys.path[:0] = [str(Path(__file__).parents[1] / room) for room in ("training", "network")]

from tiny_run import Run, train_run  # noqa: E402

from axml_ray.inference.export import export_bundle  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of two trees, each of one level of clusters, in float32."""
    torch.set_num_threads(1)
    return train_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def bundle_directory(tiny_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That run as a bundle; not to be changed."""
    directory = tmp_path_factory.mktemp("bundles") / "bundle"
    export_bundle(tiny_run.settings, directory)
    return directory
