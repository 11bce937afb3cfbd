"""What a plan is made from: the counts of a corpus, and the machines."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_corpus
from planning.planned import experiment

from axml_ray.core.errors import SettingsError
from axml_ray.corpus.counts import count_corpus
from axml_ray.planning.machines import ASSUMED_GPU_GIB, choose_machines
from axml_ray.planning.phases import label_terms
from axml_ray.settings import changed
from axml_ray.settings.configuration import load


def test_counts_of_a_prepared_corpus(tmp_path: Path) -> None:
    corpus = tiny_corpus.write_corpus(tmp_path / "corpora" / "tiny")
    settings = load(
        corpora=str(tmp_path / "corpora"),
        corpus={"name": "tiny", "source": "installed_packages", "expected": {"documents": 5, "labels": 5, "tokens": 5}},
    )
    found = count_corpus(settings)
    lengths = corpus.split("train").tokens.lengths
    assert found.documents == tiny_corpus.DOCUMENTS["train"]
    assert found.valid_documents == tiny_corpus.DOCUMENTS["valid"]
    assert found.labels == tiny_corpus.LABELS
    assert found.words == len(corpus.tokenizer)
    assert found.word_dimension == tiny_corpus.DIMENSION
    assert found.tokens == pytest.approx(lengths.mean())
    assert found.longest == lengths.max()
    # Networks read fewer words than members that count features.
    cut = count_corpus(changed(settings, "network.max_tokens", 2))
    assert cut.tokens == found.tokens and cut.longest == 2
    assert cut.network_tokens == pytest.approx(np.minimum(lengths, 2).mean())
    assert "named" not in found.source
    train = str(tmp_path / "train.jsonl")
    content = json.loads((corpus.directory / "corpus.json").read_text())
    (corpus.directory / "corpus.json").write_text(json.dumps({**content, "settings": {"train": [train]}}))
    for name in ("train", "other"):
        given = {"name": "tiny", "train": [str(tmp_path / f"{name}.jsonl")]}
        source = count_corpus(load(corpora=str(tmp_path / "corpora"), corpus=given)).source
        assert ("corpus.train named" in source) == (name == "other")


def test_a_run_on_a_part_has_the_label_trees_of_the_whole_corpus() -> None:
    whole, part, limited = (
        count_corpus(load(corpora="/none", corpus={**EXPECTED, **corpus}, training=training))
        for corpus, training in (({}, {}), ({}, {"documents": 100}), ({"max_train_documents": 100}, {}))
    )
    assert (whole.documents, part.documents, limited.documents) == (10_000, 100, 100)
    assert whole.valid_documents == limited.valid_documents  # drawn before the limit
    assert label_terms(whole) == label_terms(part) > label_terms(limited)


EXPECTED = {"source": "installed_packages", "expected": {"documents": 10_000, "labels": 500, "tokens": 50}}


def test_without_corpus_or_expectation_it_says_what_to_do(tmp_path: Path) -> None:
    settings = load(corpora=str(tmp_path), corpus={"source": "installed_packages", "expected": {"labels": 7}})
    with pytest.raises(SettingsError, match=r"axml-ray prepare, or set corpus.expected.documents, .labels and"):
        count_corpus(settings)


def test_machines(tmp_path: Path) -> None:
    half = choose_machines(experiment(resources={"gpus_per_worker": 0.5}), None, None)
    assert (half.units, half.unit_share, half.side_by_side(1, 3)) == (0.5, 0.5, 1)
    settings = experiment(resources={"workers": 2, "gpus_per_worker": 1}, ensemble={"trees": 3})
    assert choose_machines(settings, None, None).units == 2
    assert choose_machines(settings, None, None).side_by_side(2, 3) == 1
    shared = choose_machines(experiment(resources={"gpus_per_worker": 0.5}), 1, None)
    assert (shared.side_by_side(1, 3), shared.memory) == (2, ASSUMED_GPU_GIB / 2)
    eight = choose_machines(settings, 8, 24)
    assert (eight.units, eight.unit_share, eight.memory) == (8, 1, 24)
    assert eight.side_by_side(2, 3) == 3
    here = choose_machines(experiment(resources={"cpus_per_worker": 0.5}), None, None)
    assert here.shared
    assert here.memory_of_worker(1, 2) == pytest.approx(here.memory / min(2, here.units * 2))
    assert not choose_machines(experiment(), None, 3.0).shared


def test_the_memory_of_a_worker_is_taken_as_given() -> None:
    settings = experiment(resources={"gpus_per_worker": 0.5})
    assert choose_machines(settings, None, 40).memory == 40
    assert choose_machines(settings, None, None).memory == ASSUMED_GPU_GIB / 2
