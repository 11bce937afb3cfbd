"""The plan, its warnings and the job that prints it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from planning.planned import ROOT, amazon3m, counts, experiment, gpus
from rich.console import Console

from axml_ray.network.fast.attention_xml import FusedAttentionXML
from axml_ray.planning import memory
from axml_ray.planning.estimate import make_plan
from axml_ray.planning.machines import choose_machines
from axml_ray.planning.report import duration, render, warnings
from axml_ray.planning.shapes import level_shapes
from axml_ray.planning.work import training_rates
from axml_ray.settings.configuration import load


@pytest.mark.parametrize(
    ("gib", "change", "settings_named"),
    [
        (24.0, {"resources": {"workers": 1}}, ("resources.workers", "network.hidden")),
        (6.0, {"resources": {"workers": 64}, "training": {"batch_size": 2_000}}, ("training.batch_size",)),
    ],
)
def test_a_warning_names_the_level_its_need_and_the_settings_to_change(
    gib: float, change: dict[str, Any], settings_named: tuple[str, ...]
) -> None:
    settings, of = amazon3m(**change)
    plan = make_plan(settings, of, gpus(64, gib))
    largest = max(plan.levels, key=lambda level: level.memory.total)
    assert largest.shape.number in plan.too_large
    (said,) = warnings(plan)
    assert said.startswith(f"WARNING: level {largest.shape.number} needs {largest.memory.total / memory.GIB:,.1f} GiB ")
    assert f" {0.9 * gib:.1f} of " in said
    assert all(name in said for name in settings_named)


def test_too_few_gpus_are_named() -> None:
    settings, of = amazon3m()
    plan = make_plan(settings, of, gpus(4, 80))
    (said,) = warnings(plan)
    assert plan.side_by_side == 0 and plan.seconds is None
    assert said.startswith("WARNING: ") and " 8 GPUs " in said and " 4; " in said
    assert warnings(make_plan(settings, of, gpus(8, 80))) == ["Every level fits."]


@pytest.mark.parametrize(
    ("seconds", "said"), [(None, "–"), (59, "59 seconds"), (150, "2.5 minutes"), (9e5, "10.4 days")]
)
def test_durations(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said


def job(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "plan.py"), *arguments],
        env={**os.environ, "AXML_RAY_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_run_without_networks_has_no_plan_of_them() -> None:
    of = counts(documents=1_700_000, labels=2_800_000)
    members = {"network_tree": {"weight": 0}, "linear_tree": {"weight": 1}}
    settings = experiment(members=members, network={"kind": "bilstm"})
    machines = choose_machines(settings, None, None)
    rates = training_rates(settings, of, machines, None)
    plan = make_plan(settings, of, machines, *rates)
    assert plan.levels == plan.too_large == () and plan.seconds == 0 and "worker" not in plan.task_memory
    assert {"linear tree", "predict"} <= {phase.name for phase in plan.phases} - {"networks"}
    assert all(phase.seconds is not None for phase in plan.phases)
    console = Console(width=120, record=True)
    console.print(render(plan))
    assert "Workers" not in console.export_text()


@pytest.mark.processes
def test_the_job_plans_and_measures_without_a_corpus(tmp_path: Path) -> None:
    result = job(
        tmp_path, "--config", str(ROOT / "configs/quickstart.yaml"), "--network.hidden=16",
        "--network.fully_connected=[16]", "--corpus.expected.documents=8000", "--corpus.expected.labels=6500",
        "--corpus.expected.tokens=20", "--corpus.expected.words=9000", "--json", "plan.json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "8,000 training documents of 20 words on average, 6,500 labels, 9,000 words" in result.stdout
    assert "measured on this machine" in result.stdout
    assert "Every level fits." in result.stdout
    written = json.loads((tmp_path / "plan.json").read_text())
    assert [level["shape"]["nodes"] for level in written["levels"]] == [512, 6_500]
    assert written["seconds"] > 0
    assert written["operations"] == pytest.approx(3 * sum(level["operations"]["total"] for level in written["levels"]))
    settings = load(ROOT / "configs/quickstart.yaml", network={"hidden": 16, "fully_connected": [16]})
    for level, shape in zip(written["levels"], level_shapes(6_500, settings.tree), strict=True):
        network = FusedAttentionXML(shape.level(), torch.zeros(9_000, settings.corpus.word_dimension), settings.network)
        assert level["parameters"] == sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.processes
def test_the_job_plans_gpus_that_are_not_here(tmp_path: Path) -> None:
    config = str(ROOT / "configs/amazon3m.yaml")
    knn = ["--members.knn.weight", "0.1"]
    result = job(tmp_path, "--config", config, *knn, "--gpus=8", "--memory=12", "--rate=50", "--json", "plan.json")
    assert result.returncode == 0, result.stderr
    assert "at 50 TFLOPS a worker, as --rate says" in " ".join(result.stdout.split())
    assert "WARNING: level 4 needs" in result.stdout
    assert "kNN would take" in " ".join(result.stdout.split())
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["too_large"] == [4]
    assert written["side_by_side"] == 1


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--gpus", "0"], "argument --gpus: expected a whole number above 0 (given: '0')"),
        (["--rate", "-1"], "argument --rate: expected"),
        (["--gpu", "8"], "--gpu: unknown setting; did you mean '--gpus'?"),
        (["--config", "docstrings"], "set corpus.expected.documents, .labels and .tokens"),
    ],
)
def test_the_job_ends_in_one_line(tmp_path: Path, arguments: list[str], expected: str) -> None:
    result = job(tmp_path, "--config", str(ROOT / "configs/quickstart.yaml"), *arguments)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ")
    assert expected in result.stderr
