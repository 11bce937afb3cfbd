"""configs/mine.yaml on 240 texts in one file: it prepares, warns, and the settings that it is warned with work."""

from pathlib import Path
from typing import Any

import pytest
import synthetic

from axml_ray.configuration import load
from axml_ray.pipeline import SMALL_SETTINGS, SMALL_TEXTS, prepare_corpus, run, small_corpus_warning
from axml_ray.run import Run
from axml_ray.settings import SPLITS, Experiment

MINE = Path(__file__).parents[1] / "configs" / "mine.yaml"

pytestmark = pytest.mark.slow


def mine(directory: Path, **groups: dict[str, Any]) -> Experiment:
    written = synthetic.write(directory / "texts", train=240)
    corpus = {"train": written["train"], "test": []}
    return load(MINE, runs=directory / "runs", corpora=directory / "corpora", corpus=corpus, **groups)


def test_the_settings_that_few_texts_are_warned_with_work(ray_cluster: None, tmp_path: Path) -> None:
    settings = mine(tmp_path)
    corpus = prepare_corpus(settings)
    documents = {split: corpus.documents(split) for split in SPLITS}
    assert sum(documents.values()) == 240 and 10 < documents["test"] < 40
    assert documents["valid"] == (documents["train"] + documents["valid"]) // 10
    warning = small_corpus_warning(Run(settings, corpus))
    assert warning is not None and documents["train"] < SMALL_TEXTS
    assert all(f"--{key} {value}" in warning for key, value in SMALL_SETTINGS.items())

    changed: dict[str, dict[str, Any]] = {}
    for key, value in SMALL_SETTINGS.items():
        *path, name = key.split(".")
        group: dict[str, Any] = changed
        for part in path:
            group = group.setdefault(part, {})
        group[name] = value
    flat = mine(tmp_path, **changed)
    weights = {kind: own.weight for kind, own in flat.members.chosen.items()}
    assert (weights["network_tree"], weights["linear_tree"]) == (0.2, 0.65)
    assert small_corpus_warning(Run(flat, corpus)) is None
    metrics = run(flat)
    assert metrics["documents"] == documents["test"]
    assert metrics["ensemble"]["P@1"] > 80  # each label has a word of its own
