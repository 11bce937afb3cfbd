"""The record of a trial, as it is written and read."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from axml_ray.core.errors import SettingsError
from axml_ray.tuning.records import TRIAL, Scoring, Trial, read_trials, trial_directory


def scoring(level: int, step: int, score: float, tree: int = 0) -> Scoring:
    return Scoring(
        tree=tree, level=level, levels=2, group=f"level {level}", step=step, documents=10 * step, score=score
    )


@pytest.fixture
def trial() -> Trial:
    trial = Trial(number=0, parameters={"tree.height": 1, "training.learning_rate": 0.1, "network.evidence": True})
    for one in (scoring(1, 30, 80.0), scoring(1, 60, 85.0), scoring(2, 30, 20.0), scoring(2, 50, 30.0)):
        trial = trial.with_scoring(one)
    return trial


def test_steps_and_documents_are_of_all_levels_and_the_score_is_of_labels(trial: Trial) -> None:
    assert trial.score == 30.0
    assert (trial.steps, trial.documents) == (60 + 50, 600 + 500)
    assert trial.with_scoring(scoring(1, 7, 99.0, tree=1)).steps == 60 + 50 + 7
    assert Trial(number=0, parameters={}).with_scoring(scoring(1, 30, 80.0)).score is None


def test_what_is_written_is_read(trial: Trial, tmp_path: Path) -> None:
    failed = Trial(number=1, parameters={}, state="failed", reason="no memory")
    for one in (failed, trial):
        one.write(tmp_path)
    assert read_trials(tmp_path) == [trial, failed]
    assert read_trials(tmp_path / "none") == []


def test_more_than_a_thousand_trials_are_read_in_their_order(tmp_path: Path) -> None:
    for number in range(1_002):
        directory = trial_directory(tmp_path, number)
        directory.mkdir()
        (directory / TRIAL).write_text(json.dumps(asdict(Trial(number=number, parameters={}))))
    assert [trial.number for trial in read_trials(tmp_path)] == list(range(1_002))


def test_a_record_that_is_torn_or_missing_is_named(trial: Trial, tmp_path: Path) -> None:
    trial.write(tmp_path)
    (tmp_path / "000" / TRIAL).write_text('{"number": 0')
    with pytest.raises(SettingsError, match=r"000/trial\.json: not the record of a trial .*remove it"):
        read_trials(tmp_path)
    (tmp_path / "000" / TRIAL).unlink()
    Trial(number=1, parameters={}).write(tmp_path)
    with pytest.raises(SettingsError, match=r"001/trial\.json: expected trial 0, found 1"):
        read_trials(tmp_path)
