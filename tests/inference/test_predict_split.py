"""Prediction of a split that was interrupted. Run: pytest tests/inference/test_predict_split.py"""

from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import tiny_run
from tiny_corpus import experiment

from axml_ray.core.files import read_json
from axml_ray.inference.predict import predict_split as module
from axml_ray.runs.run import Run


class Killed(BaseException):
    """Ends the prediction as a kill does."""


def test_finished_blocks_survive_a_kill(tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ROWS": 3, "BLOCKS_HERE": 100}.items():
        monkeypatch.setattr(module, name, value)
    predicted: list[str] = []
    reads: list[str] = []
    predict, read = module.EnsemblePredictor.__call__, pq.read_table

    def predict_or_die(self: Any, row: dict[str, Any], last: int = 2) -> dict[str, Any]:
        if len(predicted) == last:
            raise Killed
        predicted.append(row["name"])
        return predict(self, row)

    def count_reads(path: str, **options: Any) -> Any:
        reads.append(path)
        return read(path, **options)

    monkeypatch.setattr(module.EnsemblePredictor, "__call__", predict_or_die)
    with pytest.raises(Killed):
        module.predict_split(tiny_run, "test", tmp_path / "predictions")
    assert not (tmp_path / "predictions").exists()
    (tmp_path / ".predictions-of-other-members").mkdir()

    monkeypatch.setattr(module.EnsemblePredictor, "__call__", lambda self, row: predict_or_die(self, row, 1_000))
    monkeypatch.setattr(pq, "read_table", count_reads)
    with monkeypatch.context() as patch, pytest.raises(Killed):  # after the last block
        patch.setattr(module, "whole_directory", lambda path: (_ for _ in ()).throw(Killed))
        module.predict_split(tiny_run, "test", tmp_path / "predictions")
    with monkeypatch.context() as patch:
        patch.setattr(module, "EnsemblePredictor", None)  # there is nothing to predict any more
        module.predict_split(tiny_run, "test", tmp_path / "predictions")
    blocks = -(-tiny_run.corpus.documents("test") // 3)
    assert predicted == [f"{number:06d}.parquet" for number in range(blocks)]  # each of them once
    assert len([path for path in map(str, reads) if "/test/" in path]) == len(tiny_run.corpus.files("test"))
    assert [path.name for path in tmp_path.iterdir()] == ["predictions"]

    module.predict_split(tiny_run, "test", tmp_path / "at_once")
    one, other = (read(tmp_path / name) for name in ("predictions", "at_once"))
    assert one.num_rows == tiny_run.corpus.documents("test") and one.equals(other)


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
        predictor = module.EnsemblePredictor(run.settings, tmp_path, None)
        assert predictor.ensemble.members["network_tree-0"].precision == decided
