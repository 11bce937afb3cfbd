"""A project that is moved or copied, or whose inputs are elsewhere: nothing is prepared or trained again.

Run: pytest tests/runs/test_moved_project.py
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import synthetic
import yaml

from axml_ray.cli.parser import from_command_line
from axml_ray.cli.train import parse
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json, write_json
from axml_ray.runs.fitting import fit_run
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import load, read_settings
from axml_ray.workflow.train import begin, prepare_corpus

NAMES = "".join(f"label {number}\tname {number}\n" for number in range(synthetic.LABELS))


def settings_of(**corpus: Any) -> Experiment:
    """Settings with paths relative to the current directory; `project` must be it."""
    content: dict[str, Any] = synthetic.experiment(Path(), training={"epochs": [1]}, ensemble={"trees": 1})
    content["corpus"] |= corpus
    return load(None, **content)


def train(settings: Experiment) -> Run:
    """The main job without Ray and without an evaluation."""
    current = begin(settings)
    fit_run(current)
    return current


def written(run: Run) -> dict[str, int]:
    """Inodes of the files of a run and its corpus that take time to make."""
    parents = (run.corpus.directory, *run.layout.directory.glob("tree-*"))
    paths = [(path, parent) for parent in parents for path in parent.rglob("*") if path.is_file()]
    return {
        f"{parent.name}/{path.relative_to(parent)}": path.stat().st_ino
        for path, parent in paths
        if path.suffix not in (".json", ".jsonl")
    }


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, the current directory."""
    directory = tmp_path / "project"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def assert_finished(settings: Experiment, before: dict[str, int]) -> Run:
    """Start again, and find nothing to do."""
    current = begin(settings)
    assert current.has_tree(0) and all(spec.is_fitted for spec in current.members)
    assert written(current) == before
    return current


def test_a_moved_project_goes_on_from_where_it_was(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.write(Path("texts"))
    Path("names.tsv").write_text(NAMES)
    given = {"label_names": "names.tsv"}
    before = written(train(settings_of(**given)))
    content = (project / "runs/small/settings.yaml").read_text() + (
        project / "corpora/synthetic/corpus.json"
    ).read_text()
    assert str(project) not in content
    place = project.parent / "mnt" / "elsewhere"
    place.parent.mkdir()
    project.rename(place)
    monkeypatch.chdir(place)
    # Paths are right from any directory, before the run is started again.
    monkeypatch.chdir(place.parent)
    stored = read_settings(place / "runs/small")
    assert stored.corpus.train == (place / "texts/train.jsonl",) and stored.corpora == place / "corpora"
    assert Run.open(place / "runs/small").members[0].is_fitted
    assert from_command_line("", ["--config", str(place / "runs/small/settings.yaml")]).corpus == stored.corpus
    monkeypatch.chdir(place)
    current = assert_finished(settings_of(**given), before)
    assert current.corpus.directory == place / "corpora/synthetic"
    # A copy is a project of its own, although the first is still there.
    copy = place.with_name("copy")
    shutil.copytree(place, copy)
    monkeypatch.chdir(copy)
    current = begin(settings_of(**given))
    assert all(spec.is_fitted for spec in current.members) and current.corpus.directory == copy / "corpora/synthetic"


def test_a_run_that_was_moved_alone_finds_its_corpus(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.write(Path("texts"))
    train(settings_of())
    place = project.parent / "archive" / "best"
    place.parent.mkdir()
    (project / "runs/small").rename(place)
    monkeypatch.chdir(place.parent)
    assert Run.open(place).corpus.directory == project / "corpora/synthetic"
    assert read_settings(place).corpus.train == (project / "texts/train.jsonl",)


def test_a_renamed_run_goes_on_from_its_settings(project: Path) -> None:
    synthetic.write(Path("texts"))
    run = train(settings_of())
    before = written(run)
    renamed = run.layout.directory.rename(run.layout.directory.with_name("best"))
    settings = load(renamed / "settings.yaml")
    assert settings.run_directory == renamed
    current = assert_finished(settings, before)
    # A member that is fitted anew is not taken for the old one if that ends half-way.
    current.prepare_fit(current.members[0])
    assert not current.members[0].is_fitted


def test_inputs_at_another_mount_point_are_the_same(project: Path, tmp_path: Path) -> None:
    synthetic.write(tmp_path / "disk1")
    (tmp_path / "disk1/names.tsv").write_text(NAMES)

    def given(disk: str) -> Experiment:
        files = {split: [str(tmp_path / disk / f"{split}.jsonl")] for split in ("train", "test")}
        return settings_of(**files, label_names=str(tmp_path / disk / "names.tsv"))

    before = written(train(given("disk1")))
    (tmp_path / "disk1").rename(tmp_path / "disk2")
    assert_finished(given("disk2"), before)
    os.utime(tmp_path / "disk2/train.jsonl")
    assert_finished(given("disk2"), before)
    # Other texts at another place are refused before anything is prepared, and so are other settings.
    synthetic.write(tmp_path / "disk3", seed=1)
    (tmp_path / "disk3/names.tsv").write_text(NAMES)
    with pytest.raises(SettingsError, match=r"corpus\.train"):
        begin(given("disk3"))
    with pytest.raises(SettingsError, match=r"corpus\.label_names"):
        begin(settings_of(train=[str(tmp_path / "disk2/train.jsonl")], test=[str(tmp_path / "disk2/test.jsonl")]))
    with pytest.raises(SettingsError, match=r"corpus\.word_dimension"):
        begin(
            given("disk2").model_copy(update={"corpus": given("disk2").corpus.model_copy(update={"word_dimension": 9})})
        )
    # Other texts at the same place are another corpus.
    shutil.copyfile(tmp_path / "disk3/train.jsonl", tmp_path / "disk2/train.jsonl")
    with pytest.raises(SettingsError, match="another corpus"):
        begin(given("disk2"))
    # Nor does a run of another name replace the corpus, or the command that only prepares.
    other = given("disk2").model_copy(update={"name": "other"})
    for start in (begin, prepare_corpus):
        with pytest.raises(SettingsError, match=r"--corpus\.name"):
            start(other)
    own_corpus = other.model_copy(update={"corpus": other.corpus.model_copy(update={"name": "other"})})
    assert prepare_corpus(own_corpus).fingerprint != Run.open(project / "runs/small").corpus.fingerprint
    assert written(Run.open(project / "runs/small")) == before


def test_a_continued_run_is_known_by_its_weights(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.write(Path("texts"))
    old = train(settings_of())
    synthetic.write(Path("more"), train=40, test=5, seed=2)

    def given() -> Experiment:
        return parse(["--continue", "runs/small", "--corpus.train", "more/train.jsonl"])[0]

    current = train(given())
    assert current.settings.name == "small-continued"
    before, key = written(current), current.tree_key(0)
    place = project.with_name("moved")
    project.rename(place)
    monkeypatch.chdir(place)
    current = assert_finished(given(), before)
    assert current.tree_key(0) == key
    # Other weights at the same place are another run.
    manifest = place / "runs/small" / old.members[0].directory.relative_to(old.layout.directory) / "member.json"
    write_json(manifest, read_json(manifest) | {"content": "other"})
    with pytest.raises(SettingsError, match=r"^continue_from: "):
        begin(given())
    # Once trained, the run does not need the one that it continued.
    shutil.rmtree(place / "runs/small")
    assert Run.open(place / "runs/small-continued").members[0].is_fitted


def test_a_run_whose_settings_were_edited_is_refused(project: Path) -> None:
    settings = settings_of()
    train(settings)
    (settings.run_directory / "settings.yaml").write_text("name: edited\n")
    with pytest.raises(SettingsError, match="other settings"):
        begin(settings)


def test_a_run_of_an_earlier_version_is_refused_in_one_line(project: Path) -> None:
    synthetic.write(Path("texts"))
    settings = settings_of()
    settings.run_directory.mkdir(parents=True)
    (settings.run_directory / "settings.yaml").write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    write_json(settings.run_directory / "corpus.json", {"fingerprint": "0123456789ab"})
    for use in (lambda: begin(settings), lambda: Run.open(settings.run_directory)):
        with pytest.raises(SettingsError, match=r"another version.*seeds.*another --name"):
            use()
    assert not settings.corpora.exists()
    write_json(settings.run_directory / "run.json", {"format": "axml-ray run", "version": 1})
    with pytest.raises(SettingsError, match="another version"):
        begin(settings)
