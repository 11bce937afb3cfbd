"""What every tracker gets, and that no tracker ends a run."""

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest
from event_files import points
from toy_run import CLOSED, METRICS, RECORDS, experiment, log_all

from axml_ray.core import extras
from axml_ray.core.errors import SettingsError
from axml_ray.core.run_layout import RunLayout
from axml_ray.settings import Experiment, TrackingSettings
from axml_ray.tracking import tracked_run
from axml_ray.tracking.kinds import KINDS, check_installed, tracker_class
from axml_ray.tracking.tensorboard_tracker import TensorBoardTracker
from axml_ray.tracking.tracked_run import parameters_of, scores_of, track, tracked_ids
from axml_ray.tracking.tracker import LevelMetrics, Tracker
from axml_ray.workflow.train import begin


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_every_choice_of_the_setting_has_a_tracker() -> None:
    choices = get_args(TrackingSettings.model_fields["tracker"].annotation)
    assert set(choices) == {*KINDS, "none"}
    assert all(issubclass(tracker_class(kind), Tracker) for kind in KINDS)


def test_records_that_have_metrics() -> None:
    metrics = [LevelMetrics.of(record) for record in RECORDS]
    assert [each and (each.group, each.step, len(each.values)) for each in metrics] == [
        None,
        ("tree-1/level-1", 100, 1),
        ("tree-1/level-1", 100, 4),
        ("tree-1/level-1", 200, 3),
        None,
        ("tree-1/level-2", 50, 1),
    ]


def test_parameters_are_settings_by_their_paths(tmp_path: Path) -> None:
    parameters = parameters_of(experiment(tmp_path))
    assert parameters["training.epochs"] == [4, 3] and parameters["members.knn.weight"] == 0
    assert not [key for key in parameters if key.startswith(("tracking", "runs", "corpora", "name"))]


def test_scores_are_those_of_ensemble_members_and_phases() -> None:
    assert scores_of(METRICS) == {
        "test/ensemble/P@1": 80.0,
        "test/ensemble/nDCG@5": 60.5,
        "test/network_tree-0/P@1": 75.0,
        "seconds/network_tree": 4.5,
    }


def test_nothing_is_tracked_without_a_tracker_or_a_call(tmp_path: Path) -> None:
    settings = experiment(tmp_path, tracker="none")
    with track(settings) as tracked:
        tracked.open()
        log_all(tracked, tmp_path)
    with track(experiment(tmp_path)):
        pass
    assert not settings.runs.exists()
    assert "tracking" not in {thread.name for thread in threading.enumerate()}


def test_a_tracker_that_fails_warns_once_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = experiment(tmp_path)
    in_the_way = settings.run_directory / "tensorboard"
    settings.run_directory.mkdir(parents=True)
    in_the_way.write_text("a file where TensorBoard's directory belongs")
    with track(settings) as tracked:
        log_all(tracked, tmp_path)
    [said] = warnings(caplog)
    assert "tensorboard" in said and tracked_ids(settings.run_directory) == {}

    monkeypatch.setattr(tracked_run, "RETRY_SECONDS", 0)
    with track(settings) as tracked:
        for record in RECORDS:
            tracked.record(record)
        tracked.open(30)
        in_the_way.unlink()
        tracked.scores({"test/ensemble/P@1": 80.0})
    assert len(warnings(caplog)) == 2
    assert points(in_the_way) == {"test/ensemble/P@1": {0: 80}}


def test_scores_and_files_wait_for_a_tracker_that_fails_shortly_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    class FailsOnce(TensorBoardTracker):
        def log_level(self, metrics: LevelMetrics) -> None:
            calls.append("level")
            raise ConnectionError("one hiccup")

        def log_scores(self, scores: Mapping[str, float]) -> None:
            calls.append("scores")

        def close(self, outcome: str) -> None:
            calls.append(outcome)

    monkeypatch.setattr(tracked_run, "tracker_class", lambda kind: FailsOnce)
    with track(experiment(tmp_path)) as tracked:
        for record in RECORDS:
            tracked.record(record)
        tracked.scores({"test/ensemble/P@1": 80.0})
    assert calls == ["level", "scores", "finished"]


def test_a_server_that_is_gone_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    for name, value in {"HTTP_REQUEST_MAX_RETRIES": "0", "DISABLE_TELEMETRY": "true"}.items():
        monkeypatch.setenv(f"MLFLOW_{name}", value)
    settings = experiment(tmp_path, tracker="mlflow", uri=CLOSED)
    with track(settings) as tracked:
        log_all(tracked, tmp_path)
    [said] = warnings(caplog)
    assert "mlflow" in said and "127.0.0.1" in said


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_one_line_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    settings = experiment(tmp_path, tracker=tracker)
    with pytest.raises(SettingsError, match=rf'^{tracker}: not installed; run: pip install "axml-ray\[tracking\]"$'):
        begin(settings)
    assert not list(tmp_path.iterdir())
    check_installed(TrackingSettings())
    check_installed(TrackingSettings(tracker="none"))


def test_ids_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    assert tracked_ids(tmp_path) == {}
    RunLayout(tmp_path).tracking.write_text("[1")
    assert tracked_ids(tmp_path) == {}


def test_the_tracker_is_no_part_of_what_a_sweep_must_keep(tmp_path: Path, sweep_about) -> None:
    assert sweep_about(experiment(tmp_path)) == sweep_about(experiment(tmp_path, tracker="none", project="other"))


@pytest.fixture
def sweep_about(tmp_path: Path):
    """The content of a sweep's manifest, by its settings."""
    from tiny_corpus import write_corpus

    from axml_ray.tuning.space import Space
    from axml_ray.tuning.sweep import Sweep

    space = tmp_path / "space.py"
    space.write_text("def space(draw):\n    draw.suggest_int('tree.height', 0, 2)\n")
    corpus = write_corpus(tmp_path / "corpus")

    def about(settings: Experiment) -> dict[str, object]:
        return Sweep(settings=settings, space=Space.load([str(space)]), name="heights").about(corpus)

    return about
