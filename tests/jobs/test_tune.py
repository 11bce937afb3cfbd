"""A sweep: killed between two trials, started again, and its best settings as a config."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
import synthetic
import yaml
from descendants import job_environment, kill_driver

from axml_ray.settings.configuration import load
from axml_ray.tuning.records import read_trials
from axml_ray.tuning.space import Space

ROOT = Path(__file__).parents[2]
TRIALS, SECONDS = 3, 300
SPACE = """
def space(draw):
    if draw.suggest_int("tree.height", 0, 1):
        draw.suggest_categorical("tree.cluster_size", [4, 8])
    draw.suggest_int("network.hidden", 4, 12)
"""


def state(trials: Path) -> dict[int, str]:
    """States of the trials that are written; a file may be replaced while it is read."""
    try:
        return {trial.number: trial.state for trial in read_trials(trials)}
    except ValueError:
        return {}


@pytest.mark.fault("driver killed", "tuning", work_repeated="the steps of a trial since its checkpoint")
@pytest.mark.slow
def test_a_killed_sweep_goes_on_with_the_same_trials(
    ray_cluster: None, command: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AXML_RAY_HOME", str(tmp_path))
    (tmp_path / "mine.py").write_text(SPACE)
    settings = synthetic.experiment(
        tmp_path,
        training={"epochs": [2], "average_after": [1], "eval_every_steps": 5},
        resources={"cpus_per_worker": 1},
        # For the best alone; its trials are of network trees.
        members={"network_tree": {"weight": 0.5}, "linear_tree": {"weight": 0.5}},
        ensemble={"trees": 2, "top_labels": 10, "combiner": "calibrated"},
    )
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    flags = ["--config", str(tmp_path / "config.yaml"), "--space", "mine.py", "--trials", str(TRIALS),
             "--search", "random", "--no-early-stopping", "--sweep", "small-sweep", "--part", "0.5"]  # fmt: skip
    sweep = tmp_path / "runs" / "small-sweep"
    killed = subprocess.Popen([sys.executable, str(ROOT / "jobs" / "tune.py"), *flags], env=job_environment(),
                              start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    end = time.monotonic() + SECONDS
    # A trial is finished, and the other one, or the one drawn in its place, is running.
    while not {"finished", "running"} <= set((known := state(sweep / "trials")).values()):
        assert time.monotonic() < end and killed.poll() is None, known
        time.sleep(0.1)
    kill_driver(killed)
    known = state(sweep / "trials")
    before = {path: path.read_bytes() for path in sweep.glob("trials/*/result.json")}
    done = {path: content for path, content in before.items() if known[int(path.parent.name)] == "finished"}
    code, out, err = command("tune", *flags)  # on the cluster of this process
    assert code == 0, out + err
    assert {path: path.read_bytes() for path in done} == done
    base = load(tmp_path / "config.yaml")
    trials = read_trials(sweep / "trials")
    # The trials are those that a sweep draws which is never killed.
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(base.seed))
    space = Space.load([str(tmp_path / "mine.py")])
    assert [trial.parameters for trial in trials] == [space.draw(study.ask()) for _ in range(TRIALS)]
    assert [trial.state for trial in trials] == ["finished"] * TRIALS
    assert all(trial.score == max(one.score for one in trial.curve if one.is_of_labels) for trial in trials)
    # 110 of 220 training documents, two epochs a level; no scoring was told twice.
    for trial in trials:
        assert trial.documents == 220 * (trial.parameters["tree.height"] + 1)
        places = [(one.level, one.step) for one in trial.curve]
        assert places == sorted(set(places))
    # Trials of one shape share their tree.
    shapes = {(trial.parameters["tree.height"], trial.parameters.get("tree.cluster_size")) for trial in trials}
    assert len(list((sweep / "trees").iterdir())) == len(shapes)
    assert sorted(path.name for path in sweep.iterdir()) == [
        "best.yaml", "sweep.html", "sweep.json", "tensorboard", "tracking.json", "trees", "trials", "trials.json",
    ]  # fmt: skip
    best = load(sweep / "best.yaml")
    assert best.name == "small-sweep-best" and best.training.documents is None
    assert best.network.hidden == max(trials, key=lambda trial: trial.score or 0).parameters["network.hidden"]
    assert best.corpus == base.corpus and best.ensemble == base.ensemble and best.members == base.members
    assert f"--config {sweep / 'best.yaml'}" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--space: name at least one, such as tune_spaces.tree"),
        (["--space", "tune_spaces.tree", "--part", "2"], "command line: argument --part: expected a number above 0"),
        (
            ["--space", "tune_spaces.tree", "--sweep", "../x"],
            "--sweep: a name consists of letters",
        ),
        (["--space", "tune_spaces.tree", "--sweep", "größe"], "--sweep: a name consists of letters"),
    ],
)
def test_a_wrong_flag_is_one_line_before_anything_starts(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path, flags: list[str], message: str
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(synthetic.experiment(tmp_path)))
    code, _, err = command("tune", "--config", tmp_path / "config.yaml", *flags)
    assert code == 2
    assert err.startswith("error: ") and message in err and err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
