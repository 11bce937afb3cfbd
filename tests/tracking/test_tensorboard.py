"""TensorBoard events of a run, read back as TensorBoard reads them."""

from pathlib import Path

import pytest
from event_files import hyperparameters, points, texts
from s3 import Bucket
from toy_run import LEVEL_1, experiment, log_all

from axml_ray.core.paths import absolute
from axml_ray.tracking.tensorboard_tracker import Events, TensorBoardTracker
from axml_ray.tracking.tracked_run import track, tracked_ids
from axml_ray.tracking.tracker import LevelMetrics, RunIdentity


def step(number: int, loss: float) -> dict[str, object]:
    return {"time": 1.0, **LEVEL_1, "step": number, "loss": loss}


def test_levels_parameters_and_scores(tmp_path: Path) -> None:
    settings = experiment(tmp_path)
    with track(settings) as tracked:
        log_all(tracked, tmp_path)
    tree = settings.run_directory / "tree-0" / "tensorboard"
    assert sorted(path.name for path in tree.iterdir()) == ["level-1", "level-2"]
    assert points(tree / "level-1") == {
        "loss": {100: 0.25, 200: 0.125},
        "valid_nDCG@5": {100: 31.5},
        "documents_per_second": {100: 1250, 200: 1250},
        "memory_gib": {100: 1.5, 200: 1.5},
        "seconds_left": {100: 75},
    }
    assert points(tree / "level-2") == {"valid_nDCG@5": {50: 20}}
    own = settings.run_directory / "tensorboard"
    assert points(own) == {
        "test/ensemble/P@1": {0: 80},
        "test/ensemble/nDCG@5": {0: 60.5},
        "test/network_tree-0/P@1": {0: 75},
        "seconds/network_tree": {0: 4.5},
    }
    assert "| tree.height | 1 |" in texts(own)["settings/text_summary"].splitlines()
    shown = hyperparameters(own)
    assert (shown["tree.height"], shown["training.epochs"], shown["preset"]) == (1, "[4, 3]", "paper")


def test_a_restarted_job_takes_the_place_of_what_it_lost(tmp_path: Path) -> None:
    settings = experiment(tmp_path)
    with pytest.raises(RuntimeError), track(settings) as tracked:
        for number in (100, 200, 300):
            tracked.record(step(number, 1.0))
        raise RuntimeError("killed")
    with track(settings) as tracked:  # went on from a checkpoint of step 150
        for number in (180, 280):
            tracked.record(step(number, 0.5))
    level = settings.run_directory / "tree-0" / "tensorboard" / "level-1"
    assert points(level)["loss"] == {100: 1.0, 180: 0.5, 280: 0.5}


def test_restarted_workers_take_the_place_of_what_they_lost(tmp_path: Path) -> None:
    settings = experiment(tmp_path)
    with track(settings) as tracked:
        for number, loss in ((100, 1.0), (200, 1.0), (300, 1.0), (180, 0.5), (280, 0.5)):
            tracked.record(step(number, loss))
    level = settings.run_directory / "tree-0" / "tensorboard" / "level-1"
    assert points(level)["loss"] == {100: 1.0, 180: 0.5, 280: 0.5}


def test_files_are_closed(tmp_path: Path) -> None:
    identity = RunIdentity(name="toy", directory=tmp_path)
    tracker = TensorBoardTracker(identity, experiment(tmp_path).tracking)
    metrics = LevelMetrics(tree=0, level=1, step=100, time=1.0, values={"loss": 1.0})
    tracker.log_level(metrics)
    tracker.close("stopped")
    for write in (lambda: tracker.log_level(metrics), lambda: tracker.log_scores({"P@1": 1.0})):
        with pytest.raises(ValueError, match="closed file"):
            write()


def test_a_trial_is_below_its_sweep(tmp_path: Path) -> None:
    sweep = tmp_path / "runs" / "sweep"
    settings = experiment(tmp_path).model_copy(update={"runs": sweep / "trials", "name": "003"})
    with track(settings, sweep=sweep) as tracked:
        tracked.scores({"valid_nDCG@5": 40.0})
    assert points(sweep / "trials" / "003" / "tensorboard") == {"valid_nDCG@5": {0: 40}}
    assert tracked_ids(settings.run_directory) == {"tensorboard": "sweep-003"}


def test_events_at_a_url_are_published(bucket: Bucket) -> None:
    events = Events(absolute(f"s3://{bucket.name}/run/tensorboard"))
    events.write({"loss": 1.0}, 1, 0.0)
    (name,) = bucket.names()
    size = len(bucket.read(name))
    events.write({"loss": 2.0}, 2, 0.0)
    assert name.startswith("run/tensorboard/events") and bucket.names() == [name] and len(bucket.read(name)) > size
