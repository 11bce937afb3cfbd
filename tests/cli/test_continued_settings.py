"""Run: pytest tests/cli/test_continued_settings.py"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import synthetic
import yaml

from axml_ray.cli.train import parse
from axml_ray.core.errors import SettingsError
from axml_ray.core.run_layout import RunLayout
from axml_ray.core.run_manifest import write_run_manifest
from axml_ray.corpus.store import Corpus
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment, adapt
from axml_ray.settings.configuration import load


@pytest.fixture
def old(tmp_path: Path) -> Experiment:
    """A run's settings, stored as the main job stores them."""
    settings = load(None, **synthetic.experiment(tmp_path))
    settings.run_directory.mkdir(parents=True)
    path = settings.run_directory / "settings.yaml"
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json")), encoding="utf-8")
    write_run_manifest(settings.run_directory)
    return settings


def continued_by(old: Experiment, *words: str) -> Experiment:
    return parse(["--continue", str(old.run_directory), *words])[0]


def test_a_continued_run_has_the_old_texts_and_the_new_ones(old: Experiment, tmp_path: Path) -> None:
    more = tmp_path / "more.jsonl"
    settings = continued_by(old, "--corpus.train", str(more), "--training.epochs", "1")
    assert settings.corpus.train == (*old.corpus.train, more)
    assert (settings.name, settings.corpus.name) == ("small-continued", "small-continued")
    assert settings.continue_from == old.run_directory
    assert settings.corpus.continues == old.corpus_directory
    assert settings.training.epochs == (1,) and old.training.epochs == (2,)
    assert settings.network == old.network and settings.tree == old.tree
    # Old files that are named again are read once; a name of one's own is kept.
    again = continued_by(
        old, "--corpus.train", f"{old.corpus.train[0]},{more}", "--name", "mine", "--corpus.name", "own"
    )
    assert again.corpus.train == settings.corpus.train
    assert (again.name, again.corpus.name) == ("mine", "own")
    # Stored settings are the same when they are read again.
    stored = yaml.safe_load(yaml.safe_dump(settings.model_dump(mode="json")))
    assert load(None, **stored).model_dump() == settings.model_dump()
    assert "continue_from" not in old.model_dump() and "continues" not in old.corpus.model_dump()


def test_auto_keeps_the_shapes_of_the_old_run(old: Experiment, tmp_path: Path) -> None:
    """A config with the preset alone names no shapes, and the preset would choose others for more texts."""
    config = tmp_path / "mine.yaml"
    corpus = old.model_dump(mode="json")["corpus"]
    config.write_text(yaml.safe_dump({"preset": "auto", "name": old.name, "corpus": corpus}), encoding="utf-8")
    settings = continued_by(old, "--config", str(config))
    assert settings.continue_from == old.run_directory and settings.network.hidden == old.network.hidden
    grown, choices = adapt(settings, 500_000, 200_000, 200)
    assert grown.tree.height == old.tree.height and grown.ensemble.trees == old.ensemble.trees
    assert "tree.height" not in {choice.key for choice in choices}
    with pytest.raises(SettingsError, match=r"^tree\.height"):
        continued_by(old, "--config", str(config), "--tree.height", "3")


@pytest.mark.parametrize("preset", [{}, {"preset": "paper"}])
def test_a_config_changes_what_it_gives_and_nothing_else(
    old: Experiment, tmp_path: Path, preset: dict[str, str]
) -> None:
    more = tmp_path / "more.jsonl"
    config = tmp_path / "more.yaml"
    given = {**preset, "corpus": {"train": [str(more)]}, "training": {"epochs": [1]}}
    config.write_text(yaml.safe_dump(given), encoding="utf-8")
    settings = continued_by(old, "--config", str(config))
    assert settings == continued_by(old, "--corpus.train", str(more), "--training.epochs", "1")
    assert settings.training.learning_rate == old.training.learning_rate
    assert continued_by(old, "--config", str(config), "--training.epochs", "3").training.epochs == (3,)


def test_a_run_that_was_moved_can_be_continued(old: Experiment, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere" / "moved"
    place.parent.mkdir()
    old.run_directory.rename(place)
    settings = parse(["--continue", str(place)])[0]
    assert settings.run_directory == tmp_path / "elsewhere" / "moved-continued"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tree.kind", "random"),
        ("tree.height", "2"),
        ("network.hidden", "8"),
        ("network.fully_connected", "16,16"),
        ("ensemble.trees", "3"),
        ("corpus.source", "csv"),
        ("corpus.text_field", "body"),
        ("corpus.title_field", "title"),
    ],
)
def test_what_weights_depend_on_cannot_change(old: Experiment, key: str, value: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{key}: is .*{old.run_directory}"):
        continued_by(old, f"--{key}", value)


def test_test_texts_are_not_drawn_from_trained_ones(old: Experiment) -> None:
    with pytest.raises(SettingsError, match=r"^corpus\.test_share: "):
        continued_by(old, "--corpus.test", "[]")


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="not a run"):
        parse(["--continue", str(tmp_path)])


def test_cache_keys_of_continued_and_fresh_runs_differ(old: Experiment, tmp_path: Path) -> None:
    counts: dict[str, Any] = {"trained_labels": 5}
    corpus = Corpus(tmp_path, {"fingerprint": "same", "counts": counts})
    fresh = Run(old, corpus)
    keys = {fresh.tree_key(0)}
    for weights in ("a", "b"):
        settings = old.model_copy(update={"continue_from": tmp_path / "gone", "name": weights})
        write_run_manifest(settings.run_directory, continues=[weights, weights])
        shutil.copyfile(RunLayout(old.run_directory).settings, RunLayout(settings.run_directory).settings)
        run = Run(settings, corpus)
        keys.add(run.tree_key(0))
        assert {each.key for each in run.members}.isdisjoint(each.key for each in fresh.members)
        elsewhere = Run(settings.model_copy(update={"continue_from": tmp_path / "moved"}), corpus)
        assert elsewhere.tree_key(0) == run.tree_key(0)
    assert len(keys) == 3
