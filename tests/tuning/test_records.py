"""A trial, as it is read from the files that Ray Tune writes."""

import json
from pathlib import Path
from typing import Any

import pytest

from axml_ray.tuning.records import DIED, Scoring, read_trial, read_trials


def scoring(level: int, step: int, score: float, tree: int = 0) -> dict[str, Any]:
    one = Scoring(tree=tree, level=level, levels=2, group=f"level {level}", step=step, documents=10 * step, score=score)
    return {**vars(one), "nDCG@5": score if level == 2 else 0.0, "done": False, "time_total_s": 1.5}


SCORINGS = [scoring(1, 30, 80.0), scoring(1, 60, 85.0), scoring(2, 30, 20.0), scoring(2, 50, 30.0)]
FINISHED = {"finished": True, "nDCG@5": 31.0, "done": True}


def write(directory: Path, *results: dict[str, Any], number: int = 0) -> Path:
    directory.mkdir()
    drawn = {"tree.height": 1}
    # Tune adds what Optuna drew to what the space returned.
    (directory / "params.json").write_text(json.dumps({"number": number, "parameters": drawn, **drawn}))
    (directory / "result.json").write_text("".join(json.dumps(result) + "\n" for result in results))
    return directory


def test_steps_and_documents_are_of_all_levels_and_the_score_is_of_labels(tmp_path: Path) -> None:
    trial = read_trial(write(tmp_path / "0", *SCORINGS))
    assert (trial.state, trial.score, trial.parameters) == ("running", 30.0, {"tree.height": 1})
    assert (trial.steps, trial.documents) == (60 + 50, 600 + 500)
    assert read_trial(write(tmp_path / "1", *SCORINGS, scoring(1, 7, 99.0, tree=1))).steps == 60 + 50 + 7
    assert read_trial(write(tmp_path / "2", *SCORINGS[:2])).score is None
    # The trial was resumed, and reports its evaluations again.
    assert read_trial(write(tmp_path / "3", *SCORINGS[:3], *SCORINGS)) == trial


@pytest.mark.parametrize(
    ("last", "state", "reason", "score"),
    [
        (FINISHED, "finished", None, 31.0),
        ({"failed": "no memory", "nDCG@5": 0.0, "done": True}, "failed", "no memory", None),
        ({**SCORINGS[-1], "done": True}, "stopped", "ASHA, level 2/2 · 500 documents · valid nDCG@5 30.00", 30.0),
    ],
)
def test_states(tmp_path: Path, last: dict[str, Any], state: str, reason: str | None, score: float | None) -> None:
    trial = read_trial(write(tmp_path / "0", *SCORINGS, last))
    assert (trial.state, trial.reason, trial.score) == (state, reason, score)


def test_a_trial_that_died_has_failed(tmp_path: Path) -> None:
    directory = write(tmp_path / "0", *SCORINGS)
    (directory / "error.txt").write_text("ActorDiedError")
    assert (read_trial(directory).state, read_trial(directory).reason) == ("failed", DIED)
    (directory / "result.json").unlink()
    assert read_trial(directory).curve == ()


def test_more_than_a_thousand_trials_are_read_in_their_order(tmp_path: Path) -> None:
    for number in range(0, 1_002, 3):
        write(tmp_path / f"{number:03d}", number=number)
    assert [trial.number for trial in read_trials(tmp_path)] == list(range(0, 1_002, 3))


def test_what_a_full_disk_cut_is_left_out(tmp_path: Path) -> None:
    """Tune appends the next record to a torn line, and a trial without parameters is no trial."""
    directory = write(tmp_path / "0", *SCORINGS)
    results = directory / "result.json"
    results.write_text(results.read_text()[:-40] + results.read_text().splitlines()[0] + "\n" + json.dumps(FINISHED))
    trial = read_trial(directory)
    assert (trial.state, trial.score, len(trial.curve)) == ("finished", 31.0, 3)
    (write(tmp_path / "1", number=1) / "params.json").write_text("")
    assert read_trials(tmp_path) == [trial]
