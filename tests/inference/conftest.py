import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_corpus import write_corpus
from tiny_run import train_run

from axml_ray.core.files import read_json, write_json
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.corpus.store import MANIFEST, Corpus
from axml_ray.inference.bundle.export import export_bundle
from axml_ray.inference.bundle.manifest import LABELS
from axml_ray.runs.run import Run


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of two trees, each of one level of clusters, in float32."""
    torch.set_num_threads(1)
    return train_run(tmp_path_factory.mktemp("run"))


def with_names(directory: Path) -> Corpus:
    """The tiny corpus, whose labels are called as the words that tell them."""
    known = write_corpus(directory).labels
    names = tuple(label.replace("label-", "key") for label in known.labels)
    LabelIndex(known.labels, names, known.counts).save(directory / LABELS)
    manifest = read_json(directory / MANIFEST)
    manifest["files"][LABELS] = (directory / LABELS).stat().st_size
    write_json(directory / MANIFEST, manifest)
    return Corpus.open(directory)


@pytest.fixture(scope="session")
def mixed_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of two trees with members of all kinds, combined by the mean."""
    torch.set_num_threads(1)
    weights = {"network_tree": 0.4, "linear_tree": 0.3, "knn": 0.2, "label_names": 0.1}
    members: dict[str, dict[str, Any]] = {kind: {"weight": weight} for kind, weight in weights.items()}
    members["linear_tree"]["cluster_size"] = 4  # with more, one cluster would do, and one member
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiny_run.write_corpus", with_names)
        return train_run(tmp_path_factory.mktemp("mixed"), epochs=2, members=members)


@pytest.fixture(scope="session")
def mixed_bundle(mixed_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That run as a bundle; not to be changed."""
    directory = tmp_path_factory.mktemp("bundles") / "mixed"
    export_bundle(mixed_run, directory)
    return directory


@pytest.fixture(scope="session")
def bundle_directory(tiny_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That run as a bundle; not to be changed."""
    directory = tmp_path_factory.mktemp("bundles") / "bundle"
    export_bundle(tiny_run, directory)
    return directory


@pytest.fixture
def copy(bundle_directory, tmp_path):
    return Path(shutil.copytree(bundle_directory, tmp_path / "bundle"))
