"""Run: pytest tests/training/test_killed_trees.py

Trees whose training was killed within a level, and the beams that lie between two levels.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tiny_corpus import experiment, train_tree
from tree_runs import AT, ROWS_0, copied, key_of, label_tree, level_file, networks_of, opened, path_of, scored_at

import axml_ray.training.progress as progress
import axml_ray.training.tree as module
from axml_ray.corpus.store import Corpus
from axml_ray.settings import Experiment, fingerprint
from axml_ray.training.batches import LevelData
from axml_ray.training.checkpoints import MANIFEST as CHECKPOINT_MANIFEST
from axml_ray.training.checkpoints import Checkpoints
from axml_ray.training.document_beams import MANIFEST as SCORED_MANIFEST
from axml_ray.training.document_beams import (
    NODES,
    PARENTS,
    SCORES,
    VALID_NODES,
    VALID_SCORES,
    DocumentBeams,
    has_document_beams,
)
from axml_ray.training.level_files import LEVEL_MANIFEST, MODEL, is_saved
from axml_ray.training.tree import level_directory


class Killed(BaseException):
    pass


@pytest.fixture
def stop(monkeypatch):
    return partial(kill_after, monkeypatch)


def kill_after(patch: pytest.MonkeyPatch, level: int, scoring: int) -> None:
    """Let training stop after a level's checkpoint of some scoring, as a kill would."""
    keep, seen = Checkpoints.save, []

    def kept(checkpoints, training):
        keep(checkpoints, training)
        checkpoints.wait()
        seen.append(training.network.level.number)
        if seen.count(level) == scoring:
            patch.setattr(Checkpoints, "save", keep)
            raise Killed

    patch.setattr(Checkpoints, "save", kept)


@pytest.fixture
def scorings(monkeypatch) -> list[int]:
    """The levels whose documents were scored."""
    seen: list[int] = []
    score = module.save_document_beams

    def followed(network, *rest, **named):
        seen.append(network.level.number)
        score(network, *rest, **named)

    monkeypatch.setattr(module, "save_document_beams", followed)
    return seen


def fresh(settings: Experiment, tmp_path: Path, minutes: float = 0) -> Experiment:
    resources = settings.resources.model_copy(update={"checkpoint_minutes": minutes})
    return settings.model_copy(update={"runs": tmp_path / "fresh", "resources": resources})


def files(settings: Experiment) -> dict[str, bytes]:
    found = {}
    for level in (1, 2):
        for name in (MODEL, ROWS_0):
            found[f"{level}/{name}"] = level_file(settings, level, name).read_bytes()
    return found


class TestKilledInsideALevel:
    @pytest.mark.parametrize(("level", "scoring"), [(1, 1), (1, 5), (2, 2), (2, 5)])
    def test_ends_as_one_that_never_stopped(self, trained, corpus, tmp_path, stop, scorings, level, scoring):
        settings = fresh(trained, tmp_path)
        stop(level, scoring)
        with pytest.raises(Killed):
            train_tree(settings, corpus)
        about = json.loads((path_of(settings, level, "checkpoint") / CHECKPOINT_MANIFEST).read_text())
        assert about["position"]["step"] == AT[scoring - 1]
        assert is_finished(settings, corpus) == ([1] if level == 2 else [])
        assert path_of(settings, 1, "scored").exists() == (level == 2)
        assert scorings == ([1] if level == 2 else [])
        records = train_tree(settings, corpus, build=False)
        assert opened(records) == ([1] if level == 2 else [])
        assert scorings == [1]  # once, by whichever of the two
        assert [record["level"] for record in records if "scored" in record] == ([] if level == 2 else [1])
        assert files(settings) == files(trained)
        for number in (1, 2):
            about, expected = (
                json.loads(level_file(one, number, LEVEL_MANIFEST).read_text()) for one in (settings, trained)
            )
            for one in (about, expected):
                one.pop("seconds")
            assert about == expected
        directory = networks_of(settings)
        assert sorted(path.name for path in directory.iterdir()) == ["level-1", "level-2"]

    def test_before_its_first_checkpoint(self, trained, corpus, tmp_path, stop, scorings):
        settings = fresh(trained, tmp_path, minutes=60)
        stop(2, 3)
        with pytest.raises(Killed):
            train_tree(settings, corpus)
        assert not path_of(settings, 2, "checkpoint").exists()
        assert opened(train_tree(settings, corpus, build=False)) == [1]
        assert scorings == [1]
        assert files(settings) == files(trained)

    def test_with_other_settings_nothing_of_it_is_taken(self, trained, corpus, tmp_path, stop, scorings):
        settings = fresh(trained, tmp_path)
        stop(2, 3)
        with pytest.raises(Killed):
            train_tree(settings, corpus)
        other = settings.model_copy(update={"training": settings.training.model_copy(update={"patience_steps": 9_999})})
        records = train_tree(other, corpus, build=False)
        assert opened(records) == [] and scorings == [1, 1]
        assert scored_at(records) == AT * 2

    def test_a_torn_level_above_is_trained_and_scored_again(self, trained, corpus, tmp_path, stop, scorings):
        settings = fresh(trained, tmp_path)
        stop(2, 3)
        with pytest.raises(Killed):
            train_tree(settings, corpus)
        level_file(settings, 1, ROWS_0).write_bytes(b"")
        assert opened(train_tree(settings, corpus, build=False)) == []
        assert scorings == [1, 1]
        assert files(settings) == files(trained)


def is_finished(settings: Experiment, corpus: Corpus) -> list[int]:
    directory = networks_of(settings)
    return [n for n in (1, 2) if is_saved(level_directory(directory, n), key_of(settings, corpus, n))]


@pytest.fixture(scope="module")
def killed_once(trained, corpus, tmp_path_factory) -> Experiment:
    settings = fresh(trained, tmp_path_factory.mktemp("killed"))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 2, 1)
        train_tree(settings, corpus)
    return settings


@pytest.fixture
def killed(killed_once, tmp_path) -> Experiment:
    """A copy of a run that was killed after the first checkpoint of its second level."""
    return copied(killed_once, tmp_path / "runs")


class TestScored:
    def key(self, settings: Experiment, corpus: Corpus) -> str:
        return fingerprint(key_of(settings, corpus, 1), settings.tree.beam, len(corpus.split("valid")))

    @pytest.mark.parametrize("file", [NODES, SCORES, PARENTS, VALID_NODES, VALID_SCORES, SCORED_MANIFEST])
    def test_torn_it_is_made_again(self, trained, killed, corpus, scorings, file):
        settings = killed
        path = path_of(settings, 1, "scored") / file
        assert has_document_beams(path.parent, self.key(settings, corpus))
        path.write_bytes(path.read_bytes()[:-1])
        if file == SCORED_MANIFEST:
            path.unlink()
        assert not has_document_beams(path.parent, self.key(settings, corpus))
        train_tree(settings, corpus, build=False)
        assert scorings == [1]
        assert files(settings) == files(trained)

    def test_interrupted_it_is_made_again(self, trained, corpus, tmp_path, monkeypatch):
        settings = fresh(trained, tmp_path)

        def killed(*rest, **named):
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr("axml_ray.training.document_beams.expand_rows", killed)  # all but the validation documents
            with pytest.raises(Killed):
                train_tree(settings, corpus)
        assert not path_of(settings, 1, "scored").exists()
        train_tree(settings, corpus, build=False)
        assert files(settings) == files(trained)
        assert sorted(path.name for path in level_file(settings, 1).parent.parent.iterdir()) == ["level-1", "level-2"]

    def test_what_it_holds(self, killed, corpus):
        settings = killed
        found = DocumentBeams(path_of(settings, 1, "scored"))
        split = corpus.split("train")
        tree = label_tree(settings)
        values, offsets = tree.node_labels(1, split.labels.values, split.labels.offsets)
        assert found.train.nodes.shape == found.train.scores.shape == found.parents.shape == (300, 3)
        assert found.valid.nodes.shape == (24, 3)
        assert (found.train.scores.diff(dim=1) <= 0).all() and (found.train.scores <= 0).all()
        for row in range(300):
            true, parents = set(values[offsets[row] : offsets[row + 1]].tolist()), found.parents[row].tolist()
            assert len(set(parents)) == 3
            # true ones first, then the best of the others
            count = min(3, len(true))
            assert set(parents[:count]) <= true
            others = [node for node in found.train.nodes[row].tolist() if node not in true]
            assert parents[count:] == others[: 3 - count]

    def test_the_next_level_is_trained_on_the_chosen_parents(self, home, corpus, tmp_path, stop, monkeypatch):
        """The true ones are among them, whether or not the level above found them."""
        settings, given = fresh(experiment(home, learning_rate=1e-6), tmp_path), []

        def recorded(tokens, nodes, parents=None, beam=None):
            given.append(parents)
            return LevelData(tokens, nodes, parents, beam)

        stop(2, 1)
        with pytest.raises(Killed):
            train_tree(settings, corpus)
        found = DocumentBeams(path_of(settings, 1, "scored"))
        chosen, ranked = np.array(found.parents), found.train.nodes.numpy().copy()
        monkeypatch.setattr(module, "LevelData", recorded)
        train_tree(settings, corpus, build=False)
        assert any(parents is not None and np.array_equal(parents, chosen) for parents in given)
        assert not np.array_equal(chosen, ranked)

    def test_of_the_beam_alone(self, home, corpus, tmp_path, stop):
        """What the level above found is all that is scored: nothing true is put in, and no file of it is kept."""
        settings = fresh(experiment(home, include_true_parents=False), tmp_path)
        stop(2, 1)
        with pytest.raises(Killed):
            train_tree(settings, corpus)
        found = DocumentBeams(path_of(settings, 1, "scored"))
        assert np.array_equal(found.parents, found.train.nodes.numpy())
        assert not (path_of(settings, 1, "scored") / PARENTS).exists()
        train_tree(settings, corpus, build=False)
        about = json.loads(level_file(settings, 2, LEVEL_MANIFEST).read_text())
        assert about["valid_nDCG@5"] > 90


def test_levels_and_the_scoring_between_them_are_reported(corpus, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "REPORT_SECONDS", -1.0)
    records = train_tree(fresh(trained, tmp_path), corpus)
    assert [record["level"] for record in records if "begun" in record] == [1, 2]
    far = [record["scored_so_far"] for record in records if "scored_so_far" in record]
    assert far == sorted(far) and far[-1] == corpus.documents("train") and len(far) > 1
    assert all(record["level"] == 1 and record["levels"] == 2 for record in records if "scored_so_far" in record)
