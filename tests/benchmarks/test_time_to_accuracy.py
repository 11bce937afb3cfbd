"""Run: pytest tests/benchmarks/test_time_to_accuracy.py

Steps, figures and picture of the benchmark of score against seconds.
"""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import time_to_accuracy
from rich.console import Console

from axml_ray.core.errors import SettingsError
from axml_ray.settings.configuration import load


def row(system: str, program: str, seconds: float, score: float) -> dict[str, Any]:
    scores = {"P@1": score + 20, "P@5": score, "nDCG@5": score + 10, "R@10": 1.0}
    return {"system": system, "program": program, "seconds": seconds, "scores": scores}


def test_steps_add_networks_and_trees_to_one_run() -> None:
    settings = load("docstrings")
    steps = dict(time_to_accuracy.steps(settings))
    assert list(steps) == ["members without networks", "1 tree", "3 trees"]
    without, one, three = steps.values()
    assert [step.ensemble.trees for step in (without, one, three)] == [1, 1, 3]
    assert "network_tree" not in without.members.chosen and "linear_tree" in without.members.chosen
    assert one.members == three.members == settings.members
    assert {step.run_directory for step in steps.values()} == {settings.run_directory}
    assert three == settings


def test_a_run_that_exists_is_refused(tmp_path: Path) -> None:
    settings = load("docstrings", runs=tmp_path, name="old")
    settings.run_directory.mkdir()
    with pytest.raises(SettingsError, match="old"):
        next(time_to_accuracy.measure(settings, [], Console(quiet=True)))


def test_figures_leave_out_what_could_not_be_installed() -> None:
    rows = [row("1 tree", "axml-ray", 100.04, 60), {"system": "bonsai", "failed": "no pip", "scores": {}}]
    assert time_to_accuracy.figures(rows) == {
        "1 tree_seconds": 100.0,
        "1 tree_P@1": 80,
        "1 tree_P@5": 60,
        "1 tree_nDCG@5": 70,
    }


def test_picture_names_every_system_in_the_panel_of_its_corpus(tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    systems = [("parabel", "omikuji 0.5.2"), ("fast", "axml-ray"), ("1 tree", "axml-ray")]
    results = {
        corpus: [
            row(f"{name} {corpus}", program, 10.0**place, 50 + place) for place, (name, program) in enumerate(systems)
        ]
        for corpus in ("docstrings", "eurlex57k")
    }
    time_to_accuracy.draw(results, path)
    texts = [element.text for element in ElementTree.parse(path).iter() if element.tag.endswith("text")]
    assert all(row["system"] in texts for rows in results.values() for row in rows) and set(results) <= set(texts)
    first = path.read_bytes()
    time_to_accuracy.draw(results, path)
    assert path.read_bytes() == first
    with pytest.raises(SettingsError):
        time_to_accuracy.draw({}, path)
