"""The members of a run as Ray tasks and Ray Train groups, and the main job, on a real cluster in this process."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import synthetic
from descendants import descendants
from event_files import points

from axml_ray.core.errors import JobError, SettingsError
from axml_ray.core.lease import Lease, LeaseLostError
from axml_ray.corpus.preparation.prepare import prepare
from axml_ray.corpus.store import Corpus
from axml_ray.ensemble.combiner import Combiner, Mean, Validation
from axml_ray.evaluation.metrics.predictions import Predictions
from axml_ray.evaluation.metrics.rankings import hits
from axml_ray.inference.predict import predict_split
from axml_ray.inference.predict.first_scores import FirstScores
from axml_ray.members.label_names import LabelNames
from axml_ray.members.linear_tree import LinearTree
from axml_ray.orchestration.label_trees import build_trees
from axml_ray.orchestration.members import TrainingCancelledError, fit_members, train_member
from axml_ray.runs.fitting import fit_run
from axml_ray.runs.run import Run
from axml_ray.settings import Experiment
from axml_ray.settings.configuration import load
from axml_ray.workflow.evaluate import evaluate
from axml_ray.workflow.train import run, validation_of

LEARNED = {"epochs": [12], "learning_rate": 0.02}
BOTH: dict[str, dict[str, Any]] = {
    "network_tree": {"weight": 0.5},
    "linear_tree": {"weight": 0.5, "cluster_size": 4},
}


def small(home: Path, **groups: Any) -> Experiment:
    return load(None, **synthetic.experiment(home, **groups))


def prepared(settings: Experiment) -> Run:
    """The run, with its corpus and its label trees."""
    current = Run(settings, prepare(settings.corpus, settings.corpus_directory))
    build_trees(current)
    return current


def written(settings: Experiment, pattern: str) -> dict[str, tuple[int, int]]:
    """Files of the run, by what changes when they are written again."""
    directory = settings.run_directory
    stats = {path.relative_to(directory).as_posix(): path.stat() for path in directory.glob(pattern)}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def weights(settings: Experiment) -> dict[str, tuple[int, int]]:
    """The weights of every level of every network tree."""
    return written(settings, "tree-*/network_tree/level-*/model.safetensors")


def records(settings: Experiment, tree: int) -> list[dict[str, Any]]:
    lines = (settings.run_directory / f"tree-{tree}" / "training.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def stored(current: Run, split: str) -> Predictions:
    predictions = Predictions.open(current.layout.predictions(split))
    assert predictions is not None
    return predictions


def ranked(predictions: Predictions, who: str = "ensemble") -> tuple[np.ndarray, np.ndarray]:
    parts = list(predictions.read(who))
    return np.concatenate([one.labels for one, _ in parts]), np.concatenate([one.scores for one, _ in parts])


def log_likelihood(combiner: Combiner, validation: Validation) -> float:
    """Of the best labels being true, by their scores."""
    labels, scores = combiner.rank(validation.members, validation.rankings, 10)
    true, there = hits(labels, validation.truth.values, validation.truth.offsets), labels >= 0
    chance = scores.astype(np.float64).clip(1e-6, 1 - 1e-6)
    return float(np.log(np.where(true, chance, 1 - chance))[there].mean())


def test_main_job_never_trains_a_finished_level_twice(
    ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(tmp_path, training=LEARNED, ensemble={"trees": 1})
    metrics = run(settings)
    assert json.loads((settings.run_directory / "metrics.json").read_text())["ensemble"]["P@1"] == pytest.approx(
        metrics["ensemble"]["P@1"], abs=1e-3
    )
    assert metrics["documents"] == 60
    assert set(metrics["members"]) == {"network_tree-0"}
    assert set(metrics["seconds"]) == {"prepare", "cluster", "network_tree", "predict"}
    # 40 labels, each with a word of its own: chance is under 6 percent.
    assert metrics["ensemble"]["P@1"] > 30
    scores = points(settings.run_directory / "tensorboard")
    assert scores["test/ensemble/P@1"] == {0: pytest.approx(metrics["ensemble"]["P@1"])}
    for level in (1, 2):
        assert points(settings.run_directory / f"tree-0/tensorboard/level-{level}")["valid_nDCG@5"]
    before = weights(settings)
    assert len(before) == 2
    # A level is lost, and another tree is added: only these are trained.
    lost = "tree-0/network_tree/level-2"
    (settings.run_directory / lost / "level.json").unlink()
    names = {"network_tree": {"weight": 0.9}, "label_names": {"weight": 0.1}}
    more = small(tmp_path, training=LEARNED, members=names)
    first: list[FirstScores] = []

    def show_first(scores: FirstScores, seconds: float) -> None:
        assert seconds > 0 and not (settings.run_directory / "tree-1/network_tree/member.json").exists()
        first.append(scores)

    again = run(more, show_first)
    assert [list(scores.members) for scores in first] == [["label_names"]]
    assert again["without_networks"]["P@5"] == pytest.approx(first[0].together["P@5"])
    assert list(again["seconds"])[2:4] == ["label_names", "network_tree"]
    after = weights(settings)
    assert {path for path in before if before[path] != after[path]} == {f"{lost}/model.safetensors"}
    assert len(after) == 4
    assert again["members"]["network_tree-0"] == metrics["members"]["network_tree-0"]
    report = Run.open(more).layout.report().read_text()
    assert "Validation nDCG@5 of level 2" in report
    assert "<mark" in report  # its corpus keeps texts, its networks have attention
    # Without stored predictions, the run is evaluated by new ones, which are the same from a Ray Data actor.
    monkeypatch.setattr(predict_split, "ROWS", 20)
    shutil.rmtree(more.run_directory / "predictions")
    evaluated = evaluate(Run.open(more.run_directory))
    assert evaluated["ensemble"] == pytest.approx(again["ensemble"]) and evaluated["seconds"]["network_tree"] > 0
    with pytest.raises(SettingsError, match=r"network\.hidden.*choose another --name"):
        run(small(tmp_path, network={"hidden": 8}))
    # Other texts would be trained over what is there.
    after, [train] = weights(settings), more.corpus.train
    train.write_text("".join(train.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(SettingsError, match=r"runs/small: .*--name .*--corpus\.name"):
        run(more)
    assert weights(settings) == after
    assert Corpus.open(more.corpus_directory).documents("test") == evaluated["documents"]


@pytest.fixture(scope="module")
def finished(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a finished run of two trees, each with networks, which an epoch teaches little, and classifiers.

    Its members are fitted by this process.
    """
    home = tmp_path_factory.mktemp("finished")
    settings = named_labels(home, members=BOTH)
    fit_run(Run(settings, prepare(settings.corpus, settings.corpus_directory)))
    run(settings)
    return home


@pytest.fixture
def again(finished: Path, tmp_path: Path) -> Callable[..., Experiment]:
    """Makes settings of a copy of that run with other members or another combiner; its corpus is shared."""
    shutil.copytree(finished / "runs", tmp_path / "runs")

    def changed(**groups: Any) -> Experiment:
        settings = named_labels(finished, **{"members": BOTH, **groups})
        return settings.model_copy(update={"runs": tmp_path / "runs"})

    return changed


def named_labels(home: Path, **groups: Any) -> Experiment:
    """Settings of a corpus whose labels' names are their own words."""
    names = home / "names.tsv"
    if not names.exists():
        names.write_text("".join(f"label {label}\town{label}\n" for label in range(synthetic.LABELS)))
    content = synthetic.experiment(home, training={"epochs": [1]}, **groups)
    assert isinstance(content["corpus"], dict)
    return load(None, **content | {"corpus": {**content["corpus"], "label_names": str(names)}})


def test_predictions_are_the_combiners_of_the_members(again: Callable[..., Experiment]) -> None:
    current = Run.open(again().run_directory)
    predictions = stored(current, "test")
    assert list(predictions.members) == [f"{kind}-{tree}" for kind in BOTH for tree in range(2)]
    top, scores = ranked(predictions)
    total = np.zeros((len(top), current.corpus.trained))
    for name in predictions.members:
        labels, own = ranked(predictions, name)
        for row in range(len(top)):
            known = labels[row] >= 0
            total[row, labels[row][known]] += 0.25 * own[row][known].astype(np.float64)
    best = np.argsort(-total, axis=1, kind="stable")[:, : top.shape[1]]
    found = np.take_along_axis(total, best, 1)
    np.testing.assert_allclose(scores, found, rtol=1e-5)
    assert np.array_equal(top, np.where(found > 0, best, -1))


def test_a_combiner_is_fitted_on_the_validation_documents(again: Callable[..., Experiment]) -> None:
    plain = Run.open(again().run_directory)
    evaluate(plain, "valid")
    mean, networks = ranked(stored(plain, "valid"))[1], weights(plain.settings)
    settings = again(ensemble={"combiner": "calibrated"})
    before = json.loads(plain.layout.metrics().read_text())
    metrics = run(settings)
    assert metrics["ensemble"]["P@1"] > 80 and weights(settings) == networks
    for name, found in before["members"].items():
        assert metrics["members"][name] == pytest.approx(found, abs=1e-3)
    assert metrics["seconds"]["combiner"] > 0
    assert sum(metrics["probabilities"]["labels"]) == sum(metrics["calibration"]["labels"])
    assert metrics["probabilities"]["expected_error"] < 0.2
    current = Run(settings, plain.corpus)
    assert not (current.layout.directory / "uncombined").exists()
    # The combiner's scores are what it makes of the members' stored rankings.
    predictions, combiner = stored(current, "test"), current.open_combiner()
    given = validation_of(current, predictions)
    for found, expected in zip(ranked(predictions), combiner.rank(given.members, given.rankings, 10), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    # What had been predicted before is by other scores.
    evaluate(current, "valid")
    assert not np.isclose(ranked(stored(current, "valid"))[1], mean, rtol=1e-2).all()
    validation = validation_of(current, stored(current, "valid"))
    assert log_likelihood(combiner, validation) > log_likelihood(Mean(), validation)
    # Other weights ask for another fit.
    other = again(
        ensemble={"combiner": "calibrated"}, members={**BOTH, "linear_tree": {"weight": 0.4, "cluster_size": 4}}
    )
    with pytest.raises(SettingsError, match="not fitted for these members"):
        Run(other, plain.corpus).open_combiner()


def test_only_members_that_are_missing_are_fitted(again: Callable[..., Experiment]) -> None:
    """One is lost, and two are added."""
    settings = again()
    networks, classifiers = weights(settings), written(settings, "tree-*/linear_tree/member.json")
    assert classifiers.keys() == {f"tree-{tree}/linear_tree/member.json" for tree in range(2)}
    before = json.loads((settings.run_directory / "metrics.json").read_text())
    # Each label has a word of its own, which is all that a linear classifier needs.
    assert before["ensemble"]["P@1"] > 80
    (settings.run_directory / "tree-1/linear_tree/member.json").unlink()
    more = again(members={**BOTH, "knn": {"weight": 0.5, "neighbours": 5}, "label_names": {"weight": 0.5}})
    metrics = run(more)
    now = written(more, "tree-*/linear_tree/member.json")
    assert now["tree-0/linear_tree/member.json"] == classifiers["tree-0/linear_tree/member.json"]
    assert now.keys() == classifiers.keys() and weights(more) == networks
    for name, measures in before["members"].items():
        assert metrics["members"][name] == pytest.approx(measures, abs=1e-3)
    assert metrics["seconds"]["linear_tree"] > before["seconds"]["linear_tree"]
    assert set(metrics["members"]) == {*(f"{kind}-{tree}" for kind in BOTH for tree in range(2)), "knn", "label_names"}
    # Texts that share a label's word are alike, and each label is named by its word.
    assert metrics["ensemble"]["P@1"] > 80
    assert metrics["members"]["knn"]["P@1"] > 80
    current = Run.open(more)
    assert [spec.weight for spec in current.members] == pytest.approx([1 / 8] * 4 + [1 / 4] * 2)
    names = current.open_member(current.spec("label_names"), current.open_features())
    assert isinstance(names, LabelNames) and (names.named > 0).sum() == synthetic.LABELS
    # Fewer neighbours need no new index.
    index = written(more, "members/knn/*.safetensors")
    fewer = again(members={**BOTH, "knn": {"weight": 0.5, "neighbours": 3}})
    assert run(fewer)["ensemble"]["P@1"] > 80 and index and written(fewer, "members/knn/*.safetensors") == index
    # Nor does leaving the classifiers out.
    alone = again(members={})
    assert run(alone)["ensemble"]["P@1"] < metrics["ensemble"]["P@1"] and weights(alone) == networks


def test_other_features_fit_again_what_reads_them(again: Callable[..., Experiment]) -> None:
    settings = again()
    networks, classifiers = weights(settings), written(settings, "tree-*/linear_tree/member.json")
    named = again(features={"names_as_texts": True})
    assert run(named)["ensemble"]["P@1"] > 80 and weights(named) == networks
    now = written(named, "tree-*/linear_tree/member.json")
    assert now.keys() == classifiers.keys() and not set(now.items()) & set(classifiers.items())
    current = Run.open(named)
    texts = current.corpus.documents("train") + current.corpus.trained
    assert current.open_features().documents == texts
    assert isinstance(current.open_member(current.spec("linear_tree-0"), current.open_features()), LinearTree)


@pytest.mark.fault("one of two workers of a tree killed", "training", work_repeated="the steps since the checkpoint")
def test_two_gloo_workers_train_a_tree_and_one_that_is_killed_costs_no_finished_level(
    ray_cluster: None, tmp_path: Path
) -> None:
    resources = {"workers": 2, "cpus_per_worker": 0.5, "checkpoint_minutes": 0}
    training = {"epochs": [2, 20], "eval_every_steps": 5}
    current = prepared(small(tmp_path, resources=resources, ensemble={"trees": 1}, training=training))
    current.corpus.split("train")  # from here on, all processes map its file, and none counts the documents again
    for file in current.corpus.files("train"):
        file.write_bytes(bytes(file.stat().st_size))
    killed: list[int] = []
    followed: list[dict[str, Any]] = []

    def kill_a_worker(record: dict[str, Any]) -> None:
        followed.append(record)
        if not killed and record.get("level") == 2 and "scoring" in record:
            killed.append(descendants(os.getpid(), b"TrainWorker")[0])
            os.kill(killed[0], signal.SIGKILL)

    spent: list[tuple[str, float]] = []
    fit_members(current, kill_a_worker, spent=lambda *kind: spent.append(kind))
    assert [kind for kind, _ in spent] == ["network_tree"] and spent[0][1] > 0
    assert killed and current.members[0].is_fitted and len(weights(current.settings)) == 2
    journal = records(current.settings, 0)
    assert [record["level"] for record in journal if "opened" in record] == [1]
    steps = [record["step"] for record in journal if record.get("level") == 1 and "step" in record]
    assert steps[-1] == 2 * -(-current.corpus.documents("train") // current.settings.training.batch_size)
    assert followed and all(record in journal for record in followed)


def test_a_fit_that_is_stopped_ends_its_workers(ray_cluster: None, tmp_path: Path) -> None:
    current = prepared(small(tmp_path, ensemble={"trees": 1}, training={"epochs": [500], "patience_steps": 10**6}))
    begun: list[dict[str, Any]] = []
    with pytest.raises(TrainingCancelledError):
        fit_members(current, begun.append, lambda: bool(begun))
    assert not current.members[0].is_fitted


@pytest.mark.fault("tree killed beyond its retries", "training", work_repeated="that tree since its last checkpoint")
def test_of_three_trees_one_that_is_lost_does_not_end_the_others(ray_cluster: None, tmp_path: Path) -> None:
    current = prepared(small(tmp_path, ensemble={"trees": 3}, resources={"max_failures": 0}))
    killed: list[int] = []

    def kill_one(record: dict[str, Any]) -> None:
        if not killed:
            killed.append(descendants(os.getpid(), b"train_member")[0])
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(JobError, match=r"network tree \d failed: .*2 of 3"):
        fit_members(current, kill_one)
    members = "tree-*/network_tree/member.json"
    finished = written(current.settings, members)
    assert len(finished) == 2
    fit_members(current)
    assert finished.items() <= written(current.settings, members).items()
    assert all(spec.is_fitted for spec in current.members)


@pytest.mark.fault("loss diverges", "training")
def test_a_loss_that_runs_away_ends_the_run_at_its_first_attempt(ray_cluster: None, tmp_path: Path) -> None:
    training = {"learning_rate": 1e30, "precision": "float32"}
    current = prepared(small(tmp_path, training=training, ensemble={"trees": 1}))
    with pytest.raises(RuntimeError, match=r"network tree 1 failed: level 1: .*training\.learning_rate"):
        fit_members(current)
    assert weights(current.settings) == {}


def test_a_training_without_its_lease_is_not_tried_again(ray_cluster: None, tmp_path: Path) -> None:
    current = prepared(small(tmp_path, ensemble={"trees": 1}))
    task = ray.remote(num_cpus=1, max_retries=0)(train_member)
    lost = Lease(current.settings.run_directory, "removed")
    assert isinstance(ray.get(task.remote(current.settings, current.members[0].name, lost)), LeaseLostError)
    assert weights(current.settings) == {}


def test_workers_that_never_fit_are_an_error_at_once(ray_cluster: None, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"40 workers × 0.5 CPU.*resources\.workers"):
        fit_members(prepared(small(tmp_path, resources={"workers": 40})))
