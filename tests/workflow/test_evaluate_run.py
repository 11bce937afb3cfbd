"""Evaluation of a finished run from its stored predictions.

python -m pytest tests/workflow/test_evaluate_run.py
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from evaluation.toy_run import write_corpus, write_predictions, write_run

from axml_ray.core.errors import SettingsError
from axml_ray.core.files import write_json
from axml_ray.core.ragged import Ragged
from axml_ray.core.run_manifest import write_run_manifest
from axml_ray.ensemble.calibration import Calibration
from axml_ray.evaluation.metrics.predictions import Predictions
from axml_ray.runs.run import Run
from axml_ray.settings.configuration import load
from axml_ray.workflow.evaluate import evaluate
from axml_ray.workflow.train import PhaseTimes


@pytest.fixture
def run(tmp_path):
    write_corpus(tmp_path)
    return write_run(tmp_path)


def evaluate_split(run, split="test", **options):
    return evaluate(Run.open(run), split, **options)


def test_metrics_and_report_are_written(run):
    (run / "metrics.json").write_text(json.dumps({"split": "test", "seconds": {"knn": 2.5}}))
    metrics = evaluate_split(run)
    stored = json.loads((run / "metrics.json").read_text())
    for key in ("corpus", "split", "documents", "ensemble", "members", "seconds", "propensity"):
        assert key in stored
    assert stored["seconds"] == {"knn": 2.5} and stored["corpus"] == "toy"
    assert stored["ensemble"]["P@1"] == pytest.approx(metrics["ensemble"]["P@1"], abs=1e-4)
    html = (run / "report" / "index.html").read_text()
    assert "of &lt;b&gt;bold&lt;/b&gt; words" in html and "Loss of level 2" in html
    charts = (run / "report" / "charts.html").read_text()
    assert "Loss of level 2" in charts and "bold" not in charts and "test-" not in charts
    assert evaluate_split(run, seconds={"knn": 3.0})["seconds"] == {"knn": 3.0}
    (run / "metrics.json").write_text("{")
    assert "seconds" not in evaluate_split(run)


def test_probabilities_are_evaluated_if_their_calibration_is_of_these_members(run):
    current = Run.open(run)
    scores = np.linspace(0.01, 0.99, 50, dtype=np.float32)[None]
    truth = Ragged.from_rows([np.arange(30, 50)])
    calibration = Calibration.fit(np.arange(50)[None], scores, truth).as_json()
    write_json(current.layout.calibration, {"key": current.predictions_key, "calibration": calibration})
    metrics = evaluate_split(run)
    assert sum(metrics["probabilities"]["labels"]) == sum(metrics["calibration"]["labels"])
    assert metrics["probabilities"]["mean_score"] != metrics["calibration"]["mean_score"]
    assert 0 < metrics["probabilities"]["expected_error"] < 1
    write_json(current.layout.calibration, {"key": "another", "calibration": calibration})
    assert "probabilities" not in evaluate_split(run)


def test_other_splits_have_their_own_files(run, tmp_path):
    write_predictions(run, tmp_path / "corpora/toy", "valid", skill=0.9, seed=0)
    assert evaluate_split(run, "valid")["documents"] <= 20
    assert json.loads((run / "metrics-valid.json").read_text())["split"] == "valid"
    assert Run.open(run).layout.report("valid").is_file()
    assert not (run / "metrics.json").exists() and not (run / "report" / "index.html").exists()


def test_label_sets_are_those_above_the_threshold_of_validation_documents(run, tmp_path):
    write_predictions(run, tmp_path / "corpora/toy", "valid", skill=0.9, seed=0)
    sets = evaluate_split(run, with_label_sets=True)["label_sets"]
    assert 0 < sets["threshold"] < 1 and 0 < sets["micro-F1"] <= 100


def test_seconds_of_phases_add_up_over_the_starts_of_a_run(run):
    first = PhaseTimes(Run.open(run))
    first.add("cluster", 1.0)
    first.add("combiner", 2.0)
    again = PhaseTimes(Run.open(run))  # the first was killed: it has written no metrics
    again.add("cluster", 0.5)
    with pytest.raises(KeyboardInterrupt), again.measured("predict"):
        raise KeyboardInterrupt
    expected = {"prepare": 1.5, "combiner": 2.0, "cluster": 1.5, "predict": pytest.approx(0, abs=1)}
    assert again.seconds == expected
    assert PhaseTimes(Run.open(run)).seconds == again.seconds


def test_evaluates_a_moved_run(run, tmp_path):
    moved = tmp_path / "elsewhere" / "new-name"
    shutil.copytree(run, moved)
    evaluate_split(moved)
    assert (moved / "metrics.json").is_file() and not (run / "metrics.json").exists()
    assert load(moved / "settings.yaml").name == "new-name"
    assert "<h1>new-name</h1>" in (moved / "report" / "index.html").read_text()


def test_examples_of_a_corpus_without_texts(tmp_path):
    write_corpus(tmp_path, text=False)
    run = write_run(tmp_path)
    evaluate_split(run)
    html = (run / "report" / "index.html").read_text()
    assert html.count("<summary><b>test-") == 20 and "bold" not in html


def test_predictions_of_another_corpus_raise(run, tmp_path):
    shutil.rmtree(tmp_path / "corpora")
    write_corpus(tmp_path, seed=5)
    with pytest.raises(SettingsError, match=r"predictions/test: .*corpora/toy"):
        evaluate_split(run)
    assert not (run / "metrics.json").exists() and not (run / "report").exists()


def test_missing_files_are_named(run, tmp_path, monkeypatch):
    with pytest.raises(SettingsError, match=r"nowhere: .*settings\.yaml"):
        Run.open(tmp_path / "nowhere")
    (tmp_path / "settings.yaml").write_text("name: [")
    with pytest.raises(SettingsError, match=r"another version.*another --name"):  # it has no manifest
        Run.open(tmp_path)
    write_run_manifest(tmp_path)
    with pytest.raises(SettingsError, match=r"settings\.yaml: "):
        Run.open(tmp_path)
    # Without stored predictions the members are needed; that they are missing is reported before Ray starts.
    shutil.rmtree(run / "predictions")
    started = []
    monkeypatch.setattr("axml_ray.inference.predict.shards.connect", lambda: started.append(True))
    with pytest.raises(SettingsError, match=r"tree-0/network_tree: no network tree 1 .*run axml-ray train"):
        evaluate_split(run)
    assert not started


def test_predictions_by_other_members_are_not_reused(run, tmp_path):
    assert evaluate_split(run)["documents"]
    Predictions.complete(run / "predictions/test", "other")
    with pytest.raises(SettingsError, match="no network tree 1"):
        evaluate_split(run)


def test_a_split_without_documents_raises(run, tmp_path):
    path = tmp_path / "corpora/toy/corpus.json"
    manifest = json.loads(path.read_text())
    manifest["counts"]["documents"]["valid"] = 0
    path.write_text(json.dumps(manifest))
    with pytest.raises(SettingsError, match="no valid documents"):
        evaluate_split(run, "valid")


def test_docs_describe_all_keys_of_the_metrics(run):
    page = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text()
    metrics = evaluate_split(run)
    described = page[page.index("## In `metrics.json`") : page.index("In Python")]
    keys = set(re.findall(r"`(\w+)`", described))
    assert set(metrics) <= keys | {"seconds"}
    for rows in (metrics["bands"][0], metrics["frequency"][0], metrics["calibration"]):
        assert set(rows) <= keys, set(rows) - keys
    settings = Run.open(run).settings.evaluation
    assert all(hasattr(settings, name) for name in re.findall(r"`evaluation\.(\w+)`", page))
    variables = {
        "train_counts": np.array([5, 3, 1]),
        "train_documents": 9,
        "top": np.array([[0, 1]]),
        "labels": np.array([1]),
        "offsets": np.array([0, 1]),
    }
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(code, variables)
    assert variables["scores"].result()["P@3"] == pytest.approx(100 / 3)


def test_a_run_that_continued_one_that_is_gone_is_evaluated(run, tmp_path):
    settings = yaml.safe_load((run / "settings.yaml").read_text()) | {"continue_from": str(tmp_path / "gone")}
    (run / "settings.yaml").write_text(yaml.safe_dump(settings))
    write_run_manifest(run, continues=["one tree", "another"])
    opened = Run.open(run)
    Predictions.complete(opened.layout.predictions("test"), opened.predictions_key)
    assert evaluate_split(run)["documents"]
