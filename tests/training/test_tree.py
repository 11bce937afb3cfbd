"""Run: pytest tests/training/test_tree.py"""

import json
import os
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_corpus import experiment, train_tree, write_corpus

import axml_ray.training.document_beams as scored
import axml_ray.training.tree as module
from axml_ray.core.files import read_json, write_json
from axml_ray.core.run_layout import RunLayout
from axml_ray.corpus.store import Corpus
from axml_ray.network.fast.attention_xml import FusedAttentionXML
from axml_ray.network.level_network import TABLE
from axml_ray.network.tree_level import Level
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment, fingerprint
from axml_ray.training.checkpoints import MANIFEST as CHECKPOINT_MANIFEST
from axml_ray.training.checkpoints import Checkpoints
from axml_ray.training.distributed import DistributedContext
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
from axml_ray.training.level_files import LEVEL_MANIFEST, MODEL, ROWS, is_saved, load_level, save_level
from axml_ray.training.tree import level_directory, level_key, levels_are_finished
from axml_ray.tree.label_tree import LabelTree

ROWS_0 = ROWS.format(0)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("home")
    write_corpus(home / "corpora" / "tiny")
    return home


@pytest.fixture(scope="module")
def corpus(home) -> Corpus:
    return Corpus.open(home / "corpora" / "tiny")


BRIEF = {"epochs": (2,), "average_after": (1,), "eval_every_steps": 5}
"""Training that teaches little: what is resumed must only end with the same bytes."""
AT = [5, 10, 15, 20, 25, 30]
"""The steps after which one of its levels is scored."""


@pytest.fixture(scope="module")
def trained(home, corpus) -> Experiment:
    settings = experiment(home, **BRIEF)
    train_tree(settings, corpus)
    return settings


@pytest.fixture
def run(trained, tmp_path) -> Experiment:
    """A copy of the trained run, to be damaged."""
    return copied(trained, tmp_path / "runs")


def copied(settings: Experiment, runs: Path) -> Experiment:
    """Copy a run; the copies of its files are old."""
    copy = settings.model_copy(update={"runs": runs})
    source = settings.run_directory
    for file in sorted(source.rglob("*")):
        if file.is_file():
            target = copy.run_directory / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
            long_ago = time.time_ns() - 10**12
            os.utime(target, ns=(long_ago, long_ago))
    return copy


def networks_of(settings: Experiment) -> Path:
    """Where the networks of tree 0 lie."""
    return RunLayout(settings.run_directory).member("network_tree", 0)


def label_tree(settings: Experiment) -> LabelTree:
    return LabelTree.load(RunLayout(settings.run_directory).tree_file(0))


def key_of(settings: Experiment, corpus: Corpus, level: int, tree: int = 0) -> str:
    return level_key(Run(settings, corpus).spec(f"network_tree-{tree}").key, level)


def level_file(settings: Experiment, level: int, name: str = MODEL) -> Path:
    return level_directory(networks_of(settings), level) / name


def times(settings: Experiment) -> dict[int, int]:
    return {level: level_file(settings, level).stat().st_mtime_ns for level in (1, 2)}


def opened(records: list[dict]) -> list[int]:
    return [record["level"] for record in records if "opened" in record]


def scored_at(records: list[dict]) -> list[int]:
    return [record["scoring"]["step"] for record in records if "scoring" in record]


class TestTraining:
    def test_each_level_learns(self, home, corpus):
        settings = experiment(home).model_copy(update={"name": "learned"})
        records = train_tree(settings, corpus)
        directory, tree = networks_of(settings), label_tree(settings)
        assert tree.level_sizes == (4, 14)
        assert levels_are_finished(directory, tree, Run(settings, corpus).spec("network_tree-0").key)
        for level in (1, 2):
            assert is_saved(level_directory(directory, level), key_of(settings, corpus, level))
            about = json.loads(level_file(settings, level, LEVEL_MANIFEST).read_text())
            assert about["nodes"] == tree.level_sizes[level - 1] and about["level"] == level
            assert about["steps"] == 6 * 15 and about["snapshots"] == 2
            assert about["valid_nDCG@5"] > 90
        assert opened(records) == []
        assert [record["scored"] for record in records if "scored" in record] == [300]
        assert {record["levels"] for record in records} == {2}

    def test_deep_level_starts_from_the_level_above(self, home, corpus):
        """Trained at next to no rate, a level is what it began as."""
        settings = experiment(home, learning_rate=1e-12, epochs=(1,)).model_copy(update={"name": "frozen"})
        train_tree(settings, corpus)
        tree = label_tree(settings)
        levels = []
        for number in (1, 2):
            vectors = torch.zeros(corpus.word_vectors().shape)
            network = FusedAttentionXML(Level.from_tree(tree, number), vectors, settings.network)
            load_level(network, level_directory(networks_of(settings), number))
            levels.append(network.state_dict())
        assert np.allclose(levels[0]["encoder.embedding.weight"], corpus.word_vectors(), atol=1e-6)
        for name in levels[0].keys() - {TABLE}:
            torch.testing.assert_close(levels[0][name], levels[1][name], rtol=0, atol=1e-6)
        assert levels[1][TABLE].shape == (4, 4 * 20)

    def test_without_a_tree(self, home, corpus):
        settings = experiment(home, tree={"height": 0}, epochs=(12,)).model_copy(update={"name": "flat"})
        train_tree(settings, corpus)
        about = json.loads(level_file(settings, 1, LEVEL_MANIFEST).read_text())
        assert about["nodes"] == 14 and about["valid_nDCG@5"] > 90
        assert not level_file(settings, 2).exists()

    @pytest.mark.parametrize("precision", ["float32", "bfloat16"])
    def test_a_level_says_in_what_it_was_computed(self, precision, home, corpus):
        settings = experiment(home, tree={"height": 0}, epochs=(1,), precision=precision)
        settings = settings.model_copy(update={"name": precision})
        train_tree(settings, corpus)
        assert json.loads(level_file(settings, 1, LEVEL_MANIFEST).read_text())["computed_in"] == precision

    @pytest.mark.parametrize("decided", ["float32", "bfloat16"])
    def test_what_auto_decided_once_is_kept(self, decided, home, corpus):
        """By the level that is trained next, and by processes that predict, whatever is faster where they run."""
        settings = experiment(home, epochs=(1,), precision="auto").model_copy(update={"name": f"auto-{decided}"})
        run = Run(settings, corpus)
        run.layout.directory.mkdir(parents=True)
        # Another tree of the run was the first to start, perhaps on another machine.
        write_json(run.layout.number_format("cpu"), decided)
        train_tree(settings, corpus)
        for level in (1, 2):
            assert json.loads(level_file(settings, level, LEVEL_MANIFEST).read_text())["computed_in"] == decided
        run.spec("network_tree-0").mark_fitted()
        assert run.open_member(run.spec("network_tree-0"), None).precision == decided

    def test_the_first_tree_decides_what_auto_is(self, home, corpus):
        settings = experiment(home, tree={"height": 0}, epochs=(1,), precision="auto")
        settings = settings.model_copy(update={"name": "auto-first"})
        train_tree(settings, corpus)
        computed_in = json.loads(level_file(settings, 1, LEVEL_MANIFEST).read_text())["computed_in"]
        assert read_json(Run(settings, corpus).layout.number_format("cpu")) == computed_in

    def test_two_levels_of_clusters(self, home, corpus):
        settings = experiment(home, tree={"height": 2, "cluster_size": 2, "beam": 3})
        settings = settings.model_copy(update={"name": "high"})
        train_tree(settings, corpus)
        abouts = [json.loads(level_file(settings, level, LEVEL_MANIFEST).read_text()) for level in (1, 2, 3)]
        assert [about["nodes"] for about in abouts] == [4, 8, 14]
        assert abouts[2]["valid_nDCG@5"] > 85


class TestResuming:
    def test_finished_levels_are_opened(self, run, corpus):
        before = times(run)
        assert opened(train_tree(run, corpus, build=False)) == [1, 2]
        assert times(run) == before

    def test_after_a_kill_before_the_mark_nothing_is_scored_or_left(self, run, corpus):
        """The beams of a finished tree are gone, and its member was not yet marked as fitted."""
        spec = Run(run, corpus).spec("network_tree-0")
        (spec.directory / "member.json").unlink(missing_ok=True)
        for name in ("level-1.scored", "level-2.checkpoint", ".level-2.checkpoint.0123abcd", ".level-1.89abcdef.old"):
            (spec.directory / name).mkdir()
            (spec.directory / name / "file").write_text("large")
        records = train_tree(run, corpus, build=False)
        assert not [record for record in records if record.keys() & {"scored", "scored_so_far", "begun"}]
        assert opened(records) == [1, 2]
        assert sorted(path.name for path in spec.directory.iterdir()) == ["level-1", "level-2"]

    def test_a_level_whose_replacement_a_kill_interrupted_is_found(self, run, corpus):
        directory = level_file(run, 1).parent
        directory.rename(directory.with_name(".level-1.0123abcd"))
        directory.with_name(".level-1.0123abcd.old").mkdir()
        assert opened(train_tree(run, corpus, build=False)) == [1, 2]

    @pytest.mark.fault("truncated weights of a level", "files", work_repeated="the level")
    @pytest.mark.parametrize("name", [MODEL, ROWS_0])
    @pytest.mark.parametrize("level", [1, 2])
    def test_a_torn_file_is_trained_again(self, run, corpus, level, name):
        file = level_file(run, level, name)
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
        file = level_file(run, 2, LEVEL_MANIFEST)
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
        assert not is_saved(file.parent, key_of(run, corpus, 2))
        assert not levels_are_finished(file.parent.parent, label_tree(run), Run(run, corpus).members[0].key)

    def test_another_cache_key(self, run, corpus):
        file = level_file(run, 1, LEVEL_MANIFEST)
        file.write_text(file.read_text().replace(key_of(run, corpus, 1), "0123456789ab"))
        assert opened(train_tree(run, corpus, build=False)) == [2]

    def test_other_settings(self, run, corpus):
        other = run.model_copy(update={"training": run.training.model_copy(update={"epochs": (1,)})})
        before = times(run)
        assert opened(train_tree(other, corpus, build=False)) == []
        assert all(times(run)[level] > before[level] for level in (1, 2))

    def test_what_the_cache_key_depends_on(self, run, corpus):
        def key(settings: Experiment = run, tree: int = 0, level: int = 1, corpus: Corpus = corpus) -> str:
            settings = settings.model_copy(update={"ensemble": settings.ensemble.model_copy(update={"trees": 2})})
            return key_of(settings, corpus, level, tree)

        changes = {
            "seed": 4,
            "tree": run.tree.model_copy(update={"beam": 4}),
            "network": run.network.model_copy(update={"hidden": 11}),
            "training": run.training.model_copy(update={"patience_steps": 9_999}),
        }
        keys = [key(run.model_copy(update={name: value})) for name, value in changes.items()]
        keys += [key(), key(tree=1), key(level=2)]
        keys.append(key(corpus=Corpus(corpus.directory, {**corpus.manifest, "fingerprint": "other"})))
        assert len(set(keys)) == len(keys)
        rare = run.resources.model_copy(update={"checkpoint_minutes": 99})
        assert key(run.model_copy(update={"resources": rare})) == key()
        assert key(run.model_copy(update={"name": "x", "runs": Path("/elsewhere")})) == key()

    @pytest.mark.parametrize("name", ["save_rows", "save_tensors", "write_json"])
    def test_an_interrupted_save_leaves_the_old_level(self, run, corpus, monkeypatch, name):
        directory = level_file(run, 1).parent
        tree = label_tree(run)
        network = FusedAttentionXML(Level.from_tree(tree, 1), torch.zeros(corpus.word_vectors().shape), run.network)
        before = {path: path.read_bytes() for path in directory.iterdir()}
        assert {path.name for path in before} == {LEVEL_MANIFEST, MODEL, ROWS_0}

        def killed(*rest):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(f"axml_ray.training.level_files.{name}", killed)
            with pytest.raises(KeyboardInterrupt):
                save_level(network, directory, "key", {}, DistributedContext())
        assert {path: path.read_bytes() for path in directory.iterdir()} == before
        # what is left of it is in nobody's way
        save_level(network, directory, "key", {}, DistributedContext())
        assert is_saved(directory, "key")
        assert sorted(path.name for path in directory.parent.iterdir()) == ["level-1", "level-2"]

    def test_a_level_that_is_wanted_again_starts_from_nothing(self, run, corpus):
        """Its checkpoint is gone with its end."""
        level_file(run, 2, LEVEL_MANIFEST).unlink()
        records = train_tree(run, corpus, build=False)
        assert scored_at(records) == AT

    def test_a_checkpoint_beside_a_finished_level_is_removed(self, run, corpus):
        """Of a worker that was killed between the two."""
        left = path_of(run, 1, "checkpoint")
        left.mkdir()
        (left / "file").write_text("large")
        train_tree(run, corpus, build=False)
        assert not left.exists()


def path_of(settings: Experiment, level: int, what: str) -> Path:
    return networks_of(settings) / f"level-{level}.{what}"


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
        return fingerprint(key_of(settings, corpus, 1), settings.tree.beam)

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
    monkeypatch.setattr(scored, "REPORT_SECONDS", -1.0)
    records = train_tree(fresh(trained, tmp_path), corpus)
    assert [record["level"] for record in records if "begun" in record] == [1, 2]
    far = [record["scored_so_far"] for record in records if "scored_so_far" in record]
    assert far == sorted(far) and far[-1] == corpus.documents("train") and len(far) > 1
    assert all(record["level"] == 1 and record["levels"] == 2 for record in records if "scored_so_far" in record)
