"""Run: pytest tests/inference/test_shards.py

A split through Ray Data: a killed driver costs the shards in flight, and what is finished stays as it is.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from descendants import descendants, job_environment, kill_driver
from tiny_corpus import write_corpus
from tiny_run import train_run

from axml_ray.core.errors import SettingsError
from axml_ray.core.files import read_json, write_json
from axml_ray.corpus.store import MANIFEST, Corpus
from axml_ray.evaluation.metrics.predictions import ENSEMBLE, Predictions
from axml_ray.inference.predict import predict_split as module
from axml_ray.inference.predict.predict_split import EnsemblePredictor, SplitFile, predict_split
from axml_ray.runs.run import Run

JOB = Path(__file__).parents[2] / "jobs" / "evaluate.py"
SHARDS, DOCUMENTS = 40, 500
KILLED_AT, ACTORS = 15, 2


def with_many_test_documents(directory: Path) -> Corpus:
    """The tiny corpus with a test split of one file for each shard."""
    corpus = write_corpus(directory)
    train = corpus.table("train", ["id", "tokens", "labels", "text"])
    (directory / "test" / "0.parquet").unlink()
    rows = np.random.default_rng(0).integers(0, len(train), (SHARDS, DOCUMENTS))
    manifest = read_json(directory / MANIFEST)
    del manifest["files"]["test/0.parquet"]
    for number, of_shard in enumerate(rows):
        ids = [f"test-{number}-{row}" for row in range(DOCUMENTS)]
        path = directory / "test" / f"{number:02d}.parquet"
        pq.write_table(train.take(of_shard).set_column(0, "id", pa.array(ids)), path)
        manifest["files"][f"test/{path.name}"] = path.stat().st_size
    manifest["counts"]["documents"]["test"] = SHARDS * DOCUMENTS
    write_json(directory / MANIFEST, manifest)
    return Corpus.open(directory)


def shards(run: Run) -> dict[str, tuple[int, int]]:
    """The finished shards, by what changes when they are written again."""
    stats = {path.name: path.stat() for path in run.layout.predictions("test").glob("part-*")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


@pytest.mark.fault("driver killed while it predicts a split", "prediction")
@pytest.mark.slow
def test_a_killed_driver_costs_the_shards_in_flight(
    ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    monkeypatch.setattr("tiny_run.write_corpus", with_many_test_documents)
    run = train_run(tmp_path, epochs=1)
    command = [sys.executable, str(JOB), "--run", str(run.layout.directory)]
    cpus = sorted(os.sched_getaffinity(0))[:ACTORS]
    driver = subprocess.Popen(command, env=job_environment(), start_new_session=True, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, cpus))  # fmt: skip
    while len(at_the_kill := shards(run)) < KILLED_AT:
        assert driver.poll() is None
        time.sleep(0.02)
    assert len(descendants(driver.pid, b"ShardWriter")) == len(cpus)
    kill_driver(driver)
    before = shards(run)
    assert at_the_kill.items() <= before.items() and len(before) < SHARDS
    assert Predictions.open(run.layout.predictions("test")) is None
    leftovers = list(run.layout.predictions("test").glob(".part-*"))
    assert len(leftovers) <= ACTORS  # a shard in flight is the only work that is repeated
    written = sorted(nanoseconds for _, nanoseconds in before.values())
    seconds_a_shard = ACTORS * (written[-1] - written[0]) * 1e-9 / (len(written) - 1)
    record_property("work_repeated", f"{len(leftovers)} of {SHARDS} shards")
    record_property("repeated_seconds", len(leftovers) * seconds_a_shard)

    predictions = predict_split(run, "test")
    after = shards(run)
    assert before.items() <= after.items() and len(after) == SHARDS

    monkeypatch.setattr(module, "predict_shards", None)  # nothing is left to do
    assert predict_split(run, "test") == predictions and shards(run) == after

    # An undisturbed run, shard by shard in this process.
    predict = EnsemblePredictor(run.settings, None)
    (tmp_path / "undisturbed").mkdir()
    for number, path in enumerate(run.corpus.files("test")):
        [documents] = SplitFile(path).shards()
        predict(documents, tmp_path / "undisturbed" / f"part-{number:05d}-000000.parquet")
    undisturbed = Predictions.complete(tmp_path / "undisturbed", predictions.made_by)
    assert undisturbed.documents()[0] == predictions.documents()[0]
    names = [ENSEMBLE, *run.member_names]
    for found, expected in zip(predictions.read_all(names), undisturbed.read_all(names), strict=True):
        for one, other in zip(found[0], expected[0], strict=True):
            assert np.array_equal(one.labels, other.labels)
            np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5)


@pytest.mark.fault("shard of a split lost", "prediction", work_repeated="the shard")
@pytest.mark.fault("truncated shard of a split", "prediction", work_repeated="the shard")
def test_a_lost_shard_and_another_ensemble_are_predicted_again(tmp_path: Path) -> None:
    """By this process, as the split is one shard."""
    run = train_run(tmp_path, epochs=1)
    predictions = predict_split(run, "test")
    [(name, stat)] = shards(run).items()
    assert predict_split(run, "test") == predictions and shards(run) == {name: stat}
    os.truncate(predictions.directory / name, 1_000)
    with pytest.raises(SettingsError, match=name):
        predict_split(run, "test")
    (predictions.directory / name).unlink()
    assert Predictions.open(predictions.directory) is None
    assert predict_split(run, "test") == predictions
    ensemble = run.settings.ensemble.model_copy(update={"top_labels": 3})
    fewer = Run(run.settings.model_copy(update={"ensemble": ensemble}), run.corpus)
    other = predict_split(fewer, "test")
    assert other.made_by == fewer.predictions_key != predictions.made_by
    [(ranking, _)] = other.read(ENSEMBLE)
    assert ranking.labels.shape[1] == 3
