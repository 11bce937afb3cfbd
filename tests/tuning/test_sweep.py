"""A whole sweep on a real cluster: a trial that finishes, one that is stopped, one that fails."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from descendants import descendants
from event_files import points
from tiny_corpus import experiment, write_corpus

from axml_ray.core.errors import SettingsError
from axml_ray.core.files import check_fences, fences, write_json
from axml_ray.core.lease import LeaseLostError, lease_of, own
from axml_ray.corpus.store import Corpus
from axml_ray.settings import ResourceSettings
from axml_ray.tuning.outcome import write_outcome
from axml_ray.tuning.records import read_trials
from axml_ray.tuning.run_sweep import concurrent_trials, run_sweep
from axml_ray.tuning.space import Space
from axml_ray.tuning.sweep import Sweep
from axml_ray.tuning.trial import TrialRunner, drop_weights

GOOD, POOR, MAD = 0.02, 1e-6, 1e30
SPACE = f"def space(draw):\n    draw.suggest_categorical('training.learning_rate', [{GOOD}, {POOR}, {MAD}])\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep")


@pytest.fixture(scope="module")
def corpus(home: Path) -> Corpus:
    return write_corpus(home / "corpora" / "tiny")


@pytest.fixture(scope="module")
def sweep(home: Path) -> Sweep:
    path = home / "rates.py"
    path.write_text(SPACE)
    space = Space.load([str(path)])

    def rates(seed: int) -> list[float]:
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
        return [space.draw(study.ask())["training.learning_rate"] for _ in range(3)]

    settings = experiment(home, epochs=(6,), average_after=(4,), batch_size=10, eval_every_steps=5)
    resources = ResourceSettings(cpus_per_worker=0.5)
    seed = next(seed for seed in range(100) if rates(seed) == [GOOD, POOR, MAD])
    settings = settings.model_copy(update={"seed": seed, "resources": resources})
    return Sweep(settings=settings, space=space, name="rates", trials=3, part=0.5, search="random", at_once=1)


def workers() -> dict[int, str]:
    """What Ray's processes of this test that run a trial, a tree or a worker are called, by number."""
    parents, names = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().rstrip("\0")
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
        if words.startswith("ray::") and any(name in words for name in ("Train", "_train", "TrialActor")):
            names[int(process.name)] = words

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return {pid: name for pid, name in names.items() if is_ours(pid)}


def test_a_trial_finishes_one_is_stopped_one_fails_and_nothing_is_left(
    ray_cluster: None, sweep: Sweep, corpus: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    import ray

    def free_cpus() -> float:
        return ray.available_resources().get("CPU", 0.0)

    # Tests before this one may have left an actor of Ray Train, which ends with this process.
    others, free = workers().keys(), free_cpus()
    with caplog.at_level(logging.INFO, "axml_ray.tuning"):
        good, poor, mad = run_sweep(sweep, corpus)
    assert [trial.state for trial in (good, poor, mad)] == ["finished", "stopped", "failed"]
    # Half of 300 documents, six epochs a level, scored after every fifth step of ten documents.
    assert [(one.level, one.documents) for one in good.curve] == [
        (level, documents) for level in (1, 2) for documents in range(50, 901, 50)
    ]
    assert good.score == good.curve[-1].score == max(one.score for one in good.curve if one.is_of_labels)
    assert good.score > 60
    assert (good.steps, good.documents) == (180, 1800)
    # The poor one, whose first weights are what it has, is stopped at the first rung, after an epoch: nDCG@5 is 67
    # there, that of the good one 73.
    assert [(one.level, one.documents) for one in poor.curve] == [(1, 50), (1, 100), (1, 150)]
    assert poor.reason and poor.reason.startswith("ASHA, level 1/2 · 150 documents") and poor.score is None
    assert mad.reason and "training.learning_rate" in mad.reason and mad.score is None
    assert read_trials(sweep.directory / "trials") == [good, poor, mad]
    assert any("trial 2 · failed" in line for line in caplog.messages)
    # All have the same tree, which was built once.
    assert len(list((sweep.directory / "trees").iterdir())) == 1
    trial = sweep.directory / "trials" / "000"
    assert [path.name for path in (trial / "tree-0").iterdir() if "tensorboard" not in path.name] == ["training.jsonl"]
    assert points(trial / "tensorboard") == {"valid_nDCG@5": {0: pytest.approx(good.score)}}
    assert (sweep.directory / "trials" / "002" / "tensorboard").is_dir()
    assert len(points(trial / "tree-0" / "tensorboard" / "level-2")["valid_nDCG@5"]) == 18
    end = time.monotonic() + 60
    while (workers().keys() - others or free_cpus() < free) and time.monotonic() < end:
        time.sleep(0.2)
    assert workers().keys() <= others
    assert free_cpus() >= free > 0
    assert write_outcome(sweep, corpus, [good, poor, mad]) == good


def test_a_finished_sweep_is_told_again_and_others_are_refused(ray_cluster: None, sweep: Sweep, corpus: Corpus) -> None:
    files = {path: path.read_bytes() for path in sweep.directory.glob("trials/*/result.json")}
    assert len(files) == 3
    assert [trial.state for trial in run_sweep(sweep, corpus)] == ["finished", "stopped", "failed"]
    assert {path: path.read_bytes() for path in files} == files
    with pytest.raises(SettingsError, match=r"begun with other settings \(grace\); choose another --sweep"):
        run_sweep(replace(sweep, grace=2.0), corpus)
    with pytest.raises(SettingsError, match=r"other settings \(documents, settings\.network\.hidden\)"):
        network = sweep.settings.network.model_copy(update={"hidden": 11})
        run_sweep(replace(sweep, part=1.0, settings=sweep.settings.model_copy(update={"network": network})), corpus)


def test_trials_leave_room_for_their_workers(ray_cluster: None) -> None:
    assert concurrent_trials(ResourceSettings()) == 2
    assert concurrent_trials(ResourceSettings(workers=2)) == 1
    assert concurrent_trials(ResourceSettings(cpus_per_worker=0.5)) == 2  # clustering takes a whole CPU
    assert concurrent_trials(ResourceSettings(), at_once=1) == 1
    with pytest.raises(SettingsError, match=r"workers of 3 trials don't fit, those of 2 do"):
        concurrent_trials(ResourceSettings(), at_once=3)
    with pytest.raises(SettingsError, match=r"resources: 3 workers × 1 CPU "):
        concurrent_trials(ResourceSettings(workers=3))
    with pytest.raises(SettingsError, match=r"resources: 1 workers × 2 GPU "):
        concurrent_trials(ResourceSettings(gpus_per_worker=2))


@pytest.mark.slow
@pytest.mark.fault("lost trial", "tuning", work_repeated="the steps since its checkpoint")
def test_a_trial_whose_process_is_killed_is_tried_again(ray_cluster: None, sweep: Sweep, corpus: Corpus) -> None:
    epochs = {"epochs": (60,), "eval_every_steps": 50, "patience_steps": 9_999}
    settings = sweep.settings.model_copy(
        update={"runs": sweep.settings.runs / "killed", "training": sweep.settings.training.model_copy(update=epochs)}
    )
    one = replace(sweep, settings=settings, trials=1, early_stopping=False)
    killed: list[int] = []

    def kill_the_trial() -> None:
        journal = one.directory / "trials" / "000" / "tree-0" / "training.jsonl"
        while not (journal.exists() and "scoring" in journal.read_text()):
            time.sleep(0.02)
        killed.extend(descendants(os.getpid(), b"Trainable.train"))
        os.kill(killed[0], signal.SIGKILL)

    threading.Thread(target=kill_the_trial, daemon=True).start()
    [trial] = run_sweep(one, corpus)
    assert len(killed) == 1 and trial.state == "finished" and (trial.score or 0) > 60
    # Each evaluation is reported once.
    assert [(one.level, one.documents) for one in trial.curve] == [
        (level, documents) for level in (1, 2) for documents in range(500, 9001, 500)
    ]


@pytest.mark.parametrize("event", ["taken over", "other corpus"])
def test_a_sweep_ends_when_it_may_not_go_on(ray_cluster: None, event: str, sweep: Sweep, corpus: Corpus) -> None:
    sweep = replace(sweep, name=event.replace(" ", "-"))
    manifest = corpus.directory / "corpus.json"
    content = manifest.read_text()

    def happen() -> None:
        if event == "taken over":
            lease_of(sweep.directory).file.unlink()
        else:
            write_json(manifest, {**json.loads(content), "fingerprint": "another"})

    error = LeaseLostError if event == "taken over" else SettingsError
    try:
        with own(sweep.directory), pytest.raises(error):
            run_sweep(sweep, corpus, begun=happen)
    finally:
        manifest.write_text(content)
        fences.pop(sweep.directory, None)
    assert not list(sweep.directory.glob("trials/*/result.json"))


@pytest.mark.processes
def test_a_trial_that_another_job_trains_keeps_that_jobs_files(sweep: Sweep, corpus: Corpus, monkeypatch) -> None:
    runner = TrialRunner(base=sweep.settings, directory=sweep.directory / "other", trees=sweep.directory / "trees")
    directory, reports = runner.trial_directory(0), []
    monkeypatch.setattr("axml_ray.tuning.trial.END_SECONDS", 0.0)
    program = f"""
import time
from pathlib import Path
from axml_ray.core.lease import own
directory = Path({str(directory)!r})
with own(directory):
    (directory / "tree-0" / "network_tree" / "level-1").mkdir(parents=True)
    time.sleep(600)
"""
    level = directory / "tree-0" / "network_tree" / "level-1"
    other = subprocess.Popen([sys.executable, "-c", program])
    try:
        while not level.is_dir():
            assert other.poll() is None
            time.sleep(0.05)
        runner.run(0, {"training.learning_rate": GOOD}, reports.append)
        drop_weights(directory)
        assert level.is_dir() and [set(report) >= {"failed", "nDCG@5"} for report in reports] == [True]
    finally:
        other.kill()
        other.wait()
    drop_weights(directory)
    assert not level.is_dir()


@pytest.mark.parametrize("is_found_out", [True, False])
def test_a_trial_ends_when_another_job_takes_over_its_sweep(
    sweep: Sweep, corpus: Corpus, monkeypatch, is_found_out: bool
) -> None:
    home, reports = sweep.directory.with_name(f"overtaken-{is_found_out}"), []
    with pytest.raises(LeaseLostError), own(home) as lease:
        runner = TrialRunner(base=sweep.settings, directory=home / "trials", trees=home / "trees", lease=lease)
        level = runner.trial_directory(0) / "tree-0" / "network_tree" / "level-1"

        def fit(run, follow, stopped):
            level.mkdir(parents=True)
            lease.file.unlink()
            if is_found_out:
                check_fences(level)
            raise RuntimeError("the cluster of this job has ended")

        monkeypatch.setattr("axml_ray.tuning.trial.fit_members", fit)
        runner.run(0, {"training.learning_rate": GOOD}, reports.append)
        assert level.is_dir() and [set(report) >= {"failed", "nDCG@5"} for report in reports] == [True]
        lease.check()
    del fences[home]


def test_a_trial_that_another_job_took_over_keeps_that_jobs_files(sweep: Sweep, corpus: Corpus, monkeypatch) -> None:
    runner = TrialRunner(base=sweep.settings, directory=sweep.directory / "mine", trees=sweep.directory / "trees")
    directory, reports = runner.trial_directory(0), []
    level = directory / "tree-0" / "network_tree" / "level-1"

    def fit(run, follow, stopped):
        lease_of(directory).file.unlink()
        level.mkdir(parents=True)
        check_fences(directory)

    monkeypatch.setattr("axml_ray.tuning.trial.fit_members", fit)
    runner.run(0, {"training.learning_rate": GOOD}, reports.append)
    assert level.is_dir() and [set(report) >= {"failed", "nDCG@5"} for report in reports] == [True]
    assert not (directory / "errors").exists()
    del fences[directory]
