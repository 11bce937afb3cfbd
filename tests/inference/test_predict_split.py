"""Prediction of a split. Run: pytest tests/inference/test_predict_split.py"""

import shutil
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_run
from tiny_corpus import experiment

from axml_ray.core.files import read_json, write_json
from axml_ray.corpus.store import MANIFEST
from axml_ray.corpus.text.tokenizer import UNKNOWN
from axml_ray.evaluation.metrics.metrics import Scores
from axml_ray.evaluation.metrics.predictions import ENSEMBLE
from axml_ray.inference.bundle.export import export_bundle
from axml_ray.inference.predict import predict_split as module
from axml_ray.inference.tagger import Tagger
from axml_ray.runs.fitting import fit_run


def test_predictors_of_a_split_share_a_number_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of networks that were trained on GPUs, whose format says nothing about CPUs."""
    monkeypatch.setattr(tiny_run, "experiment", partial(experiment, precision="auto"))
    run = tiny_run.train_run(tmp_path, trees=1, epochs=1)
    run.layout.number_format("cpu").unlink()  # as if they were
    # As each process measures for itself, the answers differ.
    answers = cycle([True, False])
    monkeypatch.setattr("axml_ray.network.backends.cpu_backend.measured_bfloat16_is_faster", lambda: next(answers))
    module.predict_split(run, "test")
    decided = read_json(run.layout.number_format("cpu"))
    for _ in range(2):
        predictor = module.EnsemblePredictor(run.settings, None)
        assert predictor.ensemble.members["network_tree-0"].precision == decided


def test_texts_without_a_word_have_no_labels_as_in_use(tmp_path: Path) -> None:
    members = {"network_tree": {"weight": 0.5}, "linear_tree": {"weight": 0.5}}
    run = tiny_run.train_run(tmp_path, trees=1, epochs=1, members=members, combiner="calibrated")
    files = run.corpus.manifest["files"]
    for split in ("valid", "test"):
        [path] = run.corpus.files(split)
        table = pq.read_table(path)
        tokens, texts = table["tokens"].to_pylist(), table["text"].to_pylist()
        tokens[:3], texts[:3] = [[UNKNOWN]] * 3, ["", "/SEP/ …", "unheard"]
        columns = {"tokens": pa.array(tokens, table["tokens"].type), "text": pa.array(texts, table["text"].type)}
        pq.write_table(pa.table({name: columns.get(name, table[name]) for name in table.column_names}), path)
        files[f"{split}/{path.name}"] = path.stat().st_size
    write_json(run.corpus.directory / MANIFEST, run.corpus.manifest)
    shutil.rmtree(run.corpus.directory / ".splits")
    assert run.corpus.has_words("test").tolist() == [False, False, True] + [True] * (run.corpus.documents("test") - 3)
    [(ranking, _)] = module.predict_split(run, "test").read(ENSEMBLE)
    exported = export_bundle(run, tmp_path / "bundle", "float32")
    tagger, names = Tagger.load(tmp_path / "bundle"), list(run.corpus.labels.labels)
    for tags, labels, scores in zip(tagger.tag(tiny_run.texts_of(run, "test"), top_k=20), *ranking, strict=True):
        assert [tag.label for tag in tags] == [names[label] for label in labels if label >= 0]
        np.testing.assert_allclose([tag.score for tag in tags], scores[labels >= 0], rtol=1e-5)
    # Two validation documents have no labels, either.
    [(ranking, truth)] = module.predict_split(run, "valid", tmp_path / "valid").read(ENSEMBLE)
    assert (ranking.labels[:, 0] < 0).sum() == 2
    measured = Scores(np.ones(len(names)))
    measured.add(ranking.labels, truth.values, truth.offsets)
    assert exported.scores["float32"]["P@1"] == pytest.approx(measured.result()["P@1"])


def test_a_member_that_is_fitted_again_makes_what_followed_old(tmp_path: Path) -> None:
    """Its key is the same, but on another machine its weights may not be."""
    run = tiny_run.train_run(
        tmp_path, trees=1, epochs=1, members={"linear_tree": {"weight": 1.0}}, combiner="calibrated"
    )
    first = module.predict_split(run, "test").made_by
    assert run.has_combiner() and run.open_calibration() is not None and first == run.predictions_key
    spec = run.spec("linear_tree-0")
    [file] = spec.directory.glob("*.safetensors")
    content = file.read_bytes()
    shutil.rmtree(spec.directory)
    assert run.predictions_key != first
    fit_run(run)
    assert run.predictions_key == first  # the same weights
    file.write_bytes(content[:-4] + bytes(4))
    spec.mark_fitted()
    assert not run.has_combiner() and run.open_calibration() is None
    fit_run(run)
    assert module.predict_split(run, "test").made_by == run.predictions_key != first
