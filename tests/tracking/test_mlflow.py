"""Runs in MLflow's local database, read back by MLflow's own client."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_run import RECORDS, experiment, log_all

from axml_ray.core.files import write_json
from axml_ray.core.run_layout import RunLayout
from axml_ray.settings import Experiment
from axml_ray.tracking import tracked_run
from axml_ray.tracking.kinds import with_address
from axml_ray.tracking.tracked_run import TrackedRun, track, tracked_ids

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
mlflow = pytest.importorskip("mlflow")
pytestmark = pytest.mark.slow  # a new database takes seconds


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for all tests, since MLflow takes seconds to make a database."""
    place = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(place)
        yield place


@pytest.fixture
def settings(home: Path, request: pytest.FixtureRequest) -> Experiment:
    """Settings with a name and project for each test."""
    name = request.node.name
    return experiment(home, tracker="mlflow", project=name).model_copy(update={"name": name})


@pytest.fixture(scope="module")
def client(home: Path) -> Any:
    (home / "runs").mkdir()
    return mlflow.MlflowClient(f"sqlite:///{home}/runs/mlflow.db")


def runs(client: Any, settings: Experiment) -> list[Any]:
    return list(client.search_runs([client.get_experiment_by_name(settings.tracking.project).experiment_id]))


def curve(client: Any, run: Any, name: str) -> list[tuple[int, float, int]]:
    return [(each.step, each.value, each.timestamp) for each in client.get_metric_history(run.info.run_id, name)]


def artifacts(client: Any, run: Any, path: str | None = None) -> set[str]:
    files = set()
    for each in client.list_artifacts(run.info.run_id, path):
        files |= artifacts(client, run, each.path) if each.is_dir else {each.path}
    return files


def test_a_run_in_the_default_store(home: Path, settings: Experiment, client: Any) -> None:
    RunLayout(settings.run_directory).directory.mkdir(parents=True)
    RunLayout(settings.run_directory).settings.write_text("name: toy\n")
    with track(settings) as tracked:
        tracked.artifact("settings", RunLayout(settings.run_directory).settings)
        log_all(tracked, home)
    [run] = runs(client, settings)
    assert tracked_ids(settings.run_directory) == {"mlflow": run.info.run_id}
    assert (run.info.run_name, run.info.status) == (settings.name, "FINISHED")
    assert run.data.params["tree.height"] == "1" and run.data.params["training.epochs"] == "[4, 3]"
    assert not {"runs", "corpora", "name", "tracking.project"} & set(run.data.params)
    assert curve(client, run, "tree-1/level-1/loss") == [
        (100, 0.25, 1_700_000_011_500),
        (200, 0.125, 1_700_000_020_000),
    ]
    assert curve(client, run, "tree-1/level-2/valid_nDCG_at_5") == [(50, 20.0, 1_700_000_030_000)]
    assert run.data.metrics["test/ensemble/nDCG_at_5"] == 60.5 and run.data.metrics["seconds/network_tree"] == 4.5
    assert artifacts(client, run) == {"settings/settings.yaml", "report/charts.html"}
    assert {path.name for path in home.iterdir()} == {"runs", "report"}


def test_a_run_that_is_started_again_is_the_same(settings: Experiment, client: Any) -> None:
    with pytest.raises(RuntimeError), track(settings) as tracked:
        tracked.record(RECORDS[2])
        raise RuntimeError("a member failed")
    [run] = runs(client, settings)
    assert run.info.status == "FAILED"
    ensemble = settings.ensemble.model_copy(update={"trees": 9})
    with pytest.raises(KeyboardInterrupt), track(settings.model_copy(update={"ensemble": ensemble})) as tracked:
        tracked.record(RECORDS[3])
        raise KeyboardInterrupt
    [run] = runs(client, settings)
    assert run.info.status == "KILLED" and run.data.params["ensemble.trees"] == "3"
    assert [step for step, *_ in curve(client, run, "tree-1/level-1/loss")] == [100, 200]


def test_a_run_that_was_deleted_or_is_elsewhere_is_made_anew(settings: Experiment, client: Any) -> None:
    settings.run_directory.mkdir(parents=True)
    write_json(RunLayout(settings.run_directory).tracking, {"mlflow": "f" * 32, "wandb": "kept"})
    for _ in range(2):
        with track(settings) as tracked:
            tracked.record(RECORDS[2])
        [run] = runs(client, settings)
        assert tracked_ids(settings.run_directory) == {"mlflow": run.info.run_id, "wandb": "kept"}
        client.delete_run(run.info.run_id)


def test_a_run_whose_artifact_fails_still_ends(
    home: Path, settings: Experiment, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with track(settings) as tracked:
        tracked.record(RECORDS[2])
        tracked.artifact("report", home / "none.html")
    [run] = runs(client, settings)
    assert run.info.status == "FINISHED"
    assert (
        len([record for record in caplog.records if record.name == tracked_run.__name__ and record.levelno > 20]) == 1
    )


def test_trials_are_nested_in_their_sweep(home: Path, settings: Experiment, client: Any) -> None:
    class Interruption(RuntimeError):
        pass

    sweep, tracking = home / "runs" / "rates", with_address(settings.tracking, settings.runs)
    parameters = {"sweep.search": "tpe", **{f"fixed.{number}": number for number in range(150)}}
    trial = settings.model_copy(update={"runs": sweep / "trials", "name": "000", "tracking": tracking})
    with TrackedRun("rates", sweep, tracking, parameters, sweep=sweep) as tracked:
        tracked.open(60)
        with pytest.raises(Interruption), track(trial, sweep=sweep, stops=(Interruption,)) as tracked_trial:
            tracked_trial.record(RECORDS[2])
            raise Interruption
        tracked.scores({"valid_nDCG@5": 33.0})
    by_name = {run.info.run_name: run for run in runs(client, settings)}
    assert by_name["rates"].data.params == {key: str(value) for key, value in parameters.items()}
    assert by_name["rates"].data.metrics == {"valid_nDCG_at_5": 33.0}
    assert by_name["rates-000"].data.tags["mlflow.parentRunId"] == by_name["rates"].info.run_id
    assert by_name["rates-000"].info.status == "KILLED"


def test_a_file_is_a_database(home: Path, settings: Experiment, client: Any) -> None:
    tracking = settings.tracking.model_copy(update={"uri": home / "runs" / "mlflow.db"})
    with track(settings.model_copy(update={"tracking": tracking})) as tracked:
        log_all(tracked, home)
    [run] = runs(client, settings)
    assert run.data.metrics["test/ensemble/P_at_1"] == 80.0
