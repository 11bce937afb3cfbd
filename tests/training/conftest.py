"""The tiny corpus, and a tree trained on it, for all tests of this folder that need them."""

from pathlib import Path

import pytest
import torch
from tiny_corpus import experiment, train_tree, write_corpus
from tree_runs import BRIEF

from axml_ray.corpus.store import Corpus
from axml_ray.settings import Experiment


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("home")
    write_corpus(home / "corpora" / "tiny")
    return home


@pytest.fixture(scope="session")
def corpus(home: Path) -> Corpus:
    return Corpus.open(home / "corpora" / "tiny")


@pytest.fixture(scope="session")
def trained(home: Path, corpus: Corpus) -> Experiment:
    settings = experiment(home, **BRIEF)
    train_tree(settings, corpus)
    return settings
