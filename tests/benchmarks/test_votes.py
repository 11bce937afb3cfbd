"""The benchmark of ways to join votes. Run: pytest tests/benchmarks/test_votes.py"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests/network"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests/inference"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests/training"))

import votes as module
from tiny_run import Run, train_run

from axml_ray.evaluation.metrics import Scores


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_run(tmp_path_factory.mktemp("home"), trees=2, epochs=1, linear=0.25)


@pytest.fixture(scope="module")
def votes(run: Run) -> module.MemberVotes:
    return module.votes_of_members(run.settings, run.corpus)


def test_the_mean_is_what_the_run_predicts(run: Run, votes: module.MemberVotes) -> None:
    labels, scores = run.ensemble().predict(run.corpus.split("valid").tokens)[0]
    found = votes.ranking(votes.mean, labels.shape[1])
    width = found.top.shape[1]
    assert votes.scores.shape[2] == 4 and votes.linear == 2 and not (labels[:, width:] >= 0).any()
    np.testing.assert_allclose(2 * found.scores, scores[:, :width], rtol=1e-4)
    near = scores[:, :-1] - scores[:, 1:]
    apart = np.pad(near, ((0, 0), (1, 0)), constant_values=1)[:, :width] > 1e-6
    apart &= np.pad(near, ((0, 0), (0, 1)), constant_values=1)[:, :width] > 1e-6
    assert (found.top == labels[:, :width])[apart].all() and apart.sum() > 50


def test_each_way_is_scored_on_all_documents(run: Run, votes: module.MemberVotes) -> None:
    rows = {row["way"]: row for row in module.by_way(votes, module.inverse_of(run.settings, run.corpus))}
    assert list(rows) == list(module.WAYS) and {row["documents"] for row in rows.values()} == {len(votes.labels)}
    whole = Scores(module.inverse_of(run.settings, run.corpus))
    whole.add(votes.ranking(votes.mean, 100).top, votes.truth.values, votes.truth.offsets)
    assert rows["mean"]["scores"] == pytest.approx(whole.result())
    # Each of the labels has a word of its own: whoever listens to the classifiers finds them.
    assert min(row["scores"]["P@1"] for way, row in rows.items() if way != "networks") > 80


def test_the_results_are_written(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    module.main(["--run", str(run.settings.run_directory), "--json", str(tmp_path / "votes.json")])
    found = json.loads((tmp_path / "votes.json").read_text())
    assert found["figures"]["mean_P@1"] == pytest.approx(found["rows"][2]["scores"]["P@1"], abs=1e-3)
    assert "learned" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        module.main(["--run", str(tmp_path)])
    assert "not a run" in capsys.readouterr().err
