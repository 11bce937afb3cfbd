"""Scores of the members without networks: early, from the members, and in the end, from stored predictions."""

import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from axml_ray.core.ragged import Ragged
from axml_ray.corpus.store import Corpus, rows_of_part
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.ensemble.combiner import Mean
from axml_ray.ensemble.frequency import Coefficients, FrequencyCalibration
from axml_ray.evaluation.metrics.metrics import Scores
from axml_ray.evaluation.metrics.predictions import Predictions
from axml_ray.evaluation.reports.report import scores_table
from axml_ray.inference.predict.first_scores import first_scores, scores_without_networks
from axml_ray.inference.predict.predict_split import predict_split
from axml_ray.runs.run import Run

OTHERS = ["linear_tree-0", "linear_tree-1", "knn", "label_names"]


@pytest.fixture
def without_networks(mixed_run: Run, tmp_path: Path) -> Run:
    """The run before its networks were trained."""
    shutil.copytree(mixed_run.settings.runs, tmp_path / "runs")
    run = Run(mixed_run.settings.model_copy(update={"runs": tmp_path / "runs"}), mixed_run.corpus)
    for spec in run.members:
        if spec.kind == "network_tree":
            shutil.rmtree(spec.directory)
    return run


def test_other_members_are_scored_before_networks_are_trained(without_networks: Run) -> None:
    run, documents = without_networks, without_networks.corpus.split("test")
    first = first_scores(run, "test")
    assert first is not None
    assert (first.documents, first.of) == (len(documents), len(documents))
    assert list(first.members) == OTHERS
    total = np.zeros((len(documents), run.corpus.trained))
    for name in OTHERS:
        spec = run.spec(name)
        ranking = run.open_member(spec, run.open_features()).rank(TextViews(documents.tokens), 20)
        is_true = [labels[0] in documents.labels[row] for row, labels in enumerate(ranking.labels)]
        assert first.members[name]["P@1"] == pytest.approx(100 * np.mean(is_true))
        for row, labels in enumerate(ranking.labels):
            total[row, labels[labels >= 0]] += spec.weight * ranking.scores[row][labels >= 0]
    best = total.argmax(axis=1)
    is_true = [label in documents.labels[row] for row, label in enumerate(best)]
    assert first.together["P@1"] == pytest.approx(100 * np.mean(is_true))


def test_a_part_of_many_documents_is_ranked(without_networks: Run) -> None:
    first = first_scores(without_networks, "test", most=5)
    assert first is not None and first.documents == 5 < first.of
    console = Console(file=io.StringIO(), width=100)
    console.print(first.table(47.4))
    assert isinstance(console.file, io.StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert f"tiny · first scores · 5 of {first.of} test documents" in console.file.getvalue()
    assert lines[-1][-3:] == ["after", "47", "s"]
    assert ["knn", *(f"{first.members['knn'][name]:.2f}" for name in ("P@1", "P@3", "P@5", "nDCG@5"))] in lines
    assert lines[-2] == ["together", *(f"{score:.2f}" for score in first.together.values())]


@pytest.mark.parametrize("most", [5, 1_000])
def test_first_scores_are_those_of_the_evaluation(mixed_run: Run, tmp_path: Path, most: int) -> None:
    """Without pairs of `evaluation.filter_pairs`, and without labels of a text that has no word."""
    run, documents = mixed_run, mixed_run.corpus.split("test")
    predictions = predict_split(run, "test", tmp_path / "predictions")
    [[ranking]], _ = zip(*predictions.read_all(["knn"]), strict=True)
    left_out = Ragged.from_rows([np.unique([labels[1], truth[0]]) for labels, truth in zip(
        ranking.labels, (documents.labels[row] for row in range(len(documents))), strict=True)])  # fmt: skip
    stored = replace(predictions, left_out=left_out)
    first = first_scores(run, "test", most, left_out)
    rows, scores = rows_of_part(len(documents), most), Scores(np.ones(len(run.corpus.labels)))
    for [ranking], truth in stored.read_all(["knn"]):
        truth = truth.take(rows)
        scores.add(ranking.labels[rows], truth.values, truth.offsets)
    assert first is not None
    assert first.members["knn"] == {name: pytest.approx(scores.result()[name]) for name in first.together}
    assert first.members["knn"] != first_scores(run, "test", most).members["knn"]
    has_words = np.arange(len(documents)) % 2 == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Corpus, "has_words", lambda corpus, split: has_words)
        half = first_scores(run, "test")
    assert half is not None
    everything = first_scores(run, "test")
    assert half.members["knn"]["P@1"] < 0.7 * everything.members["knn"]["P@1"]


def test_the_gain_by_networks_is_measured_on_stored_predictions(mixed_run: Run, tmp_path: Path) -> None:
    predictions = predict_split(mixed_run, "test", tmp_path / "predictions")
    scores = scores_without_networks(mixed_run, predictions, np.ones(len(mixed_run.corpus.labels)))
    first = first_scores(mixed_run, "test")
    assert scores is not None and first is not None
    assert {name: scores[name] for name in first.together} == pytest.approx(first.together)
    ensemble = {name: score + 1.5 for name, score in scores.items()}
    console = Console(file=io.StringIO(), width=110)
    console.print(scores_table({"ensemble": ensemble, "without_networks": scores}))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[-1].split() == ["gain", "from", "networks", *["+1.50"] * 9]


def test_the_gain_by_networks_is_that_over_the_same_combiner(mixed_run: Run, tmp_path: Path) -> None:
    shutil.copytree(mixed_run.settings.runs, tmp_path / "runs")
    ensemble = mixed_run.settings.ensemble.model_copy(update={"combiner": "calibrated"})
    update = {"runs": tmp_path / "runs", "ensemble": ensemble}
    run = Run(mixed_run.settings.model_copy(update=update), mixed_run.corpus)
    run.keep_combiner(FrequencyCalibration(Coefficients(score=-1.0), run.corpus.labels.counts))
    predictions = predict_split(run, "test", tmp_path / "predictions")
    inverse = np.ones(len(run.corpus.labels))
    scores = scores_without_networks(run, predictions, inverse)
    expected = []
    for combiner in (run.open_combiner(), Mean()):
        of_combiner, combination = Scores(inverse), run.combination(combiner)
        for rankings, truth in predictions.read_all(OTHERS):
            ranking = combination.rank(dict(zip(OTHERS, rankings, strict=True)))
            of_combiner.add(ranking.labels, truth.values, truth.offsets)
        expected.append(of_combiner.result())
    assert scores == expected[0] != expected[1]


def test_a_run_of_networks_alone_has_no_first_scores(tiny_run: Run) -> None:
    assert first_scores(tiny_run, "test") is None
    nothing = Predictions(tiny_run.layout.directory, tuple(tiny_run.member_names), "key")
    assert scores_without_networks(tiny_run, nothing, np.ones(1)) is None
