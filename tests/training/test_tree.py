"""Run: pytest tests/training/test_tree.py"""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_corpus import experiment, train_tree, write_corpus

from axml_ray.corpus.store import Corpus
from axml_ray.network.attention_xml import AttentionXML, Level
from axml_ray.settings import Experiment
from axml_ray.training.tree import (
    MANIFEST,
    MODEL,
    TREE,
    finished,
    level_directory,
    level_fingerprint,
    load_weights,
    save_level,
    tree_directory,
)
from axml_ray.tree.label_tree import LabelTree


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("home")
    write_corpus(home / "corpora" / "tiny")
    return home


@pytest.fixture(scope="module")
def corpus(home) -> Corpus:
    return Corpus.open(home / "corpora" / "tiny")


@pytest.fixture(scope="module")
def trained(home, corpus) -> tuple[Experiment, list[dict]]:
    settings = experiment(home)
    return settings, train_tree(settings, corpus)


@pytest.fixture
def run(trained, tmp_path) -> Experiment:
    """A copy of the trained run, to be damaged."""
    settings, _ = trained
    copy = settings.model_copy(update={"runs": tmp_path / "runs"})
    source = tree_directory(settings.run_directory, 0)
    for file in sorted(source.rglob("*")):
        if file.is_file():
            target = tree_directory(copy.run_directory, 0) / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
            long_ago = time.time_ns() - 10**12
            os.utime(target, ns=(long_ago, long_ago))
    return copy


def level_file(settings: Experiment, level: int, name: str = MODEL) -> Path:
    return level_directory(tree_directory(settings.run_directory, 0), level) / name


def times(settings: Experiment) -> dict[int, int]:
    return {level: level_file(settings, level).stat().st_mtime_ns for level in (1, 2)}


def opened(records: list[dict]) -> list[int]:
    return [record["level"] for record in records if "opened" in record]


class TestTraining:
    def test_each_level_learns(self, trained, corpus):
        settings, records = trained
        directory = tree_directory(settings.run_directory, 0)
        tree = LabelTree.load(directory / TREE)
        assert tree.level_sizes == (4, 14)
        for level in (1, 2):
            assert finished(level_directory(directory, level), level_fingerprint(settings, corpus, 0, level))
            about = json.loads(level_file(settings, level, MANIFEST).read_text())
            assert about["nodes"] == tree.level_sizes[level - 1] and about["level"] == level
            assert about["steps"] == 6 * 30 and about["snapshots"] == 2
            assert about["valid_nDCG@5"] > 90
        assert opened(records) == []
        assert [record["scored"] for record in records if "scored" in record] == [300]
        assert {record["levels"] for record in records} == {2}

    def test_deep_level_starts_from_the_level_above(self, home, corpus):
        """Trained at next to no rate, a level is what it began as."""
        settings = experiment(home, learning_rate=1e-12, epochs=(1,)).model_copy(update={"name": "frozen"})
        train_tree(settings, corpus)
        tree = LabelTree.load(tree_directory(settings.run_directory, 0) / TREE)
        levels = []
        for number in (1, 2):
            vectors = torch.zeros(corpus.word_vectors().shape)
            network = AttentionXML(Level.of(tree, number), vectors, settings.network)
            load_weights(network, level_directory(tree_directory(settings.run_directory, 0), number))
            levels.append(network.state_dict())
        assert np.allclose(levels[0]["encoder.embedding.weight"], corpus.word_vectors(), atol=1e-6)
        for name in levels[0].keys() - {"attention.weight"}:
            torch.testing.assert_close(levels[0][name], levels[1][name], rtol=0, atol=1e-6)
        assert levels[1]["attention.weight"].shape == (4, 4 * 20)

    def test_without_a_tree(self, home, corpus):
        settings = experiment(home, tree={"height": 0}).model_copy(update={"name": "flat"})
        train_tree(settings, corpus)
        about = json.loads(level_file(settings, 1, MANIFEST).read_text())
        assert about["nodes"] == 14 and about["valid_nDCG@5"] > 90
        assert not level_file(settings, 2).exists()

    def test_two_levels_of_clusters(self, home, corpus):
        settings = experiment(home, tree={"height": 2, "cluster_size": 2, "beam": 3})
        settings = settings.model_copy(update={"name": "high"})
        train_tree(settings, corpus)
        abouts = [json.loads(level_file(settings, level, MANIFEST).read_text()) for level in (1, 2, 3)]
        assert [about["nodes"] for about in abouts] == [4, 8, 14]
        assert abouts[2]["valid_nDCG@5"] > 85


class TestResuming:
    def test_finished_levels_are_opened(self, run, corpus):
        before = times(run)
        assert opened(train_tree(run, corpus, build=False)) == [1, 2]
        assert times(run) == before

    @pytest.mark.parametrize("level", [1, 2])
    def test_a_torn_model_is_trained_again(self, run, corpus, level):
        file = level_file(run, level)
        whole, before = file.read_bytes(), times(run)
        file.write_bytes(whole[:-7])
        assert opened(train_tree(run, corpus, build=False)) == [3 - level]
        after = times(run)
        assert after[3 - level] == before[3 - level] and after[level] > before[level]
        # and comes out the same, to the last bit, from a level above that was opened or trained
        assert file.read_bytes() == whole
        assert opened(train_tree(run, corpus, build=False)) == [1, 2]

    @pytest.mark.parametrize("content", [None, "", "{", "[]", "{}"])
    def test_without_a_whole_manifest_it_is_trained_again(self, run, corpus, content):
        file = level_file(run, 2, MANIFEST)
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
        mark = level_fingerprint(run, corpus, 0, 2)
        assert not finished(file.parent, mark)

    def test_a_stale_fingerprint(self, run, corpus):
        file = level_file(run, 1, MANIFEST)
        file.write_text(file.read_text().replace(level_fingerprint(run, corpus, 0, 1), "0123456789ab"))
        assert opened(train_tree(run, corpus, build=False)) == [2]

    def test_other_settings(self, run, corpus):
        other = run.model_copy(update={"training": run.training.model_copy(update={"epochs": (1,)})})
        before = times(run)
        assert opened(train_tree(other, corpus, build=False)) == []
        assert all(times(run)[level] > before[level] for level in (1, 2))

    def test_what_the_fingerprint_depends_on(self, run, corpus):
        def mark(settings: Experiment = run, tree: int = 0, level: int = 1, corpus: Corpus = corpus) -> str:
            return level_fingerprint(settings, corpus, tree, level)

        changes = {
            "seed": 4,
            "tree": run.tree.model_copy(update={"beam": 4}),
            "network": run.network.model_copy(update={"hidden": 11}),
            "training": run.training.model_copy(update={"clip": 4.0}),
        }
        marks = [mark(run.model_copy(update={name: value})) for name, value in changes.items()]
        marks += [mark(), mark(tree=1), mark(level=2)]
        marks.append(mark(corpus=Corpus(corpus.directory, {**corpus.manifest, "fingerprint": "other"})))
        # a tree is told by its seed, so tree 1 of seed 3 is tree 0 of seed 4
        assert marks[0] == marks[5] and len(set(marks)) == len(marks) - 1
        assert mark(run.model_copy(update={"name": "x", "runs": Path("/elsewhere")})) == mark()

    def test_an_interrupted_save_leaves_the_old_level(self, run, corpus, monkeypatch):
        directory = level_file(run, 1).parent
        tree = LabelTree.load(directory.parent / TREE)
        network = AttentionXML(Level.of(tree, 1), torch.zeros(corpus.word_vectors().shape), run.network)
        before = level_file(run, 1).read_bytes()

        def killed(*rest):
            raise KeyboardInterrupt

        monkeypatch.setattr("axml_ray.training.tree.write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            save_level(network, directory, "mark", {})
        assert level_file(run, 1).read_bytes() == before
        assert sorted(path.name for path in directory.parent.iterdir()) == ["level-1", "level-2", TREE]
