"""Evaluation of stored predictions: metrics, bands, comparisons, example documents and errors.

python -m pytest tests/evaluation/test_prediction_metrics.py
"""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evaluation.toy_run import DOCUMENTS, LABELS, MEMBERS, WIDTH, write_corpus, write_predictions, write_run
from hypothesis import given, settings
from hypothesis import strategies as st

from axml_ray.core.errors import SettingsError
from axml_ray.core.files import write_json
from axml_ray.core.ragged import Ragged
from axml_ray.evaluation.metrics import resampling
from axml_ray.evaluation.metrics.bands import frequency_bands
from axml_ray.evaluation.metrics.comparison import compare_predictions
from axml_ray.evaluation.metrics.metrics import Scores, ndcg_at, propensities
from axml_ray.evaluation.metrics.prediction_metrics import TrainingCounts, evaluate_predictions, score_documents
from axml_ray.evaluation.metrics.predictions import MANIFEST, Predictions
from axml_ray.evaluation.reports.examples import (
    EXAMPLES_PER_GROUP,
    LabelExplanation,
    best_and_worst,
    build_examples,
    highlight,
)
from axml_ray.settings import EvaluationSettings

SETTINGS = EvaluationSettings()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("evaluation")
    write_corpus(home)
    write_run(home)
    write_run(home, "worse", skill=0.2, seed=2)
    return home


@pytest.fixture(scope="module")
def training(home):
    return TrainingCounts(pq.read_table(home / "corpora/toy/labels.parquet")["count"].to_numpy(), 300)


def open_predictions(home, run="run"):
    return Predictions.open(home / "runs" / run / "predictions" / "test")


@pytest.fixture(scope="module")
def metrics(home, training):
    return evaluate_predictions(open_predictions(home), training, SETTINGS)


def columns(home, name):
    table = pq.read_table(home / "runs/run/predictions/test")
    return np.array(table[f"{name}.labels"].to_pylist()), table["labels"].to_pylist(), table


def test_scores_agree_with_the_columns(home, training, metrics):
    for name, scores_by_metric in (("ensemble", metrics["ensemble"]), *metrics["members"].items()):
        tops, truths, _ = columns(home, name)
        scores = Scores(1 / propensities(training.counts, 300))
        flat = np.array([label for true in truths for label in true], np.int32)
        scores.add(tops, flat, np.cumsum([0, *map(len, truths)]))
        assert scores_by_metric == pytest.approx(scores.result())
    assert metrics["documents"] == scores.documents == sum(map(bool, truths)) < DOCUMENTS
    json.dumps(metrics, allow_nan=False)


def test_intervals_contain_the_scores_and_are_reproducible(home, training, metrics):
    for scores, around in (
        (metrics["ensemble"], metrics["intervals"]["ensemble"]),
        (metrics["members"][MEMBERS[1]], metrics["intervals"]["members"][MEMBERS[1]]),
        (metrics["bands"][1]["ensemble"], metrics["bands"][1]["intervals"]["ensemble"]),
    ):
        assert around.keys() == scores.keys()
        assert all(low <= high for low, high in around.values())
        assert sum(low <= scores[name] <= high for name, (low, high) in around.items()) >= len(scores) - 2
    assert evaluate_predictions(open_predictions(home), training, SETTINGS) == metrics


def test_bands_are_scored_by_their_own_labels(home, training, metrics):
    tops, truths, _ = columns(home, MEMBERS[0])
    assert [band["name"] for band in metrics["bands"]] == ["head", "torso", "tail", "unseen"]
    assert sum(band["labels"] for band in metrics["bands"]) == LABELS
    for band in metrics["bands"]:
        inside = {
            label
            for label, count in enumerate(training.counts)
            if count >= band["from"] and (band["to"] is None or count <= band["to"])
        }
        recalls = []
        for top, true in zip(tops.tolist(), truths, strict=True):
            own = [label for label in true if label in inside]
            best = [label for label in top if label in inside][:5]
            if own:
                recalls.append(len(set(own) & set(best)) / len(own))
        assert band["documents"] == len(recalls)
        assert band["members"][MEMBERS[0]]["R@5"] == pytest.approx(100 * np.mean(recalls))
    assert metrics["bands"][3]["ensemble"]["P@1"] == 0


def test_a_band_without_documents_has_no_scores(home, training):
    few = TrainingCounts(np.minimum(training.counts, 99), 300)
    metrics = evaluate_predictions(open_predictions(home), few, SETTINGS)
    assert metrics["bands"][0]["documents"] == 0 and "ensemble" not in metrics["bands"][0]


def test_reliability_and_frequency_count_all_predictions(home, metrics):
    _, truths, table = columns(home, "ensemble")
    score = np.array(table["ensemble.scores"].to_pylist())
    assert sum(metrics["calibration"]["labels"]) == score.size == DOCUMENTS * WIDTH
    assert metrics["calibration"]["labels"] == np.histogram(score, 20, (0, 1))[0].tolist()
    assert sum(row["true"] for row in metrics["frequency"]) == sum(map(len, truths))


def test_reliability_of_probabilities(home, training, metrics):
    _, _, table = columns(home, "ensemble")
    probability = np.array(table["ensemble.scores"].to_pylist(), np.float32).ravel() ** 2
    both = evaluate_predictions(open_predictions(home), training, SETTINGS, lambda scores: scores**2)
    found = both.pop("probabilities")
    assert both == metrics
    assert found["labels"] == np.histogram(probability, 20, (0, 1))[0].tolist()
    assert sum(found["true"]) == sum(metrics["calibration"]["true"])
    bins = zip(found["mean_score"], found["true"], found["labels"], strict=True)
    distances = [abs(mean * labels - true) for mean, true, labels in bins if mean is not None]
    assert found["expected_error"] == pytest.approx(sum(distances) / len(probability))
    assert found["expected_error"] != metrics["calibration"]["expected_error"]


def test_comparison_does_not_depend_on_the_order_of_documents(home, training, tmp_path):
    one, worse = open_predictions(home), open_predictions(home, "worse")
    comparison = compare_predictions(worse, one, training, SETTINGS)["measures"]
    expected = (
        evaluate_predictions(one, training, SETTINGS)["ensemble"]["P@3"]
        - evaluate_predictions(worse, training, SETTINGS)["ensemble"]["P@3"]
    )
    assert comparison["P@3"]["difference"] == pytest.approx(expected)
    assert expected > 10 and comparison["P@3"]["p"] == pytest.approx(1 / 1001) and comparison["P@3"]["interval"][0] > 0
    table = pq.read_table(worse.directory)
    pq.write_table(table.take(np.random.default_rng(0).permutation(len(table))), tmp_path / "0.parquet")
    shuffled = compare_predictions(Predictions.complete(tmp_path, "key"), one, training, SETTINGS)["measures"]
    for name in ("P@3", "PSP@5"):
        assert shuffled[name]["interval"] == pytest.approx(comparison[name]["interval"])
        assert [shuffled[name][what] for what in ("difference", "p")] == pytest.approx(
            [comparison[name][what] for what in ("difference", "p")]
        )


def test_comparing_different_documents_raises(home, training, tmp_path):
    write_corpus(tmp_path, seed=9)
    write_run(tmp_path)
    with pytest.raises(SettingsError, match="true labels differ"):
        compare_predictions(open_predictions(home), open_predictions(tmp_path), training, SETTINGS)
    write_predictions(tmp_path / "valid-run", tmp_path / "corpora/toy", "valid", skill=0.5, seed=0)
    other = Predictions.open(tmp_path / "valid-run/predictions/valid")
    with pytest.raises(SettingsError, match="documents differ"):
        compare_predictions(open_predictions(home), other, training, SETTINGS)


def test_broken_predictions_raise_with_the_path(home, training, tmp_path):
    assert Predictions.open(tmp_path) is None
    path = tmp_path / "000000.parquet"
    path.write_bytes(b"PAR1")
    assert Predictions.open(tmp_path) is None  # it is not complete
    write_json(tmp_path / MANIFEST, {"key": "key", "files": [path.name]})
    with pytest.raises(SettingsError, match=r"000000\.parquet"):
        Predictions.open(tmp_path)
    table = pq.read_table(home / "runs/run/predictions/test")
    pq.write_table(table.drop_columns("ensemble.scores"), path)
    with pytest.raises(SettingsError, match=r"ensemble\.scores"):
        Predictions.open(tmp_path)
    path.unlink()
    assert Predictions.open(tmp_path) is None
    with pytest.raises(SettingsError, match=r"predictions/test: .*30 labels"):
        evaluate_predictions(open_predictions(home), TrainingCounts(training.counts[:30], 300), SETTINGS)
    bare = table.set_column(1, "labels", pa.array([[]] * len(table), pa.list_(pa.int32())))
    pq.write_table(bare, path)
    with pytest.raises(SettingsError, match="no document has a true label"):
        evaluate_predictions(Predictions.open(tmp_path), training, SETTINGS)
    with pytest.raises(SettingsError, match="3 or more training documents"):
        evaluate_predictions(open_predictions(home), TrainingCounts(training.counts, 2), SETTINGS)


def test_best_and_worst_documents(home):
    tops, truths, _ = columns(home, "ensemble")
    flat = np.array([label for true in truths for label in true], np.int32)
    score = ndcg_at(tops, flat, np.cumsum([0, *map(len, truths)]), 5)
    best, worst = best_and_worst(open_predictions(home))
    assert len(best) == len(worst) == EXAMPLES_PER_GROUP and not set(best) & set(worst)
    assert all(truths[row] for row in best + worst)
    rest = [row for row in range(DOCUMENTS) if truths[row] and row not in best + worst]
    assert score[best].min() >= score[rest].max() and score[worst].max() <= score[rest].min()
    assert best_and_worst(open_predictions(home)) == (best, worst)


def test_example_contains_predicted_and_missed_labels(home, training):
    tops, truths, table = columns(home, "ensemble")
    names = [f"name {i}" for i in range(LABELS)]
    row = next(i for i, true in enumerate(truths) if any(label >= LABELS - 2 for label in true))
    words = [[("tail", 6, 10, 1.0), ("long", 0, 4, 4.0), ("over", 2, 8, 9.0)], [("tail", 6, 10, 2.0)], []]
    explanations = {row: [LabelExplanation(each, [("knn", 0.5)]) for each in words]}
    without_text, example = build_examples(
        open_predictions(home), [0, row], ["", "long, tail"], names, training.counts, explanations
    )
    assert example.id == f"test-{row}" and without_text.id == "test-0"
    assert [label.name for label in example.predicted] == [f"name {label}" for label in tops[row, :5]]
    assert [label.is_true for label in example.predicted] == [label in truths[row] for label in tops[row, :5]]
    assert example.predicted[0].score == pytest.approx(table["ensemble.scores"][row][0].as_py())
    missed = [(f"name {label}", training.counts[label]) for label in truths[row] if label not in tops[row, :5]]
    assert list(example.missed) == missed and missed
    assert [(span.text, span.weight) for span in example.predicted[0].spans] == [
        ("long", pytest.approx(4 / 9)),
        (", ", 0),
        ("tail", pytest.approx(1 / 9)),
        ("", 0),
    ]
    assert [span.weight for span in example.predicted[1].spans] == [0, 1, 0]
    assert [span.weight for span in example.predicted[2].spans] == [0]
    assert example.predicted[3].spans == example.predicted[4].spans == ()
    assert [label.contributions for label in example.predicted] == [(("knn", 0.5),)] * 3 + [()] * 2


def test_highlighted_spans_join_to_the_text():
    text = "one two three " * 200
    words = [(word, at, at + len(word), 1.0) for word, at in (("one", 0), ("two", 4), ("out", 9_999), ("cut", 1_199))]
    spans = highlight(text, words)
    assert "".join(span.text for span in spans) == text[:1200]
    assert [span.text for span in spans if span.weight] == ["one", "two"]
    assert all(not span.weight for span in highlight(text, [("one", 0, 3, 0.0)]))


BANDS = [*frequency_bands(np.repeat([200, 50, 5, 0], 10)), None]


def random_predictions(directory: Path, documents: int, rows: int, seed: int = 0) -> Predictions:
    """Predictions of 40 labels, ten of each band, in files of some rows."""
    random = np.random.default_rng(seed)
    tops = random.permuted(np.tile(np.arange(40, dtype=np.int32), (documents, 1)), axis=1)[:, :10]
    truth = [np.sort(random.choice(40, random.integers(0, 9), replace=False)) for _ in range(documents)]
    directory.mkdir()
    for first in range(0, documents, rows):
        some = slice(first, first + rows)
        top, scores = tops[some], np.linspace(1, 0, tops[some].size, dtype=np.float32)
        ids = [f"document {row}" for row in range(first, first + len(top))]
        columns = {"id": ids, "labels": Ragged.from_rows(truth[some]).to_arrow()}
        columns["ensemble.labels"] = pa.FixedSizeListArray.from_arrays(pa.array(top.ravel()), 10)
        columns["ensemble.scores"] = pa.FixedSizeListArray.from_arrays(pa.array(scores), 10)
        pq.write_table(pa.table(columns), directory / f"{first:06d}.parquet")
    return Predictions.complete(directory, "key")


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_the_division_into_files_changes_no_score(tmp_path_factory, documents, rows, seed):
    directory = tmp_path_factory.mktemp("divided")
    sizes = {"whole": documents, "parts": rows}
    whole, parts = (random_predictions(directory / name, documents, size, seed) for name, size in sizes.items())
    inverse = np.linspace(1, 3, 40)
    for band in BANDS:
        try:
            one = score_documents(whole, "ensemble", inverse, band)
        except SettingsError:
            continue  # no document has a label
        other = score_documents(parts, "ensemble", inverse, band)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(other.values, one.values, rtol=1e-12)
            np.testing.assert_allclose(other.attainable, one.attainable, rtol=1e-12)
    assert best_and_worst(parts) == best_and_worst(whole)
    assert parts.documents()[0] == whole.documents()[0]
    assert parts.ids_of([documents - 1, 0]) == {0: "document 0", documents - 1: f"document {documents - 1}"}


def test_an_evaluation_holds_the_scores_of_one_band(tmp_path, monkeypatch):
    """A document's scores are 256 bytes, and 512 while blocks are joined."""
    monkeypatch.setattr(resampling, "MAX_WEIGHTS", 1)
    documents = 4_000
    predictions = random_predictions(tmp_path / "predictions", documents, rows=100)
    training = TrainingCounts(np.repeat([200, 50, 5, 0], 10), 10_000)
    evaluate_predictions(predictions, training, SETTINGS)  # imports and caches
    tracemalloc.start()
    evaluate_predictions(predictions, training, SETTINGS)
    _, of_metrics = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    build_examples(predictions, [7], ["text"], [str(label) for label in range(40)], training.counts)
    _, of_report = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert of_metrics < 700 * documents
    assert of_report - before < 60 * documents
